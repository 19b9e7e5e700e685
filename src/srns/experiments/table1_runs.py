"""The runs of `srns.experiments.table1` and `srns bench samplers`, apart from what is made of them: the time per positive of
samplers as F, the catalogue and their candidates grow.

A cell is an epoch of training GMF with that sampler on random interactions, in processor time per positive: all of a step is in
it, the sampler's part and the rest, so that uniform negatives, which cost nearly nothing, show what the rest is. The cells of a
sampler are measured in turn, several times over, and uniform negatives with them: a busy moment of the machine hits all of them
alike, and is no part of their medians.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from srns.config import RunConfig, meant
from srns.engines import make_engine
from srns.errors import ConfigError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.samplers import SAMPLERS, Uniform

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
    """Whether a sampler can run here."""
    sampler = SAMPLERS.get(name)
    return sampler is None or not sampler.needs_torch or importlib.util.find_spec("torch") is not None


def cells(samplers: Sequence[str], grid: Mapping[str, Sequence[int]] | None = None) -> Iterator[Cell]:
    """All measurements: each sampler, one dimension of the grid at a time."""
    unknown = [name for name in samplers if name not in SAMPLERS]
    if unknown:
        raise ConfigError(f"no sampler {unknown[0]!r}; {meant(unknown[0], list(SAMPLERS))}")
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


def measure(sampler: str) -> dict[str, Any]:
    return {"cells": [list(cell) for cell in cells([sampler])]}
