"""The part of a report on test data: metrics with intervals, and which differences are significant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from srns.comparison import Configuration, Estimate, Group
from srns.markup import DASH
from srns.page import Cell, Page, Row
from srns.significance import CONFIDENCE, RESAMPLES

INTERVAL = f"{CONFIDENCE:.0%} interval"
DECIMALS = 4  # of metrics, in tables and bars alike
FEW_SEEDS = 3  # below which the spread over seeds is anyone's guess
MARKS = {"better": "good", "worse": "bad"}


def add(page: Page, group: Group, name: str) -> None:
    """The section on accuracy of one group."""
    metric, each, reference = group.metric, best_first(group), group.reference
    page.section(f"Accuracy{name}")
    if not reference.estimates:
        page.text("The split has no test part: there is nothing to measure.")
        return
    users = len(group.runs[0].per_user[metric])
    page.text(f"Test data, protocol {group.protocol}, {users:,} users. {metric} is what chose the epochs on validation data.")
    compared = ["difference", f"{INTERVAL} of it", "verdict", "p", "p by Holm"] if len(each) > 1 else []
    rest = [f"{INTERVAL} of test", "± over seeds", f"valid {metric}", "seeds"]
    best = max(configuration.estimates[metric].mean for configuration in each)
    rows = [_row(configuration, group, best) for configuration in each]
    against = f", and differences from “{reference.label}”" if compared else ""
    page.table(["configuration", f"test {metric}", *compared, *rest], rows, f"{metric}: means over users and seeds{against}")
    page.bars(
        [configuration.label for configuration in each],
        [configuration.estimates[metric].mean for configuration in each],
        [configuration.estimates[metric].low for configuration in each],
        [configuration.estimates[metric].high for configuration in each],
        f"{metric} on test, with {INTERVAL}s over users",
        decimals=DECIMALS,
    )
    page.points(_how_sure(group))
    with page.details("All metrics"):
        page.text(f"Means over users and seeds; in brackets, {INTERVAL}s over users.")
        for k in dict.fromkeys(name.partition("@")[2] for name in reference.estimates):
            _metrics(page, group, [other for other in reference.estimates if other.partition("@")[2] == k], k)


def _row(configuration: Configuration, group: Group, best: float) -> Row:
    found, difference, several = configuration.estimates[group.metric], configuration.difference, len(group.configurations) > 1
    compared: list[str | float | Cell] = ["", "", Cell("reference", mark="faint"), "", ""] if several else []
    if difference is not None:
        compared = [
            Cell(f"{difference.difference:+.{DECIMALS}f}", difference.difference),
            Cell(_between(difference.low, difference.high, "+"), difference.low),
            Cell(configuration.verdict, mark=MARKS.get(configuration.verdict, "faint")),
            _p(difference.p_value),
            _p(configuration.p_holm),
        ]
    return [
        configuration.label,
        Cell(f"{found.mean:.{DECIMALS}f}", found.mean, "best" if several and found.mean == best else ""),
        *compared,
        Cell(_between(found.low, found.high), found.low),
        _four(found.error),
        _four(configuration.validation(group.metric)),
        Cell(seeds([run.config.seed for run in configuration.runs]), len(configuration.runs)),
    ]


def best_first(group: Group) -> list[Configuration]:
    """Configurations by their metric on test; in the order of the runs where it was not measured, or is the same."""
    if not group.reference.estimates:
        return group.configurations
    return sorted(group.configurations, key=lambda each: -np.nan_to_num(each.estimates[group.metric].mean, nan=-np.inf))


def seeds(found: Sequence[int]) -> str:
    """How many seeds, and which.

    >>> seeds([0]), seeds([1, 0, 2]), seeds([*range(10)])
    ('1 (seed 0)', '3 (0, 1, 2)', '10 (0 to 9)')
    """
    found = sorted(found)
    if len(found) == 1:
        return f"1 (seed {found[0]})"
    in_a_row = len(found) > 4 and found[-1] - found[0] == len(found) - 1
    return f"{len(found)} ({f'{found[0]} to {found[-1]}' if in_a_row else ', '.join(map(str, found))})"


def _four(value: float) -> Cell:
    return Cell(f"{value:.{DECIMALS}f}" if np.isfinite(value) else DASH, value)


def _p(value: float) -> Cell:
    return Cell(f"{value:.3f}" if value >= 0.001 else "< 0.001", value)


def _between(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.{DECIMALS}f} to {high:{sign}.{DECIMALS}f}" if np.isfinite(low) and np.isfinite(high) else DASH


def _how_sure(group: Group) -> list[str]:
    """What the numbers of the table are, in words."""
    said = [
        f"Intervals: percentile bootstrap over users, {RESAMPLES:,} resamples. They are about which users there were, not "
        "about the seed.",
    ]
    if any(len(configuration.runs) > 1 for configuration in group.configurations):
        said.append("± over seeds: the standard error of the mean. Per user, the mean over seeds is what is compared.")
    if len(group.configurations) > 1:
        rule = "as asked for" if group.asked else "which is best on validation data: that choice has not seen the test data"
        said.append(f"Differences are from “{group.reference.label}”, {rule}. They are paired user by user; p is two-sided.")
        if any(len(configuration.runs) < FEW_SEEDS for configuration in group.configurations):
            said.append(
                f"Verdicts are about the models that were trained. Where a configuration has fewer than {FEW_SEEDS} seeds, "
                "others could turn out otherwise by more than these intervals say."
            )
    if (n := len(group.configurations) - 1) > 1:
        said.append(
            f"Of {n} comparisons some can look significant by chance. The verdict goes by p after Holm's correction, below "
            f"{1 - CONFIDENCE:.2f}; the intervals are not corrected."
        )
    return said


def _metrics(page: Page, group: Group, names: Sequence[str], k: str) -> None:
    """The metrics of lists of length k, or none, beside those of popularity; and under full ranking where that is another."""

    def cell(found: Estimate) -> Cell:
        interval = f" ({_between(found.low, found.high)})" if np.isfinite(found.low) else ""
        return Cell(f"{found.mean:.{DECIMALS}f}{interval}", found.mean)

    rows: list[Row] = [[c.label, *(cell(c.estimates[name]) for name in names)] for c in best_first(group)]
    popular = [
        Cell("what is popular, for everyone", mark="faint"),
        *_saved(group.configurations[0], "metrics_popularity", names),
    ]
    caption = f"Lists of {k}" if k else "The whole ranking"
    page.table(["configuration", *names], [*rows, popular], f"{caption}, protocol {group.protocol}")
    if group.protocol == "paper":
        full: list[Row] = [[c.label, *_saved(c, "metrics_full", names)] for c in best_first(group)]
        page.table(["configuration", *names], full, f"{caption}, full ranking, as the records of the runs have it")


def _saved(configuration: Configuration, kind: str, names: Sequence[str]) -> list[Cell]:
    """Means over seeds of metrics that are in the records of runs."""
    return [_four(float(np.mean([run.record.get(kind, {}).get(name, np.nan) for run in configuration.runs]))) for name in names]
