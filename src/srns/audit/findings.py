"""From the trainings of an audit to what they say: ratios with intervals, comparisons, and a recommendation.

Intervals are 95 %, from resamples of groups of users, the same resamples for all samplers, so that two can be compared. A
sampler is called better than another only if the interval of the difference excludes 0, every seed agrees, and the difference
is worth having: at least WORTH of the other's metric. Since the best of several is looked for, luck has as many chances: these
intervals are wider, by Bonferroni's rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from srns.significance import CONFIDENCE, RESAMPLES

Floats = NDArray[np.float64]
WORTH = 0.01
FILLED = {"chance": "positives", "judged": "positives"}  # which groups there are: those of users with any positives


class Measured(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float


def over_seeds(values: Floats) -> Measured:
    """The mean of a number that each seed gives once, with its interval by Student's t; no interval where there is one seed."""
    if len(values) < 2:
        return Measured(float(np.mean(values)), np.nan, np.nan)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * stats.sem(values))
    mean = float(np.mean(values))
    return Measured(mean, mean - half, mean + half)


@dataclass(frozen=True)
class Contestant:
    """A way to draw negatives: its name, the fields of a run that make it, and the weight of variance where it has one."""

    name: str
    values: Mapping[str, Any]
    variance_weight: float | None = None

    @property
    def kind(self) -> str:
        """The name without the weight: what --sampler calls it."""
        return self.name.removesuffix(f" {self.variance_weight:g}") if self.variance_weight is not None else self.name


@dataclass(frozen=True)
class Finding:
    """What was found of one contestant, over all seeds.

    `hidden` is the share of drawn negatives that are hidden positives, `to_chance` the same over what uniform negatives would
    give, `errors` the share that users like by their answers, where there are any. `metric` is that of the hidden positives
    that judge, `to_uniform` how far it is ahead of uniform negatives, `behind` how far behind the best, and `worse` whether
    that is sure and matters.
    """

    contestant: Contestant
    hidden: Measured
    to_chance: Measured
    errors: Measured | None
    metric: Measured
    to_uniform: Measured | None
    behind: Measured
    worse: bool
    runs: Sequence[dict[str, Any]]

    def late(self, *path: str) -> Floats:
        """Means over the second half of training of what `srns.negatives.Watch` found, by seed: (seeds, ...)."""
        by_seed = []
        for run in self.runs:
            looks = run["looks"][len(run["looks"]) // 2 :]
            for name in path:
                looks = [look[name] for look in looks]
            by_seed.append(np.mean(np.asarray(looks, float), axis=0))
        return np.asarray(by_seed)


class Weight(NamedTuple):
    """The lowest variance weight that none is better than, the one of the highest metric, and how much that has over 0."""

    chosen: float
    best: float
    gain: Measured


@dataclass(frozen=True)
class Recommendation:
    """The sampler with the highest metric, the plainest that none is better than, others that none is better than, and the
    same of variance weights, where they were compared with selection by score alone."""

    best: Finding
    chosen: Finding
    as_good: tuple[str, ...]
    weight: Weight | None


@dataclass(frozen=True)
class Findings:
    facts: dict[str, Any]
    each: tuple[Finding, ...]
    recommendation: Recommendation
    notes: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether one sampler was looked at, with whatever weights: then there is nothing to recommend it over."""
        return len({each.contestant.kind for each in self.each}) == 1

    def named(self, name: str) -> Finding | None:
        return next((each for each in self.each if each.contestant.name == name), None)


class Sums:
    """Sums of a contestant over seeds, by group of users or of answers."""

    def __init__(self, runs: Sequence[dict[str, Any]]) -> None:
        self.runs = runs

    def __getitem__(self, name: str) -> Floats:
        return np.asarray(np.sum([run[name] for run in self.runs], axis=0))

    def resampled(self, above: str, below: str) -> tuple[float, Floats]:
        """The ratio of two sums, and the same of groups drawn with replacement: the same draws for every contestant."""
        one, other = self[above], self[below]
        filled = np.flatnonzero(self[FILLED.get(below, below)])
        drawn = _draws(len(filled))
        sums = drawn @ np.stack([one[filled], other[filled]], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(one.sum() / other.sum()), sums[:, 0] / sums[:, 1]

    def ratio(self, above: str, below: str) -> Measured:
        return _measured(*self.resampled(above, below))


@lru_cache(maxsize=4)
def _draws(n: int) -> Floats:
    """How often each of n groups is drawn in each resample, (RESAMPLES, n)."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)


def _measured(value: float, resampled: Floats, among: int = 1) -> Measured:
    """The value and its interval, which holds for so many comparisons together."""
    told = resampled[np.isfinite(resampled)]
    beyond = (1 - CONFIDENCE) / 2 / max(1, among)
    low, high = np.quantile(told, [beyond, 1 - beyond]) if len(told) else (np.nan, np.nan)
    return Measured(value, float(low), float(high))


def conclude(contestants: Sequence[Contestant], runs: Mapping[str, Sequence[dict[str, Any]]]) -> Findings:
    """What the trainings `runs` of each contestant, by name, say together."""
    first = next(iter(runs.values()))
    sums = {name: Sums(mine) for name, mine in runs.items()}
    metrics = {name: each.ratio("metric", "judged").value for name, each in sums.items()}
    best = max(metrics, key=lambda name: metrics[name])
    found = []
    for contestant in contestants:
        name, mine = contestant.name, sums[contestant.name]
        behind, worse = _difference(sums[best], mine, len(contestants) - 1)
        found.append(
            Finding(
                contestant,
                mine.ratio("drawn", "positives"),
                mine.ratio("drawn", "chance"),
                mine.ratio("asked_liked", "asked") if "asked" in first[0] else None,
                mine.ratio("metric", "judged"),
                _difference(mine, sums["uniform"], 1)[0] if "uniform" in sums and name != "uniform" else None,
                behind,
                worse and name != best,
                runs[name],
            )
        )
    facts = {**first[0]["facts"], "seeds": len(first)}
    notes = tuple(dict.fromkeys(note for run in first for note in run["notes"]))
    return Findings(facts, tuple(found), _recommend(found, sums), notes)


def _difference(one: Sums, other: Sums, among: int) -> tuple[Measured, bool]:
    """How much more of the metric `one` has than `other`, and whether that is sure, among so many comparisons, and worth
    having."""
    (value, resampled), (base, base_resampled) = (each.resampled("metric", "judged") for each in (one, other))
    found = _measured(value - base, resampled - base_resampled, among)
    by_seed = [
        sum(a["metric"]) / max(1.0, sum(a["judged"])) - sum(b["metric"]) / max(1.0, sum(b["judged"]))
        for a, b in zip(one.runs, other.runs, strict=True)
    ]
    return found, found.low > 0 and min(by_seed) > 0 and found.value >= WORTH * base


def _recommend(found: Sequence[Finding], sums: Mapping[str, Sums]) -> Recommendation:
    """The first of those that none is better than: contestants are listed from plain to elaborate."""
    best = max(found, key=lambda each: each.metric.value)
    good = [each for each in found if not each.worse]
    return Recommendation(best, good[0], tuple(each.contestant.name for each in good[1:]), _weight(found, sums))


def _weight(found: Sequence[Finding], sums: Mapping[str, Sums]) -> Weight | None:
    """The lowest of the variance weights that none is better than; 0 is selection by score alone."""
    family = sorted(
        (each.contestant for each in found if each.contestant.variance_weight is not None),
        key=lambda each: each.variance_weight or 0.0,
    )
    if len(family) < 2 or family[0].variance_weight != 0:
        return None
    best = max(family, key=lambda each: sums[each.name].resampled("metric", "judged")[0])
    behind = {each.name: _difference(sums[best.name], sums[each.name], len(family) - 1) for each in family if each is not best}
    lowest = next(each for each in family if each is best or not behind[each.name][1])
    gain = behind[family[0].name][0] if best is not family[0] else Measured(0.0, 0.0, 0.0)
    return Weight(lowest.variance_weight or 0.0, best.variance_weight or 0.0, gain)
