"""AHNS: adaptive hardness negative sampling (Lai et al., AAAI 2024).

Of N uniform candidates the one whose score is nearest to beta * (r_ui + alpha)^(p + 1) is taken, with p <= -2: the higher the
positive scores already, the easier its negative, which keeps false negatives from being pushed down with full force while
positives that score low still get hard ones.

Cost per positive: 1 + N scores. Departures: r_ui + alpha is taken as at least `SMALLEST`, since scores may be negative, for
which the power means nothing; with several negatives per positive, the K nearest are taken, where the paper takes one.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from srns.samplers.base import Array
from srns.samplers.pool import PoolSampler, PoolState, Words

SMALLEST = 0.01


class AHNSState(PoolState):
    def _worth(self, pool: Array, positive: Array, scores: Array, words: Words) -> Array:
        xp, sampler = self._xp, self.sampler
        base = positive + sampler.hardness_offset
        base = xp.where(base > SMALLEST, base, xp.full_like(base, SMALLEST))
        power = base
        for _ in range(-sampler.hardness_power - 2):
            power = power * base
        return -xp.abs(scores - sampler.hardness_scale / power)


class AHNS(PoolSampler):
    """The candidate whose score is nearest to what suits the positive's."""

    name: ClassVar[str] = "ahns"
    cost: ClassVar[str] = "(1 + N) T"
    state: ClassVar[type[PoolState]] = AHNSState

    hardness_scale: float = Field(1.0, gt=0, description="of the score that a negative should have (beta)")
    hardness_offset: float = Field(1.0, ge=0, description="added to the positive's score (alpha)")
    hardness_power: int = Field(-2, ge=-8, le=-2, description="how fast negatives get easier as the positive's score grows (p)")
