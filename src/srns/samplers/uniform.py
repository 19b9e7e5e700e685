"""Uniform negative sampling (Rendle et al., BPR, UAI 2009): every item a user has not interacted with is equally likely.

Cost per negative: one random number and one look-up. The fused twin is `srns.kernels.uniform`.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy
from pydantic import Field

from srns import rng
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.unseen import Unseen


class Uniform(Sampler):
    """Negatives drawn uniformly from the items the user has not interacted with.

    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> state = Uniform().start(train, seed=0)
    >>> state.begin_epoch(0, score=lambda users, items: items)
    >>> state.sample(train.users, train.items, score=lambda users, items: items, step=0).ids[:4, 0].tolist()
    [2, 2, 0, 0]
    """

    name: ClassVar[str] = "uniform"
    cost: ClassVar[str] = "K"
    knows_log_q: ClassVar[bool] = True

    negatives: int = Field(16, ge=1, le=512, description="negatives per positive (K)")

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> UniformState:
        return UniformState(self, train, seed, xp)


class UniformState(SamplerState):
    def __init__(self, sampler: Uniform, train: Interactions, seed: int, xp: ModuleType) -> None:
        self.sampler = sampler
        self._seed = seed
        self._unseen = Unseen(train, xp)
        self._key = rng.stream_key(seed, Uniform.name)

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._key = rng.stream_key(self._seed, Uniform.name, epoch)

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp = self._unseen.xp
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        ids = self._unseen.draw(users, self._unseen.row_keys(self._key, users, positives), self.sampler.negatives)
        counts = xp.take(self._unseen.counts, users, axis=0)[:, None]  # (B, 1)
        return Negatives(ids, xp.broadcast_to(-xp.log(xp.astype(counts, xp.float32)), ids.shape))
