"""RNS-AS (Ding et al., Reinforced Negative Sampling for Recommendation with Exposure Data, IJCAI 2019): its adversarial
sampling, without exposure data.

p(j | u) = softmax(g_uj / temperature) over a candidate set of uniform unseen items, drawn anew for every positive;
`srns.samplers.generator` says how g is learnt. Cost per positive: 3 `candidates` F multiplications.

Departures: exposure data, and the part of the reward that is for drawing from them, are left out, as in the comparison of SRNS.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy
from pydantic import Field

from srns.interactions import Interactions
from srns.samplers.generator import Adversarial, CandidatesState


class RNSAS(Adversarial):
    """Hard negatives from a generator over a few candidates, which plays against the recommender."""

    name: ClassVar[str] = "rns_as"
    cost: ClassVar[str] = "3 N T"

    candidates: int = Field(10, ge=1, le=4096, description="uniform unseen items that a negative is chosen from (N, N_s)")

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> CandidatesState:
        return CandidatesState(self, train, seed, xp)
