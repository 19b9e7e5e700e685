"""Popularity-based sampling (a baseline of Chen et al., "On Sampling Strategies for Neural Network-based Collaborative
Filtering", KDD 2017): an unseen item with probability proportional to its number of interactions to a power,

    P(j | u)  proportional to  popularity(j) ^ power  over the items that u has not interacted with.

The power .75 is that of word2vec (Mikolov et al., NIPS 2013), which NNCF and many after it took over. Cost per negative: one
random number and two binary searches, log |I|, among the user's items and among all items. The fused twin is in
`srns.kernels.candidates`. Departure: no item that the user has interacted with is drawn.

Drawn exactly, without rejection: with the items in a row, each as long as it is likely, a number t below the length of a user's
unseen items falls behind n of the user's items; t plus their length is a place in the row of all items. Items that nobody has
interacted with have length 1, so that a user who has seen all others can be served; as negatives of anybody else they are drawn
next to never.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import array_api_compat
import numpy
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srns import rng
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.elementary import taken
from srns.samplers.unseen import require_unseen

TOTAL = 2**30  # about what all lengths add up to: whole numbers, so that every machine draws the same


class Lengths(NamedTuple):
    """`ends` (n_items + 1,): where items begin and end. For each interaction, in the order of users and then of items: the
    length of the user's unseen items `before` it, and of seen items of all rows `taken` (N + 1,). And `unseen` (n_users,)."""

    ends: NDArray[np.int64]
    before: NDArray[np.int64]
    taken: NDArray[np.int64]
    unseen: NDArray[np.int64]


def lengths_of(train: Interactions, power: float) -> Lengths:
    """Item lengths proportional to popularity ** power, at least 1: items without interactions can be drawn, if rarely."""
    share = train.whole.item_counts.astype(np.float64) ** power
    share = share / max(share.sum(), 1e-300)
    length = np.maximum(1, np.round(share * TOTAL)).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(length)])
    taken = np.concatenate([[0], np.cumsum(length[train.items])])
    before = ends[train.items] - (taken[:-1] - taken[train.indptr[:-1]][train.users])
    return Lengths(ends, before, taken, ends[-1] - (taken[train.indptr[1:]] - taken[train.indptr[:-1]]))


class Popularity(Sampler):
    """Unseen items by popularity ** power.

    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> state = Popularity(negatives=2).start(train, seed=0)
    >>> state.begin_epoch(0, score=lambda users, items: items)
    >>> state.sample(train.users, train.items, score=lambda users, items: items, step=0).ids[:2].tolist()
    [[2, 2], [2, 2]]
    """

    name: ClassVar[str] = "popularity"
    cost: ClassVar[str] = "K log |I|"
    knows_log_q: ClassVar[bool] = True

    negatives: int = Field(16, ge=1, le=512, description="negatives per positive (K)")
    power: float = Field(
        0.75, ge=0, le=4, description="of an item's number of interactions: 0 is uniform, 1 as popular as it is"
    )

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> PopularityState:
        return PopularityState(self, train, seed, xp)


class PopularityState(SamplerState):
    def __init__(self, sampler: Popularity, train: Interactions, seed: int, xp: ModuleType) -> None:
        require_unseen(train)
        self.sampler = sampler
        self._seed = seed
        self._draw = PopularItems(train, sampler.power, xp)
        self._first_user = train.whole.first_user
        self._key = rng.stream_key(seed, sampler.name)

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._key = rng.stream_key(self._seed, self.sampler.name, epoch)

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp = self._draw.xp
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        rows = rng.row_keys(self._key, users + self._first_user, positives)
        return self._draw(users[:, None], rng.words(rows, xp.arange(self.sampler.negatives, dtype=xp.int64)))


class PopularItems:
    """Draws unseen items by popularity, on arrays of the library `xp`."""

    def __init__(self, train: Interactions, power: float, xp: ModuleType) -> None:
        self.xp: Any = array_api_compat.array_namespace(xp.asarray(0))
        lengths = lengths_of(train, power)
        self._stride = int(lengths.ends[-1]) + 1
        self._before = xp.asarray(train.users.astype(np.int64) * self._stride + lengths.before)
        self._ends, self._taken, self._unseen = (xp.asarray(each) for each in (lengths.ends, lengths.taken, lengths.unseen))
        self._starts = xp.asarray(train.indptr[:-1].copy())

    def __call__(self, users: Array, drawn: Array) -> Negatives:
        """Unseen items of `users` (B, 1) by random words `drawn` (B, K), and how likely they were."""
        xp = self.xp
        unseen = taken(self._unseen, users, xp)
        t = rng.below(drawn, unseen)
        behind = self._search(self._before, users * self._stride + t)  # the interactions of all users before, and n of this one
        t = t + taken(self._taken, behind, xp) - taken(self._taken, taken(self._starts, users, xp), xp)
        ids = self._search(self._ends, t) - 1
        length = taken(self._ends, ids + 1, xp) - taken(self._ends, ids, xp)
        return Negatives(ids, xp.log(xp.astype(length, xp.float32) / xp.astype(unseen, xp.float32)))

    def _search(self, values: Array, wanted: Array) -> Array:
        """How many of the ascending `values` are at most `wanted`."""
        flat = self.xp.searchsorted(values, self.xp.reshape(wanted, (-1,)), side="right")
        return self.xp.astype(self.xp.reshape(flat, wanted.shape), self.xp.int64)
