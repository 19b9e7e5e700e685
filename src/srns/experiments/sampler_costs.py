"""Table 1 of the paper, measured: the time per positive of each sampler as F, the catalogue and its candidates grow.

A cell is an epoch of training GMF with that sampler on random interactions, in processor time per positive: all of a step is in
it, the sampler's part and the rest, so that uniform negatives, which cost nearly nothing, show what the rest is. The cells of a
sampler are measured in turn, several times over, and uniform negatives with them: a busy moment of the machine hits all of them
alike, and is no part of their medians.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from srns.config import RunConfig
from srns.drawing import look, new_figure
from srns.engines import make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.samplers import SAMPLERS, Uniform

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Time per batch of B positives as the paper has it, T being the time to score one instance.
PAPER = {"uniform": "B T", "nncf": "B^2 T", "aobpr": "B T", "irgan": "B |I| T", "advir": "B S1 T", "srns": "B (S1 + S2) T / E"}
MIDDLE = {"dim": 32, "items": 4_000, "candidates": 16}
GRID = {"dim": (8, 32, 128), "items": (1_000, 4_000, 16_000), "candidates": (4, 16, 64)}
CANDIDATE_FIELDS = ("candidates", "expansion_size", "shared_negatives")  # what "candidates" means to a sampler
POSITIVES, USERS = 20_000, 1_000
PART_OF = {"advir": {"perturbation": 0.01}}  # fields of the run without which a method is another; the paper's value
ROUNDS, SECONDS = 3, 0.5  # how often each cell has its turn, and how long all of them together take at least


class Cell(NamedTuple):
    """One measurement: microseconds per positive of an epoch, and what they are of uniform negatives at the middle of the grid,
    measured in turn with it."""

    sampler: str
    engine: str
    dim: int
    items: int
    candidates: int
    microseconds: float
    uniform: float


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
    points = {tuple({**MIDDLE, axis: value}.values()) for axis, values in (grid or GRID).items() for value in values}
    for name in filter(measurable, samplers):
        varied = candidate_field(name) is not None
        yield from _in_turn(name, [point for point in sorted(points) if varied or point[2] == MIDDLE["candidates"]])


def config_of(name: str, dim: int, candidates: int) -> RunConfig:
    """A run with one negative per positive, of so many candidates where the sampler has such."""
    values: dict[str, Any] = {"negatives": 1, "top": max(1, candidates // 2)} | {str(candidate_field(name)): candidates}
    own = {key: value for key, value in values.items() if key in SAMPLERS[name].model_fields}
    return RunConfig(sampler=name, dim=dim, loss="bpr", batch_size=1024, threads=1, **own, **PART_OF.get(name, {}))


class _Training:
    """A run whose epochs are timed."""

    def __init__(self, name: str, dim: int, n_items: int, candidates: int) -> None:
        generator = np.random.default_rng(0)
        pairs = np.unique(generator.integers(0, USERS, POSITIVES) * n_items + generator.integers(0, n_items, POSITIVES))
        users, items = IdMap.dense(USERS, "user"), IdMap.dense(n_items, "item")
        train = Interactions.from_pairs(pairs // n_items, pairs % n_items, user_ids=users, item_ids=items)
        config = config_of(name, dim, candidates)
        self.engine, self.n, self.epoch = make_engine(config, train), len(train), 0
        self.turns: list[float] = []
        for _ in range(1 + getattr(config.make_sampler(), "history_epochs", 0)):  # compiles; later epochs have a whole past
            self._next()

    def _next(self) -> float:
        start = time.process_time()
        self.engine.run_epoch(self.epoch)
        self.epoch += 1
        return time.process_time() - start

    def turn(self) -> None:
        """Epochs until its time is up, at least one."""
        times: list[float] = []
        while sum(times) < SECONDS / ROUNDS:
            times.append(self._next())
        self.turns.append(float(np.median(times)))

    @property
    def microseconds(self) -> float:
        return 1e6 * float(np.median(self.turns)) / self.n


def _in_turn(name: str, points: Sequence[tuple[int, ...]]) -> Iterator[Cell]:
    """All cells of a sampler, at `points` (F, items, candidates)."""
    uniform = Uniform.name, tuple(MIDDLE.values())
    trainings = {key: _Training(key[0], *key[1]) for key in dict.fromkeys([uniform, *((name, point) for point in points)])}
    for _ in range(ROUNDS):
        for each in trainings.values():
            each.turn()
    for point in points:
        mine, (dim, items, candidates) = trainings[name, point], point
        shown = candidates if candidate_field(name) else 0
        yield Cell(name, mine.engine.name, dim, items, shown, mine.microseconds, trainings[uniform].microseconds)


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
    costs = {"cost per positive": "cost", "paper, per batch": "paper"} if formulas else {}
    cells = [
        [r["sampler"], *(r[name] for name in costs.values()), r["engine"], f"{r['microseconds']:.2f}", f"{r['to_uniform']:.1f}"]
        + ["" if math.isnan(r[power]) else f"{r[power]:.2f}" for power in powers.values()]
        for r in rows
    ]
    return ["sampler", *costs, "engine", "us", "x uniform", *powers], cells


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
