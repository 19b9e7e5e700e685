"""AdvIR (Park and Chang, Adversarial Sampling and Training for Semi-Supervised Information Retrieval, WWW 2019): a generator
draws hard negatives, and perturbed embeddings make them and the positives harder still.

The sampling is that of `srns.samplers.rns_as`, a softmax over a candidate set. The training is `perturbation` of the run, which
any sampler can be combined with (`srns.engines.plain`): presets of the paper set it with this sampler, and without it the two
samplers are the same but for their random numbers. With x the rows of a positive and its negatives, each with its own gradient
g = dL / dx, a step minimises

    L(x) + L(x + epsilon g / |g|).

Cost per positive: 3 `candidates` F multiplications, and the loss twice.

Departures: the loss is the run's, pairwise in the presets, and labels are given, so that virtual adversarial examples are left
out, as in the comparison of SRNS.
"""

from __future__ import annotations

from typing import ClassVar

from srns.samplers.generator import AmongCandidates


class AdvIR(AmongCandidates):
    """Hard negatives from a generator over a few candidates, for a recommender that learns from perturbed embeddings."""

    name: ClassVar[str] = "advir"
    cost: ClassVar[str] = "3 N T + (|U| + |I|) F / B, and the loss twice"
