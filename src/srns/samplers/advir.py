"""AdvIR (Park and Chang, Adversarial Sampling and Training for Semi-Supervised Information Retrieval, WWW 2019): a generator
draws hard negatives, and perturbed embeddings make them and the positives harder still.

The sampling is that of `srns.samplers.rns_as`, a softmax over a candidate set. The training is `perturbation` of the run, which
any sampler can be combined with (`srns.engines.plain`): presets of the paper set it with this sampler, and without it the two
samplers are the same but for their random numbers. Cost per positive: 3 `candidates` F multiplications, and the loss twice.

Departures: the loss is the run's, pairwise in the presets, and labels are given, so that virtual adversarial examples are left
out, as in the comparison of SRNS.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import numpy
from pydantic import Field

from srns.interactions import Interactions
from srns.samplers.generator import Adversarial, CandidatesState


class AdvIR(Adversarial):
    """Hard negatives from a generator over a few candidates, for a recommender that learns from perturbed embeddings."""

    name: ClassVar[str] = "advir"
    cost: ClassVar[str] = "3 N T, and the loss twice"

    candidates: int = Field(10, ge=1, le=4096, description="uniform unseen items that a negative is chosen from (N, N_s)")

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> CandidatesState:
        return CandidatesState(self, train, seed, xp)
