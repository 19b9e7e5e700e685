"""Table 1 of the paper, measured: the time per positive of each sampler as F, the catalogue and its candidates grow.

A cell is the fastest epoch of training GMF with that sampler on random interactions, per positive: all of a step is in it, the
sampler's part and the rest, so that uniform negatives, which cost nearly nothing, show what the rest is.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from srns.config import RunConfig
from srns.engines import make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.samplers import SAMPLERS, Uniform

# Time per batch of B positives as the paper has it, T being the time to score one instance.
PAPER = {"uniform": "B T", "nncf": "B^2 T", "aobpr": "B T", "irgan": "B |I| T", "advir": "B S1 T", "srns": "B (S1 + S2) T / E"}
DIM, ITEMS, CANDIDATES = 32, 4_000, 16
GRID = {"dim": (8, 32, 128), "items": (1_000, 4_000, 16_000), "candidates": (4, 16, 64)}
CANDIDATE_FIELDS = ("candidates", "expansion_size", "shared_negatives")  # what "candidates" means to a sampler
POSITIVES, USERS = 20_000, 1_000
SECONDS = 0.5  # spent on each cell, at least


class Cell(NamedTuple):
    """One measurement: microseconds per positive of an epoch."""

    sampler: str
    engine: str
    dim: int
    items: int
    candidates: int
    microseconds: float


def candidate_field(name: str) -> str | None:
    """The field of a sampler that says how many items it looks at."""
    return next((field for field in CANDIDATE_FIELDS if field in SAMPLERS[name].model_fields), None)


def measurable(name: str) -> bool:
    """Whether a sampler draws, and can do so here."""
    sampler = SAMPLERS.get(name)
    return sampler is None or (sampler.draws and not (sampler.needs_torch and importlib.util.find_spec("torch") is None))


def cells(samplers: Sequence[str], grid: Mapping[str, Sequence[int]] | None = None) -> Iterator[Cell]:
    """All measurements: each sampler, one dimension of the grid at a time."""
    unknown = [name for name in samplers if name not in SAMPLERS]
    if unknown:
        raise ConfigError(f"no sampler {unknown[0]!r}; there are: {', '.join(SAMPLERS)}")
    base = {"dim": DIM, "items": ITEMS, "candidates": CANDIDATES}
    points = {tuple({**base, axis: value}.values()) for axis, values in (grid or GRID).items() for value in values}
    for name in filter(measurable, samplers):
        for dim, items, candidates in sorted(points):
            if candidate_field(name) is None and candidates != CANDIDATES:
                continue
            yield _cell(name, dim, items, candidates)


def config_of(name: str, dim: int, candidates: int) -> RunConfig:
    """A run with one negative per positive, of so many candidates where the sampler has such."""
    values: dict[str, Any] = {"negatives": 1, "top": max(1, candidates // 2)} | {str(candidate_field(name)): candidates}
    own = {key: value for key, value in values.items() if key in SAMPLERS[name].model_fields}
    return RunConfig(sampler=name, dim=dim, loss="bpr", batch_size=1024, threads=1, **own)


def _cell(name: str, dim: int, n_items: int, candidates: int) -> Cell:
    generator = np.random.default_rng(0)
    pairs = np.unique(generator.integers(0, USERS, POSITIVES) * n_items + generator.integers(0, n_items, POSITIVES))
    users, items = IdMap.dense(USERS, "user"), IdMap.dense(n_items, "item")
    train = Interactions.from_pairs(pairs // n_items, pairs % n_items, user_ids=users, item_ids=items)
    field = candidate_field(name)
    engine = make_engine(config_of(name, dim, candidates), train)
    engine.run_epoch(0)  # compiles
    times: list[float] = []
    while sum(times) < SECONDS:
        start = time.perf_counter()
        engine.run_epoch(1 + len(times))
        times.append(time.perf_counter() - start)
    return Cell(name, engine.name, dim, n_items, candidates if field else 0, 1e6 * min(times) / len(train))


def summary(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """By sampler: its time at the middle of the grid, beside that of uniform, and by which power of each quantity it grows."""
    rows = []
    middle = {"dim": DIM, "items": ITEMS, "candidates": CANDIDATES}
    uniform = next((cell.microseconds for cell in found if cell.sampler == Uniform.name and _at(cell, middle)), math.nan)
    for name in dict.fromkeys(cell.sampler for cell in found):
        mine = [cell for cell in found if cell.sampler == name]
        here = next(cell for cell in mine if _at(cell, middle))
        row = {
            "sampler": name,
            "cost": SAMPLERS[name].cost,
            "paper": PAPER.get(name, ""),
            "engine": here.engine,
            "microseconds": here.microseconds,
            "to_uniform": here.microseconds / uniform,
        }
        for axis in middle:
            along = [cell for cell in mine if _at(cell, {key: value for key, value in middle.items() if key != axis})]
            row[f"power_of_{axis}"] = _power([getattr(cell, axis) for cell in along], [cell.microseconds for cell in along])
        rows.append(row)
    return rows


def _at(cell: Cell, values: dict[str, int]) -> bool:
    return all(getattr(cell, key) == value or (key == "candidates" and cell.candidates == 0) for key, value in values.items())


def _power(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(set(x)) > 1 else math.nan


def require_plots() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plots need matplotlib, which is not installed: pip install 'srns[report]'")


def plot(found: Sequence[Cell], path: Path) -> None:
    """Curves of the time per positive along each axis of the grid."""
    from matplotlib.figure import Figure

    middle = {"dim": DIM, "items": ITEMS, "candidates": CANDIDATES}
    titles = {"dim": "numbers per embedding, F", "items": "items, |I|", "candidates": "candidates per positive"}
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    panels = figure.subplots(1, len(titles), sharey=True)
    names = list(dict.fromkeys(cell.sampler for cell in found))
    for panel, (axis, title) in zip(panels, titles.items(), strict=True):
        fixed = {key: value for key, value in middle.items() if key != axis}
        for number, name in enumerate(names):
            along = sorted((getattr(c, axis), c.microseconds) for c in found if c.sampler == name and _at(c, fixed))
            if len(along) > 1:
                style = "-" if number < 10 else "--"
                panel.plot(*zip(*along, strict=True), style, color=f"C{number % 10}", marker="o", markersize=3, label=name)
        panel.set(xscale="log", yscale="log", xlabel=title)
        values = sorted({getattr(cell, axis) for cell in found if getattr(cell, axis)})
        panel.set_xticks(values, [f"{value:,}" for value in values])
        panel.set_xticks([], minor=True)
        panel.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("microseconds per positive")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
