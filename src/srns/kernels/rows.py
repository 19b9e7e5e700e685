"""Twins of what `srns.samplers.srns` does to each row of a batch, for engines whose scores come from elsewhere: the torch
engine on a CPU, where hundreds of small array operations took most of a step of SRNS.

One pass per row on one thread; every result has the bits of the array form.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from srns.kernels import compiler
from srns.kernels.across import flags
from srns.kernels.compiler import compiled
from srns.kernels.elementary import WORD_SHIFT, gumbel_of_lanes, logistic
from srns.kernels.gmf import Floats
from srns.kernels.lanes import LANES, count_from, larger, largest, load, lowest_bit, padded, select, spread, store, where
from srns.kernels.memory import LOWEST, NOT_ALLOWED
from srns.kernels.random import below, bits, draws
from srns.samplers.base import Array

float32 = np.float32
int32 = np.int32
uint32 = np.uint32
Longs = NDArray[np.int64]


@compiled()
def expand(users: Longs, first: Longs, second: Longs, counts: Longs, narrow: NDArray[np.int16], wide: NDArray[np.int32],
           n_items: int, found: Longs) -> None:  # fmt: skip
    """`srns.samplers.unseen.Unseen.sample` with a table of all unseen items, `narrow` or `wide`; the other is empty."""
    size = found.shape[1]
    for x in range(found.shape[0]):
        user = users[x]
        total, a, b = counts[user], uint32(first[x]), uint32(second[x])
        length, start, table = max(total // size, 1), below(bits(a, b, 0), total), user * n_items
        for c in range(size):
            number = c * length + below(bits(a, b, c + 1), length) + start
            number -= total if number >= total else 0
            found[x, c] = table + number if c * length < total else -1
        for c in range(size):  # apart from the arithmetic, so that many reads are under way at once
            place = found[x, c]
            if place >= 0:
                found[x, c] = narrow[place] if narrow.shape[0] > 0 else wide[place]


@compiled(inline=True)
def take_largest(worth: Floats, wanted: int, row: int, places: Longs) -> None:
    """`srns.samplers.elementary.largest` of one row, to places[row, :wanted], -1 when no more are allowed. Takes them out of
    `worth`, which is filled up to whole lanes."""
    none = spread(NOT_ALLOWED)
    for n in range(wanted):
        best = none
        for k in range(0, worth.shape[0], LANES):
            best = larger(load(worth, 0, k), best)
        top, slot = largest(best), np.uint64(0)
        for k in range(worth.shape[0] - LANES, -1, -LANES):  # the first of equals is found last
            equal = flags(load(worth, 0, k) >= spread(top))
            slot = select(equal > 0, np.uint64(k) + lowest_bit(equal), slot)
        places[row, n] = np.int64(slot) if top > NOT_ALLOWED else -1
        k = np.int64(slot) // LANES * LANES
        store(worth, 0, k, where(count_from(k) - spread(int32(slot)), load(worth, 0, k), none))


@compiled()
def choose(memory: Longs, scores: Floats, past: Floats, weight: float32, chosen: Longs, probability: Floats, wavering: Floats,
           values: Floats, worth: Floats) -> None:  # fmt: skip
    """`SRNSState._choose` by P_pos and its std over `past` (D, B, 1 + S1), if any; `values` (D, S1) and `worth` are scratch."""
    (n_rows, size), depth = memory.shape, past.shape[0]
    epochs = float32(depth)
    worth[:] = NOT_ALLOWED
    for x in range(n_rows):
        for k in range(size):
            probability[x, k] = logistic(scores[x, 1 + k] - scores[x, 0])
        for d in range(depth):
            for k in range(size):
                values[d, k] = logistic(past[d, x, 1 + k] - past[d, x, 0])
        filled = 0
        for k in range(size):
            value = probability[x, k] if depth > 0 and weight > float32(0) else scores[x, 1 + k]
            if depth > 0:
                mean, square = float32(0), float32(0)
                for d in range(depth):
                    mean += values[d, k]
                mean /= epochs
                for d in range(depth):
                    away = values[d, k] - mean
                    square += away * away
                deviation = np.sqrt(square / epochs)
                wavering[x, k] = deviation / mean
                value += deviation * weight
            filled += memory[x, k] >= 0
            worth[k] = NOT_ALLOWED if memory[x, k] < 0 else value if value > LOWEST else LOWEST
        take_largest(worth, min(chosen.shape[1], filled), x, chosen)
        for k in range(size):
            worth[k] = NOT_ALLOWED
        for n in range(filled, chosen.shape[1]):
            chosen[x, n] = chosen[x, n - filled]


@compiled()
def renew(first: Longs, second: Longs, asked: Longs, scores: Floats, reserved: NDArray[np.bool_], inverse: float32,
          places: Longs, barred: Longs, worth: Floats) -> None:  # fmt: skip
    """`SRNSState._winners`; `barred` (S2,) and `worth` are scratch."""
    size, wanted = places.shape[1], barred.shape[0]
    fresh = 1 + size
    for x in range(asked.shape[0]):
        a, b = uint32(first[x]), uint32(second[x])
        for c in range(0, worth.shape[0], LANES):
            store(worth, 0, c, gumbel_of_lanes(draws(a, b, count_from(c + wanted + 1)) >> spread(WORD_SHIFT)))
        for c in range(wanted):
            barred[c] = asked[x, fresh + c] < 0
        for k in range(size):
            member = asked[x, 1 + k]
            for c in range(wanted):
                barred[c] |= asked[x, fresh + c] == member
        for k in range(size):
            value = scores[x, 1 + k] * inverse + worth[k]
            worth[k] = NOT_ALLOWED if asked[x, 1 + k] < 0 else value if value > LOWEST else LOWEST
        if reserved[x]:
            worth[0] = NOT_ALLOWED
        for c in range(wanted):
            value = scores[x, fresh + c] * inverse + worth[size + c]
            worth[size + c] = NOT_ALLOWED if barred[c] > 0 else value if value > LOWEST else LOWEST
        for c in range(size + wanted, worth.shape[0]):
            worth[c] = NOT_ALLOWED
        take_largest(worth, size, x, places)


KERNELS: dict[str, Any] = {"expand": expand, "choose": choose, "renew": renew}


class RowTwins:
    """`srns.samplers.base.Twins` for arrays of `xp` that lie in main memory: those of NumPy, and tensors of torch on a CPU."""

    def __init__(self, xp: ModuleType) -> None:
        self._array = xp.asarray  # of a NumPy array: it shares its memory

    def needs_compiling(self, names: Iterable[str]) -> bool:
        return any(compiler.needs_compiling(KERNELS[name]) for name in names)

    def expand(self, users: Array, rows: tuple[Array, Array], counts: Array, table: Array, n_items: int, size: int) -> Array:
        found = np.empty((len(users), size), np.int64)
        of_table = _plain(table)
        tables = (of_table if of_table.dtype == kind else np.empty(0, kind) for kind in (np.int16, np.int32))
        KERNELS["expand"](*_longs(users, *rows, counts), *tables, n_items, found)
        return self._array(found)

    def choose(
        self, memory: Array, scores: Array, past: list[Array], weight: float, n_negatives: int
    ) -> tuple[Array, Array, Array | None]:
        (n, size), depth = memory.shape, len(past)
        chosen, probability = np.empty((n, n_negatives), np.int64), np.empty((n, size), np.float32)
        wavering = np.empty((n if past else 0, size), np.float32)
        before = np.empty((depth, n, 1 + size), np.float32)
        for epoch, of_epoch in enumerate(past):
            before[epoch] = _plain(of_epoch)
        scratch = np.empty((depth, size), np.float32), np.empty(padded(size), np.float32)
        now = _plain(scores, np.float32)
        KERNELS["choose"](*_longs(memory), now, before, np.float32(weight), chosen, probability, wavering, *scratch)
        return self._array(chosen), self._array(probability), self._array(wavering) if past else None

    def renew(
        self, rows: tuple[Array, Array], asked: Array, scores: Array, reserved: Array, memory_size: int, inverse: float
    ) -> Array:
        n, width = asked.shape
        places = np.empty((n, memory_size), np.int64)
        scratch = np.empty(width - 1 - memory_size, np.int64), np.empty(padded(width - 1), np.float32)
        of_rows = _plain(scores, np.float32), _plain(reserved, np.bool_)
        KERNELS["renew"](*_longs(*rows, asked), *of_rows, np.float32(inverse), places, *scratch)
        return self._array(places)


def _plain(array: Array, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """The same numbers for a kernel, copied only if they do not lie in order or may not be written: it is compiled for one
    kind of array."""
    return np.require(array.detach().numpy() if hasattr(array, "detach") else array, dtype, ["C", "W"])


def _longs(*arrays: Array) -> list[Longs]:
    return [_plain(array, np.int64) for array in arrays]
