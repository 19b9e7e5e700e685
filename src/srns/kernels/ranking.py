"""Kernels under evaluation and recommender: the best k of each row of scores, and who is tied with whom there.

In every row -inf means "not a candidate" (seen, excluded, or refused by the scorer); NaN and +inf cannot be ranked and are
reported, never ordered. Only `top_k` runs in parallel: a row belongs to one thread and rows share nothing, so results do not
depend on the number of threads. The readable twins are the sorting loops in tests/test_evaluation.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from srns.errors import ScoreError
from srns.kernels import compiler
from srns.kernels.compiler import compiled

Floats = NDArray[Any]  # float32 or float64; both are compared as given
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


def needs_compiling() -> bool:
    """Whether the first ranking will spend seconds on compilation, as it does once per installation."""
    return compiler.needs_compiling(_top_k)


def top_k(scores: Floats, k: int) -> tuple[Int32, Floats]:
    """The k best of each row: scores (B, n) -> ids (B, k), values (B, k), best first, equals by ascending id.

    -inf entries are left out; where fewer than k remain, ids are -1 and values -inf. NaN or +inf raise `ScoreError`.

    >>> ids, values = top_k(np.array([[1, 3, -np.inf, 3]], np.float32), 4)
    >>> ids.tolist(), values.tolist()
    ([[1, 3, 0, -1]], [[3.0, 3.0, 1.0, -inf]])
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, found {k}")
    ids = np.empty((len(scores), k), np.int32)
    values = np.empty((len(scores), k), scores.dtype)
    bad = np.empty(len(scores), np.int64)
    if len(scores) == 1:  # alone, without the threads of a parallel kernel: waking them takes longer where cores are busy
        bad[0] = _select(_constant(scores)[0], ids[0], values[0])
    else:
        _top_k(_constant(scores), ids, values, bad)
    if bad.max(initial=-1) >= 0:
        row = int(np.flatnonzero(bad >= 0)[0])
        raise UnrankableError(row, int(bad[row]), scores[row, bad[row]])
    return ids, values


class UnrankableError(ScoreError):
    """`row` and `item` say where in the block of scores it is."""

    def __init__(self, row: int, item: int, value: float) -> None:
        super().__init__(f"score of row {row}, item {item} is {value}; expected a finite number, or -inf to exclude the item")
        self.row, self.item, self.value = row, item, value


def mask_seen(scores: Floats, users: NDArray[Any], indptr: Int64, items: Int32) -> None:
    """Set -inf, in place, where user `users[b]` (B,) of row b of scores (B, n) has an item in the CSR `indptr`, `items`.

    >>> scores = np.ones((2, 3), np.float32)
    >>> mask_seen(scores, np.array([1, 0]), np.array([0, 1, 3]), np.array([2, 0, 1], np.int32))
    >>> scores.tolist()
    [[-inf, -inf, 1.0], [1.0, 1.0, -inf]]
    """
    _mask_seen(scores, _constant(np.asarray(users, np.int64)), _constant(indptr), _constant(items))


class TieGroups(NamedTuple):
    """The tie group that holds each of the first k positions of B rows.

    Position p of a row lies in a group of `size` (B, k) equal scores, `hits` (B, k) of them relevant, that occupies the
    positions from `start` (B, k) on; the group of the last position may reach beyond k. A position without a candidate is a
    group of its own without hits.
    """

    start: Int32
    size: Int32
    hits: Int32


def tie_groups(scores: Floats, values: Floats, users: Int64, indptr: Int64, relevant: Int32) -> tuple[TieGroups, Float64]:
    """Tie groups of `values` (B, k), the best of scores (B, n) by `top_k`, where `relevant` is a CSR by user with `indptr`.

    Beside them the AUC (B,) of each row's first relevant item against all other candidates: the share that scores lower, ties
    half; 0 if the item is no candidate, .5 if it is the only one.
    """
    groups = TieGroups(*np.zeros((3, *values.shape), np.int32))
    auc = np.empty(len(users))
    _tie_groups(_constant(scores), values, _constant(users), _constant(indptr), _constant(relevant), groups, auc)
    return groups, auc


def exposure(scores: Floats, ids: Int32, groups: TieGroups, ks: Int64, popularity: Float64, missed: Float64) -> Float64:
    """(B, len(ks)) mean `popularity` (n,) of the items in the first k positions, 0 where there are none.

    An item tied at the cut counts by its chance to stand before it. `missed` (len(ks), n), the probability that no row so far
    has shown the item, is updated in place.
    """
    shown = np.zeros((len(ids), len(ks)))
    _exposure(_constant(scores), ids, groups, ks, popularity, missed, shown)
    return shown


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only C-ordered view: Numba compiles a kernel once for these, and again for each mix of writable arguments."""
    view: NDArray[Any] = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@compiled()
def _sift_down(values, ids, size, value, item):  # type: ignore[no-untyped-def]
    """Replace the root of a heap whose root is its worst entry: the lowest value, of equals the highest id."""
    at = 0
    while True:
        worst = 2 * at + 1
        if worst >= size:
            break
        other = worst + 1
        if other < size and (values[other] < values[worst] or (values[other] == values[worst] and ids[other] > ids[worst])):
            worst = other
        if value < values[worst] or (value == values[worst] and item > ids[worst]):
            break
        values[at] = values[worst]
        ids[at] = ids[worst]
        at = worst
    values[at] = value
    ids[at] = item


@compiled()
def _select(row, ids, values):  # type: ignore[no-untyped-def]
    """Fill ids, values (k,) with the best of row (n,), sorted; returns an entry that is NaN or +inf, or -1."""
    for p in range(len(ids)):
        ids[p] = -1
        values[p] = -np.inf
    for i in range(len(row)):
        if not row[i] <= values[0]:  # better than the k-th best, or NaN; of equal scores the lower id came first and stays
            if not row[i] < np.inf:
                return i
            _sift_down(values, ids, len(ids), row[i], np.int32(i))
    for size in range(len(ids) - 1, 0, -1):  # heap sort: the worst of what is left goes to the end
        value, item = values[size], ids[size]
        values[size], ids[size] = values[0], ids[0]
        _sift_down(values, ids, size, value, item)
    return -1


@compiled(parallel=True)
def _top_k(scores, ids, values, bad):  # type: ignore[no-untyped-def]
    for b in prange(len(scores)):
        bad[b] = _select(scores[b], ids[b], values[b])


@compiled()
def _mask_seen(scores, users, indptr, items):  # type: ignore[no-untyped-def]
    for b in range(len(users)):
        for at in range(indptr[users[b]], indptr[users[b] + 1]):
            scores[b, items[at]] = -np.inf


@compiled()
def _count(row, value):  # type: ignore[no-untyped-def]
    """How many entries of row (n,) are below value, how many equal to it."""
    below, equal = 0, 0
    for i in range(len(row)):
        below += row[i] < value
        equal += row[i] == value
    return below, equal


@compiled()
def _tie_groups(scores, values, users, indptr, relevant, groups, auc):  # type: ignore[no-untyped-def]
    k = values.shape[1]
    nothing = scores.dtype.type(-np.inf)
    for b in range(len(users)):
        start, size, hits = groups.start[b], groups.size[b], groups.hits[b]
        for p in range(k):
            tied = p > 0 and values[b, p] == values[b, p - 1] and values[b, p] > nothing
            start[p] = start[p - 1] if tied else p
        last = values[b, k - 1]
        size[k - 1] = _count(scores[b], last)[1] if last > nothing else 1
        for p in range(k - 2, -1, -1):
            size[p] = size[p + 1] if start[p] == start[p + 1] else p + 1 - start[p]
        for item in relevant[indptr[users[b]] : indptr[users[b] + 1]]:
            if scores[b, item] > nothing:
                for p in range(k):
                    hits[p] += values[b, p] == scores[b, item]
        target = scores[b, relevant[indptr[users[b]]]]
        excluded = _count(scores[b], nothing)[1]
        below, equal = _count(scores[b], target)
        others = scores.shape[1] - excluded - 1
        if target == nothing:
            auc[b] = 0.0
        else:
            auc[b] = (below - excluded + 0.5 * (equal - 1)) / others if others else 0.5


@compiled()
def _exposure(scores, ids, groups, ks, popularity, missed, shown):  # type: ignore[no-untyped-def]
    for b in range(len(ids)):  # in one thread: all rows multiply into `missed`
        filled = len(ids[b])
        while filled > 0 and ids[b, filled - 1] < 0:
            filled -= 1
        for j in range(len(ks)):
            k = min(ks[j], filled)
            if k == 0:
                continue
            begin = groups.start[b, k - 1]
            end = begin + groups.size[b, k - 1]
            chance = (k - begin) / (end - begin)
            for item in ids[b, :begin]:
                missed[j, item] = 0.0
                shown[b, j] += popularity[item]
            if end <= ids.shape[1]:
                for item in ids[b, begin:end]:
                    missed[j, item] *= 1.0 - chance
                    shown[b, j] += popularity[item] * chance
            else:  # the group reaches beyond the list of the best
                value = scores[b, ids[b, begin]]
                for item in range(scores.shape[1]):
                    if scores[b, item] == value:
                        missed[j, item] *= 1.0 - chance
                        shown[b, j] += popularity[item] * chance
            shown[b, j] /= k
