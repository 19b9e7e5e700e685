"""The synthetic experiments of the paper (section 4.2, appendix C.3), which figures 2, 3 and 5 and two tables are made of.

One slot of every user's memory holds a false negative: a positive that was hidden in test. Like the authors' code, and unlike
the paper's equations, memories and selection go by raw scores from the end of the last epoch, since the published numbers came
from there; figure 2 alone goes by probabilities. The other slots hold no test item at all, again like the code; under extreme
noise they hold none of the false negatives, like the text. Test metrics rank all items that are not in train.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.datasets import load
from srns.engines import Engine
from srns.errors import ConfigError
from srns.evaluation import Evaluation, evaluate
from srns.experiments.outcome import Asked, Check, descending, difference_over_users, told
from srns.experiments.store import Job
from srns.interactions import Interactions
from srns.presets import PRESETS, make_config
from srns.samplers import SRNS, Noise, Truth
from srns.splits import Split
from srns.trainer import Callback, EpochRecord, Trainer

EPOCHS, QUICK_EPOCHS = int(PRESETS["paper"]["epochs"]), 60
LAST, EVERY, EARLY = 50, 5, 20  # the last epochs are all measured, and averaged; the first too; between them, one in so many
METRICS = ("ndcg@3", "recall@3")
SHARE = 3  # of short runs, the last third


def last_of(epochs: int) -> int:
    """How many of the last epochs are averaged."""
    return min(LAST, max(1, epochs // SHARE))


SCHEDULES = ("increase", "flat", "decrease")
BY_CODE = {"criterion": "stale_scores", "update_after": "positive"}  # how the authors' code selects, and renews memories


@dataclasses.dataclass(frozen=True)
class Setup:
    """One of the two data sets: its preset, the sigmas of figure 2, where the warm-up is looked at, and the extreme noise."""

    preset: str
    title: str
    sigmas: tuple[float, ...]
    warmup_sigma: float
    extreme: float  # share of test that is fed in as noise in figure 3(c, d)

    @property
    def variance_weight(self) -> float:
        """The paper's best at `warmup_sigma`."""
        return float(PRESETS[self.preset]["variance_weight"])

    @property
    def warmup_epochs(self) -> int:
        """T0 of that."""
        return int(PRESETS[self.preset]["warmup_epochs"])


SETUPS = {
    "ml-100k-paper": Setup("paper-ml-100k", "ML-100k", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), 1.0, 1.0),
    "ecom-toy-paper": Setup("paper-ecom-toy", "Ecom-toy", (0.0, 0.1, 0.3, 0.5, 0.7, 1.0), 0.5, 0.4),
}


def setups(asked: Asked) -> dict[str, Setup]:
    """The data sets asked for."""
    unknown = [name for name in asked.datasets if name not in SETUPS]
    if unknown:
        raise ConfigError(
            f"{unknown[0]!r} has no false negatives of the paper's; the synthetic experiments run on {', '.join(SETUPS)} "
            "(`srns audit` is for data of your own)"
        )
    return {name: setup for name, setup in SETUPS.items() if not asked.datasets or name in asked.datasets}


def epochs_of(asked: Asked) -> int:
    return asked.epochs or (QUICK_EPOCHS if asked.quick else EPOCHS)


def jobs_of(
    asked: Asked, dataset: str, sigma: float | None, values: dict[str, Any], *, extreme: bool = False, tuning: bool = False
) -> list[Job]:
    """A run for each seed. `values` are the fields that say how negatives are selected; `tuning` is for the split that is for
    choosing them alone. Samplers without memories have no place for false negatives: their sigma is None."""
    shown = " ".join(f"{name.split('_')[0]} {value}" for name, value in values.items())
    kind = ("" if sigma is None else f"sigma {sigma:g} ") + "extreme " * extreme + "tuning " * tuning
    fed = {} if sigma is None else {"noise": sigma}
    return [
        Job.of(
            train,
            f"{SETUPS[dataset].title} {kind}{shown} seed {seed}",
            dataset=dataset,
            values={**values, **fed, "seed": seed},
            epochs=epochs_of(asked),
            extreme=extreme,
            **({"tuning": True} if tuning else {}),
        )
        for seed in range(asked.n_seeds)
    ]


class _Tester(Callback):
    """Measures on test as training goes on: nothing is chosen here, so nothing can leak."""

    def __init__(self, split: Split, epochs: int) -> None:
        self.split, self.first = split, epochs - last_of(epochs)
        self.engine: Engine | None = None
        self.epochs: list[int] = []
        self.found: list[Evaluation] = []

    def on_epoch(self, record: EpochRecord) -> None:
        wanted = record.epoch <= EARLY or record.epoch > self.first or record.epoch % EVERY == 0
        if self.engine is not None and wanted:
            self.epochs.append(record.epoch)
            self.found.append(evaluate(self.engine.model, self.split, on="test", protocol="full", ks=(3,)))


def train(dataset: str, values: dict[str, Any], epochs: int, extreme: bool, tuning: bool = False) -> dict[str, Any]:
    """One run: curves of test metrics (points,), their means over the last epochs, by user too, and the label error ratio."""
    setup = SETUPS[dataset]
    split = load(f"{dataset}-tuning" if tuning else dataset)
    assert isinstance(split, Split)
    truth = None
    if extreme:
        fed = extended(split, setup.extreme)
        truth = Truth(split.test, Noise(fed, excluded=fed))
    by_code = BY_CODE if values.get("sampler", SRNS.name) == SRNS.name else {}
    config = make_config({**by_code, **values, "epochs": epochs, "valid_share": 0.0, "threads": 1}, preset=setup.preset)
    tester = _Tester(split, epochs)
    trainer = Trainer(config, split, callbacks=[tester], truth=truth)
    tester.engine = trainer.engine
    history = trainer.run().history
    curves = {"ndcg@3": [each["ndcg@3"] for each in tester.found], "recall@3": [_recall(each, split) for each in tester.found]}
    last = [each for epoch, each in zip(tester.epochs, tester.found, strict=True) if epoch > epochs - last_of(epochs)]
    return {
        "epochs": tester.epochs,
        "curves": curves,
        "last": {name: float(np.mean(values[-len(last) :])) for name, values in curves.items()},
        "users": np.mean([each.per_user["ndcg@3"] for each in last], axis=0).tolist(),
        "label_error_ratio": float(np.mean([record.sampler.get("label_error_ratio", 0.0) for record in history])),
    }


def popularity(dataset: str) -> dict[str, Any]:
    """What ranking by popularity gives on test: a height to see those of curves by."""
    split = load(dataset)
    assert isinstance(split, Split)
    trained = Trainer(make_config({"scorer": "popularity", "valid_share": 0.0}), split).run()
    return {"ndcg@3": evaluate(trained.model, split, on="test", protocol="full", ks=(3,))["ndcg@3"]}


def _recall(found: Evaluation, split: Split) -> float:
    """Recall@3 as in the authors' code: of at most 3 items, since no list of 3 can hold more."""
    assert split.test is not None
    return float(np.mean(found.per_user["precision@3"] * 3 / np.minimum(3, split.test.user_counts[found.users])))


def extended(split: Split, share: float) -> Interactions:
    """The false negatives of sigma 1, and random other records of test up to that share of it, the same in every run."""
    test, hidden = split.test, split.hidden[1.0]
    assert test is not None
    among = np.isin(_pairs(test), _pairs(hidden))
    others = np.random.default_rng(0).permutation(np.flatnonzero(~among))
    among[others[: max(0, round(share * len(test)) - among.sum())]] = True
    return test.select(among)


def _pairs(data: Interactions) -> NDArray[np.int64]:
    """One number for each interaction."""
    return data.users.astype(np.int64) * data.n_items + data.items


def weighted(
    asked: Asked, dataset: str, sigma: float, schedule: str, alpha: float, t0: int, *, tuning: bool = False, **more: Any
) -> list[Job]:
    """Runs that select by score and variance. T0 means nothing to a flat schedule and is left out: equal runs are one."""
    values: dict[str, Any] = {"variance_weight": alpha, "warmup": schedule}
    values |= ({"warmup_epochs": t0} if schedule != "flat" else {}) | more
    return jobs_of(asked, dataset, sigma, values, tuning=tuning)


def brief(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of runs beside a table or figure: what each came to."""
    return {
        "last": {name: [run["last"][name] for run in runs] for name in METRICS},
        "label_error_ratio": [run["label_error_ratio"] for run in runs],
    }


def in_order(claim: str, runs: dict[str, list[dict[str, Any]]]) -> Check:
    """Whether runs by each of `SCHEDULES` come in this order, and how far one is ahead of the next."""
    means = [float(np.mean([run["last"]["ndcg@3"] for run in runs[each]])) for each in SCHEDULES]
    shown = ", ".join(f"{each} {mean:.4f}" for each, mean in zip(SCHEDULES, means, strict=True))
    ahead = (
        f"{one} less {other} {told(difference_over_users(*([run['users'] for run in runs[each]] for each in (one, other))))}"
        for one, other in pairwise(SCHEDULES)
    )
    return Check(claim, descending(means), f"{shown}; over users, {', '.join(ahead)}")


def spread(values: list[float]) -> str:
    """Mean over seeds and their standard deviation, as the paper has it."""
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def notes(*, stale: bool = True) -> list[str]:
    """What a reader has to know: by what negatives were selected."""
    by_code = "Selection goes by raw scores of the last epoch, as in the authors' code; `srns train` selects by probability."
    by_text = "Selection goes by probability, as in the paper's equations and in `srns train`."
    return [by_code if stale else by_text]
