"""Uniform negative sampling (Rendle et al., BPR, UAI 2009): every item a user has not interacted with is equally likely.

Cost per positive: one random number and one binary search, O(log |R_u|). The fused twin is `srns.kernels.gmf.fill_batch`.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy

from srns import rng
from srns.interactions import Interactions
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.unseen import Unseen


class Uniform(Sampler):
    """One negative per positive, drawn uniformly from the items the user has not interacted with.

    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> state = Uniform().start(train, seed=0)
    >>> state.begin_epoch(0, score=lambda users, items: items)
    >>> state.sample(train.users, train.items, score=lambda users, items: items, step=0).ids[:4, 0].tolist()
    [2, 2, 0, 0]
    """

    name: ClassVar[str] = "uniform"

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> UniformState:
        return UniformState(train, seed, xp)


class UniformState(SamplerState):
    def __init__(self, train: Interactions, seed: int, xp: ModuleType) -> None:
        self._seed = seed
        self._unseen = Unseen(train, xp)
        self._key = rng.stream_key(seed, Uniform.name)

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._key = rng.stream_key(self._seed, Uniform.name, epoch)

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp = self._unseen.xp
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        drawn = rng.bits(rng.row_keys(self._key, users, positives), 0)
        ranks = rng.below(drawn, xp.take(self._unseen.counts, users, axis=0))
        return Negatives(self._unseen.nth(users, ranks)[:, None])
