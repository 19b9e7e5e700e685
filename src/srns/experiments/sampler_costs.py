"""Table 1 of the paper, measured: what `srns.experiments.table1_runs` found, as a table beside the paper's, and as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from srns.drawing import look, new_figure
from srns.experiments.table1_runs import MIDDLE, Cell
from srns.samplers import SAMPLERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Time per batch of B positives as the paper has it, T being the time to score one instance.
PAPER = {"uniform": "B T", "nncf": "B^2 T", "aobpr": "B T", "irgan": "B |I| T", "advir": "B S1 T", "srns": "B (S1 + S2) T / E"}
FORMULAS = {"cost per positive": "cost", "paper, per batch": "paper"}


def summary(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """By sampler: its time at the middle of the grid, beside that of uniform, and by which power of each quantity it grows."""
    rows = []
    for name in dict.fromkeys(cell.sampler for cell in found):
        mine = [cell for cell in found if cell.sampler == name]
        here = next(cell for cell in mine if _at(cell))
        row = {
            "sampler": name,
            "cost": SAMPLERS[name].cost,
            "paper": PAPER.get(name, ""),
            "engine": here.engine,
            "microseconds": here.microseconds,
            "to_uniform": here.microseconds / here.uniform,
        }
        for axis in MIDDLE:
            along = [cell for cell in mine if _at(cell, axis)]
            row[f"power_of_{axis}"] = _power([getattr(cell, axis) for cell in along], [cell.microseconds for cell in along])
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]], formulas: bool) -> tuple[list[str], list[list[str]]]:
    """The summary as columns and cells; with the formulas of the cost, for which a terminal of 80 columns has no room."""
    powers = {"F^": "power_of_dim", "|I|^": "power_of_items", "N^": "power_of_candidates"}
    costs = FORMULAS if formulas else {}
    cells = [
        [r["sampler"], *(r[name] for name in costs.values()), r["engine"], f"{r['microseconds']:.2f}", f"{r['to_uniform']:.1f}"]
        + ["" if math.isnan(r[power]) else f"{r[power]:.2f}" for power in powers.values()]
        for r in rows
    ]
    return ["sampler", *costs, "engine", "us", "x uniform", *powers], cells


def formulas(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Those formulas by themselves."""
    return ["sampler", *FORMULAS], [[row["sampler"], *(row[name] for name in FORMULAS.values())] for row in rows]


def _at(cell: Cell, free: str = "") -> bool:
    """Whether a cell is at the middle of the grid in all but the axis that is `free`."""
    fixed = {axis: value for axis, value in MIDDLE.items() if axis != free}
    return all(getattr(cell, axis) == value or (axis, cell.candidates) == ("candidates", 0) for axis, value in fixed.items())


def _power(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(set(x)) > 1 else math.nan


def plot(found: Sequence[Cell]) -> Figure:
    """Curves of the time per positive along each axis of the grid."""
    titles = {"dim": "numbers per embedding, F", "items": "items, |I|", "candidates": "candidates per positive"}
    figure, panels = new_figure(len(titles), height=4.0, sharey=True)
    names = list(dict.fromkeys(cell.sampler for cell in found))
    for panel, (axis, title) in zip(panels[0], titles.items(), strict=True):
        for number, name in enumerate(names):
            along = sorted((getattr(c, axis), c.microseconds) for c in found if c.sampler == name and _at(c, axis))
            if len(along) > 1:
                panel.plot(*zip(*along, strict=True), label=name, **look(number))
        panel.set(xscale="log", yscale="log", xlabel=title)
        values = sorted({getattr(cell, axis) for cell in found if getattr(cell, axis)})
        panel.set_xticks(values, [f"{value:,}" for value in values])
        panel.set_xticks([], minor=True)
    panels[0, 0].set_ylabel("microseconds per positive")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure
