"""Batches of positives with their negatives, and what is known about the latter."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.interactions import Interactions
from srns.kernels.compiler import compiled
from srns.kernels.random import permuted

Ints = NDArray[np.int32]
WINDOW = 2  # batches in memory: the one at hand and the next


class Batches(NamedTuple):
    """W batches of B positives with K negatives each: `users`, `positives` (W, B), `negatives` (W, B, K); and their `size`
    (W,)."""

    users: Ints
    positives: Ints
    negatives: Ints
    size: NDArray[np.int64]


class Known(NamedTuple):
    """Positives that are not in train but known, by user: a negative among them is a label error. `drawn` (crew, n) counts how
    often each member of the crew came across each of them, since members must not write to the same place."""

    indptr: NDArray[np.int64]
    items: Ints
    drawn: NDArray[np.int64]


def make_batches(window: int, batch_size: int, negatives: int) -> Batches:
    users, positives = (np.zeros((window, batch_size), np.int32) for _ in range(2))
    return Batches(users, positives, np.zeros((window, batch_size, negatives), np.int32), np.zeros(window, np.int64))


def rows_of(data: Interactions | None) -> tuple[NDArray[np.int64], Ints]:
    """indptr and items of interactions, empty where there are none; read-only like all of theirs, or kernels compile once
    more."""
    if data is not None:
        return data.indptr, data.items
    indptr, items = np.zeros(1, np.int64), np.zeros(0, np.int32)
    for array in (indptr, items):
        array.setflags(write=False)
    return indptr, items


def make_known(positives: Interactions | None, crew: int) -> Known:
    indptr, items = rows_of(positives)
    return Known(indptr, items, np.zeros((crew, len(items)), np.int64))


@compiled(allocates=True)
def take_positives(w: int, start: int, users: Ints, items: Ints, shuffle: Any, out: Batches) -> None:
    """Make batch w of the shuffled positives from position `start` on."""
    size = min(out.users.shape[1], users.shape[0] - start)
    order = np.empty(size, np.uint32)
    out.size[w] = size
    batch_users, positives = out.users[w], out.positives[w]
    permuted(start, users.shape[0], shuffle[0], shuffle[1], order)
    for x in range(size):
        batch_users[x] = users[order[x]]
        positives[x] = items[order[x]]


@compiled(entry=False)
def label_errors(task: int, w: int, begin: int, end: int, known: Known, batches: Batches) -> int:
    """How many negatives of positives begin..end of batch w are known positives of their users; each is noted."""
    indptr, items, drawn = known
    users, negatives = batches.users[w], batches.negatives[w]
    found = 0
    if items.shape[0] > 0:
        for x in range(begin, end):
            first, last = indptr[users[x]], indptr[users[x] + 1]
            for k in range(negatives.shape[1]):
                low, high = first, last
                while low < high:
                    middle = (low + high) >> 1
                    if items[middle] < negatives[x, k]:
                        low = middle + 1
                    else:
                        high = middle
                if low < last and items[low] == negatives[x, k]:
                    found += 1
                    drawn[task, low] += 1
    return found
