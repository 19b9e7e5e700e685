"""The part of a report on training: curves over epochs and seconds, what samplers did, time and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from srns.comparison import Configuration, Group, Run
from srns.markup import DASH
from srns.page import Cell, Curve, Page, Row
from srns.samplers.observations import QUANTILES
from srns.trainer import EpochRecord

Float64 = NDArray[np.float64]
Pick = Callable[[EpochRecord], float | None]
BANDS = "Lines are means over seeds, bands reach from the lowest seed to the highest."
COSTS = "Runs, time and memory"
ENDS = "Where seeds took different numbers of epochs, a line ends with the first of them."
# What samplers say of an epoch (`srns.samplers.observations`) beside quantiles of P_pos: heading, and what it is.
OBSERVED = {
    "label_error_ratio": (
        "label errors",
        "Share of drawn negatives that are {}. More is not worse by itself: samplers that find hard items hit more of them.",
    ),
    "std_over_mean": ("std / mean of P_pos", "How much P_pos of drawn negatives wavered over epochs, relative to its mean."),
    "turnover": ("turnover of memories", "Share of the candidates in memory that updates replaced in an epoch."),
}
# What of a user counts as a label error: `srns.terms.truth_of`.
KNOWN, KNOWN_OF_NOISE = (
    "validation items of the user (test items are not looked up)",
    "test items of the user that the noise experiment hid",
)


def duration(seconds: float) -> str:
    """
    >>> duration(0.00421), duration(4.217), duration(125), duration(7300)
    ('4.21 ms', '4.22 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def by_epoch(configuration: Configuration, pick: Pick) -> Float64:
    """(runs, epochs) what `pick` takes of each record; NaN where it is not there, or a run has ended."""
    found = np.full((len(configuration.runs), max(len(run.history) for run in configuration.runs)), np.nan)
    for row, run in zip(found, configuration.runs, strict=True):
        row[: len(run.history)] = [np.nan if (value := pick(record)) is None else value for record in run.history]
    return found


def over_seeds(values: Float64) -> tuple[Float64, Float64, Float64]:
    """Mean, lowest and highest (epochs,) over those of the runs (runs, epochs) that have values; NaN where one of these has
    none, as where it has ended: the mean of the others would jump there."""
    values = np.where(np.isfinite(values), values, np.nan)
    some = ~np.isnan(values).all(axis=1)
    values = values[some] if some.any() else values
    return values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def curve(configuration: Configuration, pick: Pick, *, by_time: bool = False) -> Curve | None:
    """What `pick` takes of the epochs of a configuration: mean over seeds and range; None where there is nothing."""
    mean, low, high = over_seeds(by_epoch(configuration, pick))
    x = _seconds(configuration) if by_time else np.arange(1.0, len(mean) + 1)
    there = np.isfinite(mean) & np.isfinite(x)
    if not there.any():
        return None
    band = (low[there].tolist(), high[there].tolist()) if len(configuration.runs) > 1 else (None, None)
    return Curve(configuration.label, x[there].tolist(), mean[there].tolist(), *band)


def _seconds(configuration: Configuration) -> Float64:
    """(epochs,) how long training had taken by the end of each epoch; NaN where a seed had ended."""
    seconds = over_seeds(by_epoch(configuration, lambda record: record.seconds))[0]
    seconds[0] = min(seconds[0], np.nanmedian(seconds))  # what compiled is no part of the method
    return np.cumsum(seconds)


def _ends(group: Group) -> str:
    """That lines end early, where some do."""
    return ENDS if any(len({len(run.history) for run in each.runs}) > 1 for each in group.configurations) else ""


def _add(page: Page, group: Group, pick: Pick, y: str, said: str, by_time: bool = False) -> None:
    curves = [found for each in group.configurations if (found := curve(each, pick, by_time=by_time)) is not None]
    if curves:
        bands = BANDS if any(found.low is not None for found in curves) else ""
        caption = " ".join(filter(None, (said, bands, _ends(group))))
        page.curves(curves, "seconds of training" if by_time else "epoch", y, caption)


def add_curves(page: Page, group: Group, name: str) -> None:
    """The section on how training went."""
    metric = group.metric
    page.section(f"Learning curves{name}")
    if not any(len(run.history) > 1 for run in group.runs):
        page.text("Each of these models was made in one step: there is no curve to draw.")
        return

    def valid(record: EpochRecord) -> float | None:
        return record.valid.get(metric)

    _add(page, group, valid, f"valid {metric}", f"{metric} on validation data.")
    said = (
        "The same against time, without validation; the first epoch, which may compile code, counts as the median one at most."
    )
    _add(page, group, valid, f"valid {metric}", said, by_time=True)
    with page.details("Loss"):
        said = "Mean training loss. Different losses, samplers and numbers of negatives give losses that cannot be compared."
        _add(page, group, lambda record: record.loss, "loss", said)


def observed(name: str) -> Pick:
    return lambda record: record.sampler.get(name)


def add_sampling(page: Page, group: Group, name: str) -> None:
    """The section on what samplers drew, where they said so."""
    seen = {key for run in group.runs for record in run.history for key in record.sampler}
    if not seen:
        return
    page.section(
        f"What the samplers did{name}", "As observed while they trained; a sampler that does not score has less to say."
    )
    low, middle, high = QUANTILES
    curves = []
    for each in group.configurations:
        found = {key: over_seeds(by_epoch(each, observed(key)))[0] for key in QUANTILES}
        there = np.isfinite(found[middle])
        if there.any():
            x = (np.flatnonzero(there) + 1.0).tolist()
            curves.append(Curve(each.label, x, *(found[key][there].tolist() for key in (middle, low, high))))
    if curves:
        page.curves(
            curves,
            "epoch",
            "P_pos",
            "How hard the drawn negatives were: P_pos = sigmoid(score of the negative - score of the positive). Lines are "
            f"medians, bands reach from the 5% to the 95% quantile. {_ends(group)}".strip(),
        )
    for key in [*OBSERVED, *sorted(seen - OBSERVED.keys() - QUANTILES.keys())]:
        heading, said = OBSERVED.get(key, (key.replace("_", " "), ""))
        known = {KNOWN if run.config.noise is None else KNOWN_OF_NOISE for run in group.runs}
        said = said.format(", or of some runs ".join(sorted(known, reverse=True)))
        _add(page, group, observed(key), heading, said)


def add_costs(page: Page, runs: Sequence[Run], groups: Sequence[str] = ()) -> None:
    """The section on time and memory, run by run; of several groups, with the name of that of each run."""
    page.section(COSTS, "Times are of training alone; an epoch is the median, which leaves out what compiled.")
    rows: list[Row] = []
    for number, run in enumerate(runs):
        record, metric = run.record, run.config.metric
        epoch, peak = (float(record.get(name, np.nan)) for name in ("seconds_per_epoch", "peak_rss_mb"))
        tested = run.metrics.get(metric, np.nan)
        kept = record["best_epoch"] if np.isfinite(run.validation(metric)) else "last"
        rows.append(
            [
                str(run.folder),
                *groups[number : number + 1],
                Cell(str(run.config.seed), run.config.seed),
                Cell(f"{metric} {run.validation(metric):.4f}" if np.isfinite(run.validation(metric)) else DASH),
                Cell(f"{tested:.4f}" if np.isfinite(tested) else DASH, tested),
                Cell(f"{kept} of {len(run.history)}", record["best_epoch"]),
                Cell(duration(epoch) if np.isfinite(epoch) else DASH, epoch),
                Cell(duration(run.seconds), run.seconds),
                Cell(f"{peak:,.0f} MB" if np.isfinite(peak) else DASH, peak),
                str(record.get("engine", DASH)) + (f", {record['shards']} ranks" if record.get("shards", 1) > 1 else ""),
                str(record["environment"].get("date", DASH)),
            ]
        )
    columns = [
        "run",
        *(["group"] if groups else []),
        "seed",
        "validation",
        "test",
        "best epoch",
        "time per epoch",
        "in all",
        "memory at most",
        "engine",
        "date",
    ]
    page.table(columns, rows)
