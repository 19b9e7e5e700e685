"""Samplers by name: a new one is a new file, a line here and a test."""

from __future__ import annotations

from srns.samplers.adasir import AdaSIR
from srns.samplers.base import Negatives, Sampler, SamplerState, Score
from srns.samplers.dens import DENS
from srns.samplers.in_batch import InBatch
from srns.samplers.mixgcf import MixGCF
from srns.samplers.nncf import NNCF
from srns.samplers.srns import SRNS
from srns.samplers.truth import Noise, Truth
from srns.samplers.uniform import Uniform

SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler
    for sampler in (
        SRNS,
        Uniform,
        NNCF,
        InBatch,
        AdaSIR,
        MixGCF,
        DENS,
    )
}

__all__ = ["SAMPLERS", "SRNS", "Negatives", "Noise", "Sampler", "SamplerState", "Score", "Truth", "Uniform"]
