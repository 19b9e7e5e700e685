"""The parameters of GMF and the state of Adam in one table: row u is user u, row n_users + i is item i.

Dense Adam moves every row in every step, by lr_t * m / sqrt(v) with decaying m and v even where the gradient is zero. For a
row last stepped at t0 the moves missed until t form a geometric series, as v is far above eps:

    sum_{s=t0+1..t} lr_s * m * b1^(s-t0) / sqrt(v * b2^(s-t0))  =  m / sqrt(v) * (tail[t0] - ratio^(t-t0) * tail[t])

with ratio = b1 / sqrt(b2), lr_s the bias-corrected learning rate and tail[t] = sum_{j>=1} ratio^j * lr_{t+j}. A row can thus
wait until it is next stepped, which is what makes an epoch cheap: on ml-1m a batch touches 2,270 of 9,561 rows.

The table holds each row as it was after its last step, as value, direction m / (sqrt(v) + eps) and root sqrt(v), instead of m
and v: its value at any later step is then value - pull * direction with one factor `pull` for the row, so that reading a row
costs a multiplication and no root and division; these are left to the row's own steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.adam import BETA_1, BETA_2, EPSILON
from srns.kernels.compiler import compiled
from srns.kernels.elementary import ONE
from srns.kernels.lanes import (
    FLOATS_PER_LINE,
    LANES,
    Lanes,
    aligned_zeros,
    load,
    padded,
    pick,
    prefetch,
    spread,
    sqrt,
    store,
    total,
)

float32 = np.float32
uint32 = np.uint32
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Counts = NDArray[np.uint32]  # also row numbers: Numba spares unsigned indices the test for negative ones

B1, B2, EPS = float32(BETA_1), float32(BETA_2), float32(EPSILON)
NEGLIGIBLE = 1e-20  # directions and roots forget what is below about 1e-27 of it, long before it turns subnormal and slow


class Table(NamedTuple):
    """Rows of parameters with their Adam state as of step `last` (rows,) of this epoch.

    `cells` (rows, 3 * width) holds value, direction and root of a row, each F floats padded with zeros to `width`.
    """

    cells: Floats
    last: Counts


class Decay(NamedTuple):
    """What catching up needs for one epoch of n steps: powers of b1, b2 and ratio (n + 1,), and tail and lr_t (n + 1,)."""

    power_1: Floats
    power_2: Floats
    power_ratio: Floats
    tail: Floats
    rate: Doubles


def make_cells(values: Floats) -> Floats:
    """The cells of a table whose rows start at `values` (rows, F) and have not been stepped."""
    cells = aligned_zeros(len(values), 3 * padded(values.shape[1]))
    cells[:, : values.shape[1]] = values
    return cells


def parts_of(cells: Floats, dim: int) -> tuple[Floats, Floats, Floats]:
    """Views of the values, directions and roots in a table of `dim` factors, (rows, dim) each."""
    width = cells.shape[1] // 3
    return cells[:, :dim], cells[:, width : width + dim], cells[:, 2 * width : 2 * width + dim]


def make_decay(steps_done: int, steps: int, learning_rate: float) -> Decay:
    """The tables of an epoch of `steps` steps that starts after `steps_done`."""
    ratio = BETA_1 / math.sqrt(BETA_2)
    k = np.arange(steps + 1, dtype=np.float64)
    t = steps_done + k
    correction = np.sqrt(1 - BETA_2 ** np.maximum(t, 1)) / (1 - BETA_1 ** np.maximum(t, 1))
    ahead = steps_done + steps + np.arange(1, 501, dtype=np.float64)  # ratio^500 < 1e-22
    tail = np.empty(steps + 1)
    tail[-1] = np.sum(ratio ** np.arange(1, 501) * np.sqrt(1 - BETA_2**ahead) / (1 - BETA_1**ahead))
    for step in range(steps - 1, -1, -1):
        tail[step] = ratio * (correction[step + 1] + tail[step + 1])
    power_1, power_2, power_ratio = (
        np.where(power < NEGLIGIBLE, 0, power).astype(float32) for power in (BETA_1**k, BETA_2**k, ratio**k)
    )
    return Decay(power_1, power_2, power_ratio, (learning_rate * tail).astype(float32), learning_rate * correction)


@compiled(inline=True)
def pull_of(since: uint32, now: int, power_ratio: Floats, tail: Floats) -> float32:
    """How far a row last stepped at `since` has moved along its direction by the end of step `now`."""
    return float32(tail[since] - power_ratio[uint32(uint32(now) - since)] * tail[now])


@compiled(inline=True)
def pulls_of(since: Lanes, now: int, power_ratio: Floats, tail: Floats) -> Lanes:
    """`pull_of` for eight rows."""
    return pick(tail, 0, since) - pick(power_ratio, 0, spread(np.int32(now)) - since) * spread(tail[now])


@compiled(inline=True)
def dot(a: Floats, row_a: int, column_a: int, b: Floats, row_b: int, column_b: int, width: int) -> float32:
    together = spread(float32(0))
    for f in range(0, width, LANES):
        together = together + load(a, row_a, column_a + f) * load(b, row_b, column_b + f)
    return total(together)


@compiled(inline=True)
def value_of(cells: Floats, row: int, f: int, width: int, pull: Lanes) -> Lanes:
    """The current value of a row that has moved by `pull` since its last step."""
    return load(cells, row, f) - pull * load(cells, row, width + f)


@compiled(inline=True)
def reach_of(cells: Floats, row: int, width: int, tail: float32) -> float32:
    """The largest length a row just stepped may have before its next step: it only moves along its direction, by at
    most `tail`, and the length of what moves along a line is largest at one of the ends."""
    here, there, most = spread(float32(0)), spread(float32(0)), spread(tail)
    for f in range(0, width, LANES):
        value, end = load(cells, row, f), value_of(cells, row, f, width, most)
        here, there = here + value * value, there + end * end
    return np.sqrt(max(total(here), total(there)))


@compiled(inline=True)
def adam(cells: Floats, row: int, f: int, width: int, value: Lanes, gradient: Lanes, fade_1: Lanes, fade_2: Lanes,
         rate: Lanes) -> None:  # fmt: skip
    """Adam step of a row that is now at `value`; its moments first fade by the steps since its last."""
    epsilon = spread(EPS)
    root = load(cells, row, 2 * width + f)
    m = fade_1 * (load(cells, row, width + f) * (root + epsilon)) + spread(ONE - B1) * gradient
    root = sqrt(fade_2 * (root * root) + spread(ONE - B2) * (gradient * gradient))
    direction = m / (root + epsilon)
    store(cells, row, f, value - rate * direction)
    store(cells, row, width + f, direction)
    store(cells, row, 2 * width + f, root)


@compiled(entry=False)
def flush(now: int, table: Table, decay: Decay) -> None:
    """Bring every row and its moments to step `now`, so that an epoch ends where dense Adam would."""
    cells, last = table
    power_1, power_2, power_ratio, tail, _ = decay
    width = cells.shape[1] // 3
    epsilon, negligible = spread(EPS), spread(float32(NEGLIGIBLE))
    for row in range(cells.shape[0]):
        missed = uint32(uint32(now) - last[row])
        pull = spread(pull_of(last[row], now, power_ratio, tail))
        fade_1, fade_root = spread(power_1[missed]), spread(np.sqrt(power_2[missed]))
        last[row] = 0
        if missed > 0:
            for f in range(0, width, LANES):
                value = value_of(cells, uint32(row), f, width, pull)
                root = load(cells, row, 2 * width + f)
                m = fade_1 * (load(cells, row, width + f) * (root + epsilon))
                root = fade_root * root
                store(cells, row, f, value)
                store(cells, row, width + f, (m / (root + epsilon) + negligible) - negligible)
                store(cells, row, 2 * width + f, (root + negligible) - negligible)


@compiled(inline=True)
def prefetch_part(array: Any, row: int, start: int, length: int) -> None:
    """Ask for array[row, start : start + length], numbers of 4 bytes."""
    for f in range(start, start + length, FLOATS_PER_LINE):
        prefetch(array, row, f)
