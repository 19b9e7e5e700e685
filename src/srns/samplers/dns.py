"""Dynamic negative sampling and its two refinements.

DNS (Zhang et al., SIGIR 2013): of N uniform candidates, the one with the highest score. DNS(M, N) (Shi et al., "On the Theories
Behind Hard Negative Sampling for Recommendation", WWW 2023, section 5): one of the M highest, each as likely. Softmax(rho, N)
(the same paper): one of the N with probability proportional to exp(r_uj / rho). Low M and rho are the hard end.

Cost per positive: N scores. With several negatives per positive, the K highest of the N, K different ones of the M highest, and
K draws without replacement; the papers take one. Departure: candidates are different items; the papers draw with replacement.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from srns.samplers.base import Array
from srns.samplers.elementary import chances, gumbel, largest
from srns.samplers.pool import PoolSampler, PoolState, Words


class DNS(PoolSampler):
    """The candidates with the highest scores.

    >>> import numpy as np
    >>> from srns.interactions import Interactions
    >>> train = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 1, 2, 0])
    >>> state = DNS(candidates=2).start(train, seed=0)
    >>> state.begin_epoch(0, score=lambda users, items: items)
    >>> state.sample(np.array([2]), np.array([0]), score=lambda users, items: items, step=0).ids.tolist()
    [[2]]
    """

    name: ClassVar[str] = "dns"
    cost: ClassVar[str] = "N T"
    state: ClassVar[type[PoolState]] = PoolState


class TopState(PoolState):
    def _take(self, worth: Array, filled: Array, words: Words) -> Array:
        xp, top = self._xp, self.sampler.top
        chance = chances(words(top), xp)
        there = xp.arange(top, dtype=xp.int64)[None, :] < filled
        chance = xp.where(there, chance, xp.full_like(chance, -1.0))
        return xp.take_along_axis(largest(worth, top, xp), super()._take(chance, filled, words), axis=1)


class DNSMN(PoolSampler):
    """Any of the `top` (M) candidates with the highest scores."""

    name: ClassVar[str] = "dns_mn"
    cost: ClassVar[str] = "N T"
    state: ClassVar[type[PoolState]] = TopState

    top: int = Field(32, ge=1, le=1024, description="candidates with the highest scores, of which any is taken (M)")

    @model_validator(mode="after")
    def _consistent(self) -> DNSMN:
        if not self.n_negatives <= self.top <= self.candidates:
            found = f"{self.n_negatives}, {self.top}, {self.candidates}"
            raise ValueError(f"expected negatives <= top <= candidates, found {found}")
        return self


class SoftmaxState(PoolState):
    def _worth(self, pool: Array, positive: Array, scores: Array, words: Words) -> Array:
        return scores * (1 / self.sampler.temperature) + gumbel(words(self.sampler.candidates), self._xp)


class Softmax(PoolSampler):
    """A candidate with probability proportional to exp(score / temperature)."""

    name: ClassVar[str] = "softmax"
    cost: ClassVar[str] = "N T"
    state: ClassVar[type[PoolState]] = SoftmaxState

    temperature: float = Field(1.0, ge=1e-6, description="of the choice among candidates: lower takes higher scores (rho)")
