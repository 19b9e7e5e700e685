"""Samplers that draw a few uniform candidates for each positive, score them and take the best by a rule: what they share.

Candidates are different unseen items, each unseen item as likely as another to be among them, one from each arc of the user's
circle of unseen items (`srns.samplers.unseen.spread_numbers`), where the papers draw each by itself. A rule says what each
candidate is worth; ties go to the first. The fused twin is `srns.kernels.candidates`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import numpy
from pydantic import Field, model_validator

from srns import rng
from srns.errors import ConfigError
from srns.interactions import Interactions, Total
from srns.samplers.base import Array, Negatives, Sampler, SamplerState, Score
from srns.samplers.elementary import allowed_first, largest_of, logistic
from srns.samplers.observations import BINS, Observations
from srns.samplers.unseen import Unseen

Words = Callable[[int], Array]  # n random words (B, n) of 32 bits for the rows at hand


class PoolSampler(Sampler):
    """Candidates drawn uniformly, of which the rule of its `state` takes the negatives."""

    state: ClassVar[type[PoolState]]

    candidates: int = Field(
        64, ge=1, le=1024, description="uniform candidates per positive, of which the rule takes negatives (N)"
    )
    negatives: int = Field(
        0,
        ge=0,
        le=512,
        description="negatives per positive (K); 0: a quarter of the candidates, as many as the default recipe has",
    )

    @model_validator(mode="after")
    def _enough_candidates(self) -> PoolSampler:
        if self.negatives > self.candidates:
            raise ValueError(f"negatives {self.negatives} exceed candidates {self.candidates}, from which they are taken")
        return self

    @property
    def n_negatives(self) -> int:
        return self.negatives or max(1, self.candidates // 4)

    @property
    def pool_size(self) -> int:
        """How many items are drawn and scored, candidates first."""
        return self.candidates

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> PoolState:
        return self.state(self, train, seed, xp)


class PoolState(SamplerState):
    def __init__(self, sampler: Any, train: Interactions, seed: int, xp: ModuleType) -> None:
        self.sampler = sampler
        self._seed = seed
        self._unseen = Unseen(train, xp)
        self._xp = self._unseen.xp
        self._key = rng.stream_key(seed, sampler.name)
        self._observed = Observations()

    def begin_epoch(self, epoch: int, score: Score) -> None:
        self._key = rng.stream_key(self._seed, self.sampler.name, epoch)
        self._observed = Observations()

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        xp, sampler = self._xp, self.sampler
        users, positives = xp.asarray(users, dtype=xp.int64), xp.asarray(positives, dtype=xp.int64)
        rows = self._unseen.row_keys(self._key, users, positives)
        pool = self._unseen.sample(users, rows, sampler.pool_size)  # (B, P)
        asked = xp.concat([positives[:, None], xp.maximum(pool, self._unseen.zero)], axis=1)
        scores = xp.astype(score(users, asked), xp.float32)
        if scores.shape != asked.shape:
            raise ConfigError(
                f"for items {tuple(asked.shape)} the scorer returned {tuple(scores.shape)}; expected one score each"
            )

        def words(n: int) -> Array:  # those up to P have drawn the pool
            return rng.words(rows, xp.arange(sampler.pool_size + 1, sampler.pool_size + 1 + n, dtype=xp.int64))

        ids, positive, scores = pool[:, : sampler.candidates], scores[:, :1], scores[:, 1:]
        worth = allowed_first(self._worth(pool, positive, scores, words), ids >= 0, xp)
        filled = xp.sum(xp.astype(ids >= 0, xp.int64), axis=1, keepdims=True)
        places = self._take(worth, filled, words)
        if self.observing:
            drawn = logistic(xp.take_along_axis(scores, places, axis=1) - positive, xp)
            self._observed.bins.append(xp.astype(drawn * float(BINS), xp.int64))
        return Negatives(xp.take_along_axis(ids, places, axis=1))

    def _worth(self, pool: Array, positive: Array, scores: Array, words: Words) -> Array:
        """What candidates are worth (B, N): of the `pool` (B, P), -1 where there is none, with `scores` (B, P), and with the
        score of the `positive` (B, 1)."""
        return scores

    def _take(self, worth: Array, filled: Array, words: Words) -> Array:
        """The places (B, K) of the negatives among candidates, of which `filled` (B, 1) are there: the K most worth, again and
        again where there are not so many."""
        return largest_of(worth, filled, self.sampler.n_negatives, self._xp)

    def observations(self, total: Total = lambda sums: sums) -> dict[str, float]:
        return self._observed.summary(total)
