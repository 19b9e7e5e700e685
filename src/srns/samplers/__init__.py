"""Samplers by name: a new one is a new file, a line here and a test."""

from __future__ import annotations

from srns.samplers.adasir import AdaSIR
from srns.samplers.advir import AdvIR
from srns.samplers.ahns import AHNS
from srns.samplers.aobpr import AOBPR
from srns.samplers.base import Negatives, Sampler, SamplerState, Score
from srns.samplers.bns import BNS
from srns.samplers.dens import DENS
from srns.samplers.dns import DNS, DNSMN, Softmax
from srns.samplers.enmf import ENMF
from srns.samplers.in_batch import InBatch
from srns.samplers.irgan import IRGAN
from srns.samplers.mixgcf import MixGCF
from srns.samplers.nncf import NNCF
from srns.samplers.popularity import Popularity
from srns.samplers.rns_as import RNSAS
from srns.samplers.srns import SRNS
from srns.samplers.truth import Noise, Truth
from srns.samplers.uniform import Uniform

SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler
    for sampler in (
        SRNS,
        Uniform,
        Popularity,
        NNCF,
        AOBPR,
        IRGAN,
        RNSAS,
        AdvIR,
        DNS,
        DNSMN,
        Softmax,
        BNS,
        AHNS,
        AdaSIR,
        MixGCF,
        DENS,
        InBatch,
        ENMF,
    )
}

__all__ = ["ENMF", "SAMPLERS", "SRNS", "Negatives", "Noise", "Sampler", "SamplerState", "Score", "Truth", "Uniform"]
