"""Engines run epochs: `fused` where scorer, sampler and loss have kernels, `plain` for everything else."""

from __future__ import annotations

from srns.config import RunConfig
from srns.engines.fused import FusedEngine
from srns.engines.plain import PlainEngine
from srns.errors import ConfigError
from srns.interactions import Interactions

Engine = FusedEngine | PlainEngine


def make_engine(config: RunConfig, train: Interactions) -> Engine:
    """The engine that `config.engine` names; auto takes fused wherever it can."""
    if config.engine == "plain" or (config.engine == "auto" and not FusedEngine.supports(config)):
        return PlainEngine(config, train)
    if not FusedEngine.supports(config):
        raise ConfigError(f"engine 'fused' has no kernel for sampler {config.sampler!r}; use engine 'plain' or 'auto'")
    return FusedEngine(config, train)


__all__ = ["Engine", "FusedEngine", "PlainEngine", "make_engine"]
