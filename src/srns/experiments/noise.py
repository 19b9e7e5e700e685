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

from srns.errors import ConfigError
from srns.experiments.noise_runs import train
from srns.experiments.outcome import PAPER_EPOCHS, Asked, Check, descending, difference_over_users, told
from srns.experiments.store import Job
from srns.presets import PRESETS

QUICK_EPOCHS = 60
METRICS = ("ndcg@3", "recall@3")
SCHEDULES = ("increase", "flat", "decrease")


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
    return asked.epochs or (QUICK_EPOCHS if asked.quick else PAPER_EPOCHS)


def jobs_of(
    asked: Asked, dataset: str, sigma: float | None, values: dict[str, Any], *, extreme: bool = False, tuning: bool = False
) -> list[Job]:
    """A run for each seed. `values` are the fields that say how negatives are selected; `tuning` is for the split that is for
    choosing them alone. Samplers without memories have no place for false negatives: their sigma is None."""
    setup = SETUPS[dataset]
    shown = " ".join(f"{name.split('_')[0]} {value}" for name, value in values.items())
    kind = ("" if sigma is None else f"sigma {sigma:g} ") + "extreme " * extreme + "tuning " * tuning
    fed = {} if sigma is None else {"noise": sigma}
    return [
        Job.of(
            train,
            f"{setup.title} {kind}{shown} seed {seed}",
            dataset=dataset,
            preset=setup.preset,
            values={**values, **fed, "seed": seed},
            epochs=epochs_of(asked),
            extreme=setup.extreme if extreme else None,
            **({"tuning": True} if tuning else {}),
        )
        for seed in range(asked.n_seeds)
    ]


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
