"""BNS: Bayesian negative sampling (Liu and Wang, ICDE 2023).

A candidate l that scores high is informative, info = sigmoid(r_ul - r_ui), but also the likelier a false negative. With F the
share of unseen items that score no higher than l and p the share of all interactions that are with l, the posterior that it is
a true negative is

    unbias = (1 - F) (1 - p) / (1 - F - p + 2 F p),

and the candidate of least risk, info * (1 - (1 + lambda) * unbias), is taken.

Cost per positive: N + R scores and N * (N + R) comparisons. Departures: F is estimated from the N candidates and R more random
unseen items (`reference`), not from all items of the catalogue, which would cost |I| scores per positive; with several
negatives per positive, the K of least risk are taken, where the paper takes one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srns.interactions import Interactions
from srns.samplers.base import Array
from srns.samplers.elementary import logistic, taken
from srns.samplers.pool import PoolSampler, PoolState, Words


def prior_of(train: Interactions) -> NDArray[np.float32]:
    """The share of all interactions that each item has (n_items,): how likely it is a positive, before its score."""
    return (train.whole.item_counts / max(1, train.whole.n)).astype(np.float32)


class BNSState(PoolState):
    def __init__(self, sampler: Any, train: Interactions, seed: int, xp: ModuleType) -> None:
        super().__init__(sampler, train, seed, xp)
        self._prior = self._xp.asarray(prior_of(train))

    def _worth(self, pool: Array, positive: Array, scores: Array, words: Words) -> Array:
        xp, n = self._xp, self.sampler.candidates
        there = pool >= 0
        mine = scores[:, :n]
        no_higher = (scores[:, None, :] <= mine[:, :, None]) & there[:, None, :]  # (B, N, P)
        size = xp.astype(xp.sum(xp.astype(there, xp.int64), axis=1, keepdims=True) + 1, xp.float32)
        below = xp.astype(xp.sum(xp.astype(no_higher, xp.int64), axis=2), xp.float32) / size  # F, and never 1
        prior = taken(self._prior, xp.maximum(pool[:, :n], self._unseen.zero), xp)
        either = 1 - below - prior + 2 * below * prior
        either = xp.where(either > 0, either, xp.ones_like(either))  # 0 only in an empty slot, of whatever worth
        unbias = (1 - below) * (1 - prior) / either
        return -(logistic(mine - positive, xp) * (1 - (1 + self.sampler.risk_weight) * unbias))


class BNS(PoolSampler):
    """The candidate of least risk: informative, and not likely a false negative."""

    name: ClassVar[str] = "bns"
    cost: ClassVar[str] = "(N + R) T + N (N + R)"
    state: ClassVar[type[PoolState]] = BNSState

    candidates: int = Field(16, ge=1, le=512, description="candidates per positive, of which those of least risk are taken (N)")
    reference: int = Field(48, ge=0, le=512, description="further random items that tell how high a score is among all (R)")
    risk_weight: float = Field(5.0, ge=0, description="what a true negative is worth beside what a false one costs (lambda)")

    @property
    def pool_size(self) -> int:
        return self.candidates + self.reference
