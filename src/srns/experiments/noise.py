"""The synthetic experiments of the paper (section 4.2, appendix C.3), which figures 2, 3 and 5 and two tables are made of.

One slot of every user's memory holds a false negative: a positive that was hidden in test. Like the authors' code, and unlike
the paper's text, memories and selection go by raw scores from the end of the last epoch (`criterion = "stale_scores"`), and
every positive renews its user's memory, since the published numbers came from there; figure 2 alone goes by the equations.
Test metrics rank all items that are not in train.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from srns.datasets import load
from srns.engines import Engine
from srns.errors import ConfigError
from srns.evaluation import Evaluation, evaluate
from srns.experiments.study import Asked, Job
from srns.presets import PRESETS, make_config
from srns.samplers import SRNS
from srns.splits import Split
from srns.trainer import Callback, EpochRecord, Trainer

EPOCHS, QUICK_EPOCHS = 400, 60
LAST, EVERY, EARLY = 50, 5, 20  # the last epochs are all measured, and averaged; the first too; between them, one in so many
METRICS = ("ndcg@3", "recall@3")


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
    seeds = 1 if asked.quick else asked.seeds
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
        for seed in range(seeds)
    ]


class _Tester(Callback):
    """Measures on test as training goes on: nothing is chosen here, so nothing can leak."""

    def __init__(self, split: Split, epochs: int) -> None:
        self.split, self.first = split, epochs - LAST
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
    learnt = split
    if extreme:  # as the text has it, memories cannot hold more of what is fed in, and may hold the rest of test
        learnt = dataclasses.replace(split, test=None, hidden={1.0: _share_of_test(split, setup.extreme)})
    config = make_config(
        {**_by_code(values), **values, "epochs": epochs, "valid_share": 0.0, "threads": 1}, preset=setup.preset
    )
    tester = _Tester(split, epochs)
    trainer = Trainer(config, learnt, callbacks=[tester])
    tester.engine = trainer.engine
    history = trainer.run().history
    curves = {"ndcg@3": [each["ndcg@3"] for each in tester.found], "recall@3": [_recall(each, split) for each in tester.found]}
    last = [each for epoch, each in zip(tester.epochs, tester.found, strict=True) if epoch > epochs - LAST]
    return {
        "epochs": tester.epochs,
        "curves": curves,
        "last": {name: float(np.mean(values[-len(last) :])) for name, values in curves.items()},
        "users": np.mean([each.per_user["ndcg@3"] for each in last], axis=0).tolist(),
        "label_error_ratio": float(np.mean([record.sampler.get("label_error_ratio", 0.0) for record in history])),
    }


def _by_code(values: dict[str, Any]) -> dict[str, Any]:
    """How the authors' code selects negatives and renews memories, unless `values` say that it goes by the paper's text."""
    if values.get("sampler", SRNS.name) != SRNS.name or "criterion" in values:
        return {}
    return {"criterion": "stale_scores", "update_after": "positive"}


def _recall(found: Evaluation, split: Split) -> float:
    """Recall@3 as in the authors' code: of at most 3 items, since no list of 3 can hold more."""
    assert split.test is not None
    return float(np.mean(found.per_user["precision@3"] * 3 / np.minimum(3, split.test.user_counts[found.users])))


def _share_of_test(split: Split, share: float) -> Any:
    """A random share of the test records, the same in every run."""
    assert split.test is not None
    return split.test.select(np.random.default_rng(0).random(len(split.test)) < share)


def weighted(
    asked: Asked, dataset: str, sigma: float, schedule: str, alpha: float, t0: int, *, tuning: bool = False, **more: Any
) -> list[Job]:
    """Runs that select by score and variance. T0 means nothing to a flat schedule and is left out: equal runs are one."""
    values: dict[str, Any] = {"variance_weight": alpha, "warmup": schedule}
    values |= ({"warmup_epochs": t0} if schedule != "flat" else {}) | more
    return jobs_of(asked, dataset, sigma, values, tuning=tuning)


def spread(values: list[float]) -> str:
    """Mean over seeds and their standard deviation, as the paper has it."""
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def notes(asked: Asked, *, stale: bool = True) -> list[str]:
    """What a reader has to know: whether this is a quick look, and by what negatives were selected."""
    quick = [f"A quick look: one seed, {epochs_of(asked)} epochs. It shows that things work, not how well."] * asked.quick
    by_code = "Selection goes by raw scores of the last epoch, as in the authors' code; `srns train` selects by probability."
    by_text = "Selection goes by probability, as in the paper's equations and in `srns train`."
    return [*quick, by_code if stale else by_text]
