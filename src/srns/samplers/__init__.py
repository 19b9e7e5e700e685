"""Samplers by name: a new one is a new file, a line here and a test."""

from __future__ import annotations

from srns.samplers.advir import AdvIR
from srns.samplers.base import Negatives, Sampler, SamplerState, Score
from srns.samplers.irgan import IRGAN
from srns.samplers.rns_as import RNSAS
from srns.samplers.srns import SRNS
from srns.samplers.truth import Noise, Truth
from srns.samplers.uniform import Uniform

SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler
    for sampler in (
        SRNS,
        Uniform,
        IRGAN,
        RNSAS,
        AdvIR,
    )
}

__all__ = [
    "IRGAN", "RNSAS", "SAMPLERS", "SRNS", "AdvIR", "Negatives", "Noise", "Sampler", "SamplerState", "Score", "Truth", "Uniform",
]  # fmt: skip
