"""NNCF: stratified batches whose positives share negatives drawn by popularity (Chen et al., "On Sampling Strategies for Neural
Network-based Collaborative Filtering", KDD 2017; a baseline of the SRNS paper, appendix B.2).

An epoch takes `positives_per_item` (s) positives of one item together, so that their item's row is worked on once, and all
positives of a batch share one set of `shared_negatives` (b) items, drawn with replacement with probability

    P(j)  proportional to  popularity(j) ^ power,

so that the scores of a batch are one product of matrices. A shared item that a user has interacted with counts nothing for that
user (weight 0); a positive whose user has interacted with all b of them teaches nothing in that step but the pull of L2.

Cost per positive: b scores, of rows that are read once per batch: O(B b) per step, the O(B^2 T) of the paper's table 1 where
b grows with B. Drawing costs b log |I| per batch.

Departures: strata are chunks of shuffled interactions, each of which occurs once per epoch, where the original draws items
anew; a batch's end may cut a chunk. The b items are drawn apart from the positives, as the SRNS paper has them, where the
original's stratified form takes the other items of the batch, whatever the user has had. The loss is the run's, pairwise in the
presets. Probabilities are whole multiples of 2^-32, and `log_q` is exact for them.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srns import rng
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.seen import Seen
from srns.samplers.unseen import require_unseen


class NNCF(Sampler):
    """Negatives by a power of popularity, shared by all positives of a batch that is stratified by item.

    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> state = NNCF(shared_negatives=4).start(train, seed=0)
    >>> state.begin_epoch(0, score=lambda users, items: items)
    >>> drawn = state.sample(train.users, train.items, score=lambda users, items: items, step=0)
    >>> drawn.ids.shape, drawn.weight.shape
    ((1, 4), (5, 4))
    """

    name: ClassVar[str] = "nncf"
    cost: ClassVar[str] = "b T"
    knows_log_q: ClassVar[bool] = True
    one_rank: ClassVar[bool] = True

    shared_negatives: int = Field(256, ge=1, le=65536, description="negatives that all positives of a batch share (b)")
    positives_per_item: int = Field(2, ge=1, description="positives of one item that stand together in a batch (s)")
    power: float = Field(0.75, ge=0, description="of an item's popularity, which its probability is proportional to")

    @property
    def n_negatives(self) -> int:
        return self.shared_negatives

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> NNCFState:
        return NNCFState(self, train, seed, xp)


class NNCFState(SamplerState):
    def __init__(self, sampler: NNCF, train: Interactions, seed: int, xp: ModuleType) -> None:
        require_unseen(train)
        self.sampler, self._train, self._seed = sampler, train, seed
        self._seen = Seen(train, xp)
        self._key = rng.stream_key(seed, NNCF.name)
        # The share of each item in 2^32 random words, laid end to end: whole numbers, so that all libraries draw the same.
        popularity = train.whole.item_counts.astype(np.float64) ** sampler.power
        ends = np.rint(np.cumsum(popularity) / popularity.sum() * 2.0**32).astype(np.int64)
        with np.errstate(divide="ignore"):
            log_q = np.log(np.diff(ends, prepend=0) / 2.0**32).astype(np.float32)
        self._ends, self._log_q = xp.asarray(ends), xp.asarray(log_q)

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._key = rng.stream_key(self._seed, NNCF.name, epoch)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Each item's interactions in random order, cut into chunks of s, and the chunks in random order."""
        items, users = self._train.items.astype(np.int64), self._train.users.astype(np.int64)
        words = rng.bits(rng.row_keys(rng.stream_key(self._seed, "nncf-order", epoch), users, items), 0)
        by_item = np.argsort((items << 32) | words, kind="stable")
        counts = np.bincount(items, minlength=self._train.n_items)
        place = np.arange(len(items)) - (np.cumsum(counts) - counts)[items[by_item]]  # among those of its item
        chunk = np.cumsum(place % self.sampler.positives_per_item == 0) - 1
        n_chunks = int(chunk[-1]) + 1 if len(chunk) else 0
        key = rng.stream_key(self._seed, "nncf-chunks", epoch)
        turn = rng.permutation(key, n_chunks, np.arange(n_chunks))
        return by_item[np.argsort(turn[chunk], kind="stable")]

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp, size = self._seen.xp, self.sampler.shared_negatives
        users = xp.asarray(users, dtype=xp.int64)
        draws = xp.arange(size, dtype=xp.int64)
        words = rng.bits(rng.row_keys(self._key, xp.full_like(draws, step), draws), 0)
        ids = xp.searchsorted(self._ends, words, side="right")
        log_q = xp.take(self._log_q, ids, axis=0)
        return Negatives(ids[None, :], log_q[None, :], self._seen.unseen_weight(users, ids))
