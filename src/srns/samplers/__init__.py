"""Samplers by name: a new one is a new file, a line here and a test."""

from __future__ import annotations

from srns.samplers.base import Negatives, Sampler, SamplerState, Score
from srns.samplers.uniform import Uniform

SAMPLERS: dict[str, type[Sampler]] = {sampler.name: sampler for sampler in (Uniform,)}

__all__ = ["SAMPLERS", "Negatives", "Sampler", "SamplerState", "Score", "Uniform"]
