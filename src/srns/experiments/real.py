"""The paper's experiments on real data (section 4.3): table 3, figures 4, 6 and 7 are made of runs like these.

Each is a run of `srns train` with the paper's preset, kept as a folder that other commands can read (`srns report`, `srns
evaluate`). Of the paper's three data sets, Ecommerce is private and its Pinterest could not be had; see `SETUPS`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from srns.evaluation import Comparison
from srns.experiments.outcome import Asked, difference_over_users
from srns.experiments.published import COMPARISON
from srns.experiments.real_runs import METRICS, train
from srns.experiments.store import Found, Job
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import load_as
from srns.significance import standard_error
from srns.splits import NO_TIMES, make_split

QUICK_EPOCHS = 10
SPEAKING = ("sampler", "scorer", "strategy")  # fields whose values say what they are of
ADVERSARIAL = ("irgan", "rns_as", "advir")  # start from a model that was trained with uniform negatives, as in the paper


class Setup(NamedTuple):
    """A data set of the paper, or what stands in for it: the preset, fields that say how it is read, a note, and how it is
    divided. Of files of the user's own: what `read` and `parted` them says about their columns, rows and users."""

    title: str
    preset: str
    values: dict[str, Any]
    note: str = ""
    divided: str = "each user's last item is left out for test, the one before for validation"
    read: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()


ONE_OUT = {"protocol": "paper"}
LAST = Setup._field_defaults["divided"]
RANDOM = "a random item of each user is left out for test, another for validation"
SETUPS = {
    "ml-1m-paper": Setup("Movielens-1m", "paper-ml-1m", {}, divided="test and validation are those of the paper's authors"),
    "pinterest": Setup(
        "Pinterest",
        "paper-pinterest",
        {**ONE_OUT, "split": "leave-one-out-random"},
        "pinterest: 37,501 users and 9,836 items, a relative of the paper's data (55,187 and 9,916), which could not be had; "
        "one random item per user is left out for test and one for validation. Numbers are not those of the published column.",
        RANDOM,
    ),
    "beauty": Setup(
        "Ecom: beauty",
        "paper-ecom",
        ONE_OUT,
        "beauty (Amazon reviews) stands in for the paper's Ecommerce, which is private; its published numbers are of other "
        "data. --dataset takes a file of your own instead.",
    ),
}
QUICK = {
    "ml-100k": Setup(
        "quick look: ML-100k",
        "paper-ml-1m",
        {**ONE_OUT, "min_weight": 4.0, "min_user": 6},
        "ML-100k takes the place of the paper's data.",
    )
}


def setups(asked: Asked, *, only: tuple[str, ...] = ()) -> dict[str, Setup]:
    """The data sets asked for; else those of the paper, of which a target may take `only` some."""
    if asked.datasets:
        return {name: SETUPS.get(name) or _of_file(asked.title(name), name, asked.reading) for name in asked.datasets}
    return QUICK if asked.quick else {name: setup for name, setup in SETUPS.items() if not only or name in only}


@cache  # several times per target; loading a file takes a while
def _of_file(title: str, name: str, reading: tuple[tuple[str, Any], ...]) -> Setup:
    """Data of the user's own, with the hyper-parameters that the paper found for its Ecommerce."""
    data = load_as(name, make_config(dict(reading)))
    timed = isinstance(data, Interactions) and data.time is not None
    note = f"{name}: hyper-parameters are those that the paper found for Ecommerce; published numbers are of other data."
    how = "leave-one-out" + "-random" * (not timed)
    values = {**dict(reading), **ONE_OUT, "split": how}
    if isinstance(data, Interactions):
        divided = LAST if timed else f"{RANDOM}, since no times were read"
        split = [each for each in make_split(data, how).notes[len(data.notes) :] if each != NO_TIMES]
    else:
        divided, split = f"{RANDOM}, in place of the split that the data bring", []
    return Setup(title, "paper-ecom", values, note, divided, tuple(data.notes), (divided, *split))


def notes(asked: Asked, *, only: tuple[str, ...] = ()) -> list[str]:
    """What a reader has to know of the data."""
    return [setup.note for setup in setups(asked, only=only).values() if setup.note]


def published(asked: Asked, dataset: str) -> dict[str, tuple[float, float, float]]:
    """The paper's `METRICS` of each method on these very data; none of data that stand in for the paper's."""
    return {} if setups(asked)[dataset].note else COMPARISON.get(dataset, {})


def jobs_of(asked: Asked, dataset: str, values: dict[str, Any], *, start: list[Job] | None = None) -> list[Job]:
    """A run for each seed. `values` say what is special about it; with `start`, it begins with the model of that run."""
    setup = setups(asked)[dataset] if dataset not in SETUPS else SETUPS[dataset]
    limit = asked.epochs or (QUICK_EPOCHS if asked.quick else None)
    told = {name: str(value) for name, value in values.items()}
    shown = " ".join(value if name in SPEAKING else f"{name.split('_')[0]} {value}" for name, value in told.items())
    jobs = []
    for seed in range(asked.n_seeds):
        mine = {**setup.values, **values, "seed": seed, "threads": 1}
        if limit is not None:
            mine["epochs"] = min(limit, mine.get("epochs", limit))
        mine = _plain(mine, setup.preset)
        arguments: dict[str, Any] = {"dataset": dataset, "preset": setup.preset, "values": mine}
        if start is not None:
            arguments["start"] = start[seed].key()
        jobs.append(Job.of(train, f"{setup.title} {shown} seed {seed}", keeps=True, **arguments))
    return jobs


def _plain(values: dict[str, Any], preset: str) -> dict[str, Any]:
    """The same run in as few values as name it, so that targets which ask for the same run share it."""
    config = make_config(values, preset=preset)
    values = {**values, "sampler": config.sampler}
    for name in values.keys() - {"sampler", "seed"}:
        rest = {key: value for key, value in values.items() if key != name}
        values = rest if make_config(rest, preset=preset) == config else values
    return values


def from_uniform(asked: Asked, found: Found, dataset: str, values: dict[str, Any]) -> list[Job]:
    """Runs that begin with models trained with uniform negatives; first those, until they are found."""
    start = jobs_of(asked, dataset, {"sampler": "uniform"})
    return jobs_of(asked, dataset, values, start=start) if all(job in found for job in start) else start


def means(found: list[dict[str, Any]], metrics: tuple[str, ...] = METRICS) -> tuple[list[float], list[float]]:
    """Test metrics: mean over seeds and its standard error (0 where there is one seed)."""
    values = np.array([[each["test"][name] for name in metrics] for each in found])
    errors = np.nan_to_num([standard_error(column) for column in values.T])
    return values.mean(axis=0).tolist(), errors.tolist()


def ahead(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], metric: str) -> Comparison:
    """How far some runs are ahead of others in a metric of `PAIRED`, over users; a user's is the mean over runs."""
    return difference_over_users(*([run["users"][metric] for run in runs] for runs in (ours, theirs)))


def brief(run: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run beside a table or figure: all but what it has of every user, and what is the same for all."""
    return {name: value for name, value in run.items() if name not in ("users", "popularity")}


def number(mean: float, error: float = 0.0) -> str:
    """.1863 ± .0013"""
    return f"{mean:.4f}".replace("0.", ".", 1) + (f" ± {error:.4f}".replace("0.", ".", 1) if error else "")
