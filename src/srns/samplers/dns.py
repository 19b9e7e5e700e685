"""Dynamic negative sampling and its two refinements.

DNS (Zhang et al., SIGIR 2013): of N uniform candidates, the one with the highest score. DNS(M, N) (Shi et al., "On the Theories
Behind Hard Negative Sampling for Recommendation", WWW 2023): one of the M highest, each as likely. Softmax-v(rho, N) (the same
paper, algorithm 2): one of the N with probability proportional to exp(l_j / tau), where

    l_j = log(1 + exp(r_uj - r_ui)),    tau = sqrt(variance of l over the candidates / (2 rho)),

so that rho, `hardness`, means the same for every positive at any time of training: what counts is how many standard deviations
l_j is from the mean, times sqrt(2 rho). Without it, tau is fixed, `temperature`, and scores take the place of losses, which is
the form that paper begins with: exp(r_uj / tau). Low M and tau and high rho are the hard end.

Cost per positive: N scores. Departures: candidates are different items, where the papers draw with replacement; of those, the
papers' DNS learns from one, and DNS(M, N) and Softmax-v from all of them, each weighing what it would be drawn for. Here K are
drawn: the K highest of the N, K different ones of the M highest, and K without replacement.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from srns.samplers.base import Array
from srns.samplers.elementary import chances, gumbel, largest, softplus
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
        noise = gumbel(words(self.sampler.candidates), self._xp)
        if not self.sampler.double_hardness:
            return scores * (1 / self.sampler.temperature) + noise
        return self._standard_losses(pool >= 0, scores - positive) + noise

    def _standard_losses(self, there: Array, lead: Array) -> Array:
        """(l - mean of l) / tau of candidates (B, N) of which some are `there`, from r_uj - r_ui. Sums are in float64: in
        what order libraries add does not show in float32, but once in many millions. Where all losses are the same, so are the
        chances."""
        xp = self._xp
        loss = softplus(lead, xp)
        exact, n = xp.astype(loss, xp.float64), xp.sum(xp.astype(there, xp.float64), axis=1, keepdims=True)
        mean = xp.sum(xp.where(there, exact, xp.zeros_like(exact)), axis=1, keepdims=True) / n
        apart = xp.where(there, exact - mean, xp.zeros_like(exact))
        variance = xp.sum(apart * apart, axis=1, keepdims=True) / xp.where(n > 1, n - 1, xp.ones_like(n))
        varied = variance > 0
        one = xp.ones_like(variance)
        inverse = xp.sqrt(self.sampler.double_hardness / xp.where(varied, variance, one))
        inverse = xp.where(varied, inverse, xp.zeros_like(inverse))
        return (loss - xp.astype(mean, xp.float32)) * xp.astype(inverse, xp.float32)


class Softmax(PoolSampler):
    """A candidate with probability proportional to exp(score / temperature), or by `hardness`."""

    name: ClassVar[str] = "softmax"
    cost: ClassVar[str] = "N T"
    state: ClassVar[type[PoolState]] = SoftmaxState

    temperature: float = Field(1.0, ge=1e-6, description="of the choice among candidates: lower takes higher scores (tau)")
    hardness: float = Field(
        0.0, ge=0, le=1e4, description="how much higher losses are preferred, whatever their spread (rho); 0: go by temperature"
    )

    @property
    def double_hardness(self) -> float:
        """2 rho as float32, in which kernels have it."""
        return float(np.float32(2 * self.hardness))
