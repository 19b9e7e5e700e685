"""Engines run epochs: `fused` where scorer, sampler and loss have kernels, `plain` for everything else."""

from __future__ import annotations

from srns.config import RunConfig
from srns.engines.fused import FusedEngine
from srns.engines.fused_srns import FusedSrnsEngine
from srns.engines.plain import PlainEngine
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.samplers import Truth

Engine = FusedEngine | PlainEngine


def make_engine(config: RunConfig, train: Interactions, truth: Truth | None = None) -> Engine:
    """The engine that `config.engine` names; auto takes fused wherever it can. `truth` is what an experimenter knows."""
    fused = next((engine for engine in (FusedEngine, FusedSrnsEngine) if engine.supports(config)), None)
    if config.engine == "plain" or (config.engine == "auto" and fused is None):
        return PlainEngine(config, train, truth)
    if fused is None:
        raise ConfigError(f"engine 'fused' has no kernel for sampler {config.sampler!r} as set; use engine 'plain' or 'auto'")
    return fused(config, train, truth)


__all__ = ["Engine", "FusedEngine", "FusedSrnsEngine", "PlainEngine", "make_engine"]
