"""The best items of users, by rows of scores in blocks, less what is not to be recommended; in dense ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.errors import ConfigError
from srns.interactions import Int64, Interactions
from srns.kernels.ranking import mask_seen, top_k
from srns.scorers import GMF, Model, score_rows

Floats = NDArray[np.float32]
Lists = tuple[NDArray[np.int32], Floats]  # items and their scores, best first


@dataclass(frozen=True, eq=False)
class Best:
    """Lists by `model`, in blocks of `block` users. Users that are not `trained` (n_users,) are served by `popularity`
    (n_items,); `seen` is what users are known to have touched."""

    model: Model
    seen: Interactions
    trained: NDArray[np.bool_]
    popularity: Floats

    def items(
        self,
        users: Int64,
        k: int,
        block: int,
        *,
        exclude_seen: bool,
        allowed: NDArray[np.bool_] | None = None,
        room: Floats | None = None,
    ) -> Lists:
        """The k best of `allowed` (n_items,) for dense users (n,), of whom -1 is unknown: items (n, k) and their scores, -1 and
        -inf where there are no more.

        Scores of GMF are computed in `room`, a block of them, where it is given: new memory for each block costs a third of the
        matrix multiply.
        """
        n_items = self.seen.n_items
        ids, values = empty_lists(len(users), min(checked(k), n_items))
        for start in range(0, len(users), block):
            rows = users[start : start + block]
            if room is not None and isinstance(self.model, GMF):
                scores = self.model.score_all(np.maximum(rows, 0), out=room[: len(rows)])
            else:
                scores = _own(score_rows(self.model, np.maximum(rows, 0), n_items))
            if (untrained := (rows < 0) | ~self.trained[rows]).any():
                scores[untrained] = self.popularity
            if exclude_seen:
                self._mask(scores, rows)
            if allowed is not None:
                scores[:, ~allowed] = -np.inf
            ids[start : start + block], values[start : start + block] = top_k(scores, ids.shape[1])
        return ids, values

    def _mask(self, scores: Floats, users: Int64) -> None:
        known = np.flatnonzero(users >= 0)
        if len(known) == len(users):
            mask_seen(scores, users, self.seen.indptr, self.seen.items)
        elif len(known):
            part = scores[known]
            mask_seen(part, users[known], self.seen.indptr, self.seen.items)
            scores[known] = part


def best_of(scores: Floats, k: int, without: Int64 | None, allowed: NDArray[np.bool_] | None) -> Lists:
    """The k best items (k,) by `scores` (n_items,), or fewer, and their scores; items of `without` are left out."""
    rows = np.array(scores[None], np.float32, order="C")
    if without is not None:
        rows[:, without] = -np.inf
    if allowed is not None:
        rows[:, ~allowed] = -np.inf
    ids, values = top_k(rows, min(checked(k), rows.shape[1]))
    found = ids[0] >= 0
    return ids[0][found], values[0][found]


def nearest(unit: Floats, items: Int64, k: int, block: int) -> Lists:
    """The k nearest by cosine of each of dense items (n,), never the item itself, in blocks of `block`; `unit` (n_items, F) are
    vectors of length 1."""
    ids, values = empty_lists(len(items), min(checked(k), len(unit) - 1))
    for start in range(0, len(items), block):
        rows = items[start : start + block]
        scores = np.ascontiguousarray(unit[rows] @ unit.T)
        scores[np.arange(len(rows)), rows] = -np.inf
        if ids.shape[1]:
            ids[start : start + block], values[start : start + block] = top_k(scores, ids.shape[1])
    return ids, values


def allowed_items(n_items: int, exclude: Int64 | None, candidates: Int64 | None) -> NDArray[np.bool_] | None:
    """Which items (n_items,) may be recommended, where not all of them: the candidates without what is excluded."""
    if exclude is None and candidates is None:
        return None
    allowed = np.full(n_items, candidates is None)
    if candidates is not None:
        allowed[candidates] = True
    if exclude is not None:
        allowed[exclude] = False
    return allowed


def checked(k: int) -> int:
    if k < 1:
        raise ConfigError(f"k must be at least 1, found {k}")
    return k


def empty_lists(n: int, k: int) -> Lists:
    return np.empty((n, k), np.int32), np.empty((n, k), np.float32)


def _own(scores: NDArray[Any]) -> Floats:
    """Scores that may be written to: as they are where nobody else can hold them, since a copy costs half a matrix multiply."""
    flags = scores.flags
    if scores.dtype == np.float32 and flags.c_contiguous and flags.owndata and flags.writeable:
        return scores
    return np.array(scores, np.float32, order="C")
