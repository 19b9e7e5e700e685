"""RNS-AS (Ding et al., Reinforced Negative Sampling for Recommendation with Exposure Data, IJCAI 2019): its adversarial
sampling, without exposure data.

p(j | u) = softmax(g_uj / temperature) over a candidate set of uniform unseen items, drawn anew for every positive;
`srns.samplers.generator` says how g is learnt. Cost per positive: 3 `candidates` F multiplications, and
dense Adam over the generator's factors once per batch.

Departures: exposure data, and the part of the reward that is for drawing from them, are left out, as in the comparison of SRNS.
"""

from __future__ import annotations

from typing import ClassVar

from srns.samplers.generator import AmongCandidates


class RNSAS(AmongCandidates):
    """Hard negatives from a generator over a few candidates, which plays against the recommender."""

    name: ClassVar[str] = "rns_as"
    cost: ClassVar[str] = "3 N T + (|U| + |I|) F / B"
