"""A search in one figure: what mattered, the best so far, and the metric against the fields that mattered most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from srns.drawing import COLOURS, STYLE, new_figure
from srns.tuning.plans import Result
from srns.tuning.space import Entry, Range
from srns.tuning.trial import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIELDS = 7  # drawn at most: with the other two panels, three rows of three
LOOKS: dict[str, dict[str, Any]] = {
    "complete": {"color": COLOURS[0], "marker": "o", "s": 14},
    "pruned": {"color": COLOURS[7], "marker": "x", "s": 12, "linewidths": 0.8},
}


def draw(result: Result, metric: str, best: Trial) -> Figure:
    """Panels: importance of fields, where it is known; metric by trial; metric by field, the most important first."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return _draw(result, metric, best)


def _draw(result: Result, metric: str, best: Trial) -> Figure:
    importance, space = result.importance, result.space
    ended = [trial for trial in result.trials if trial.state in LOOKS and trial.value is not None]
    varied = [name for name in space if len({str(trial.params.get(name)) for trial in ended if name in trial.params}) > 1]
    fields = sorted(varied, key=lambda name: -importance.get(name, 0.0))[:FIELDS]
    panels = 1 + bool(importance) + len(fields)
    columns = 2 if panels == 4 else min(3, panels)
    rows = -(-panels // columns)
    figure, grid = new_figure(columns, rows, height=2.1, width=7.5)  # for a screen
    axes = list(grid.flat)
    for unused in axes[panels:]:
        unused.remove()
    if importance:
        _bars(axes.pop(0), importance, result.staged)
    _by_trial(axes.pop(0), ended, metric)
    for name, each in zip(fields, axes, strict=False):
        _by_field(each, ended, metric, name, space[name], best)
    return figure


def _bars(axes: Axes, importance: Mapping[str, float], staged: bool) -> None:
    names = list(importance)[::-1]
    axes.barh(names, [importance[name] for name in names], color=COLOURS[0], height=0.65)
    axes.set_title("what mattered")
    axes.set_xlabel("share of importance" + " in its stage" * staged)
    axes.grid(axis="y", visible=False)


def _points(axes: Axes, trials: Sequence[Trial], places: Sequence[float]) -> None:
    """A point for each trial, by how it ended."""
    for state, look in LOOKS.items():
        chosen = [(place, trial.value) for place, trial in zip(places, trials, strict=True) if trial.state == state]
        if chosen:
            axes.scatter(*zip(*chosen, strict=True), label=state, zorder=3, **look)


def _by_trial(axes: Axes, trials: Sequence[Trial], metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = [float(trial.number) for trial in trials]
    _points(axes, trials, numbers)
    complete = [(trial.number, trial.value) for trial in trials if trial.state == "complete"]
    if complete:
        places, values = zip(*complete, strict=True)
        axes.step(places, np.maximum.accumulate(values), where="post", color=COLOURS[1], label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"valid {metric}")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=0.8, handletextpad=0.3, handlelength=1.2)


def _log_scale(axes: Axes, span: float) -> None:
    """A log scale with ticks as people write numbers, some between the powers of ten where there are few of these."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if span > 300 else (1.0, 3.0) if span > 20 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _by_field(axes: Axes, trials: Sequence[Trial], metric: str, name: str, entry: Entry, best: Trial) -> None:
    from matplotlib.ticker import MaxNLocator

    having = [trial for trial in trials if name in trial.params]
    if isinstance(entry, Range):
        places = [float(trial.params[name]) for trial in having]
        at_best = [float(best.params[name])] if name in best.params else []
        if entry.log:
            _log_scale(axes, max(places) / min(places))
        elif entry.whole:
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        order = {str(value): place for place, value in enumerate(entry.values)}
        # Trials of equal settings would hide each other: each stands a little beside the last.
        shift = [0.06 * (number % 5 - 2) for number in range(len(having))]
        places = [order[str(trial.params[name])] + aside for trial, aside in zip(having, shift, strict=True)]
        at_best = [float(order[str(best.params[name])])] if name in best.params else []
        axes.set_xticks(range(len(order)), list(order))
    _points(axes, having, places)
    for place in at_best:
        axes.axvline(place, color=COLOURS[1], linewidth=0.8, linestyle="--")
    axes.set_title("dashed: the best", fontsize="small")
    axes.set_xlabel(name)
    axes.set_ylabel(f"valid {metric}")
