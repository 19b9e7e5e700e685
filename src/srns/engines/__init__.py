"""Engines run epochs: `fused` where scorer, sampler and loss have kernels, `plain` for other samplers and losses of GMF,
`torch` for other scorers, devices and several ranks, `classical` for methods that draw no negatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from srns.config import RunConfig
from srns.engines.classical import make_classical
from srns.engines.enmf import EnmfEngine
from srns.engines.fused import FusedEngine
from srns.engines.fused_candidates import FusedCandidatesEngine
from srns.engines.fused_shared import FusedSharedEngine
from srns.engines.fused_srns import FusedSrnsEngine
from srns.engines.plain import PlainEngine
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.ranks import ALONE, Ranks
from srns.samplers import SAMPLERS, Truth
from srns.scorers import GMF, WITHOUT_NEGATIVES, Model

FUSED = (FusedEngine, FusedSrnsEngine, FusedCandidatesEngine, FusedSharedEngine)
Factory = Callable[[Interactions], Any]  # makes a torch module of one's own


class Engine(Protocol):
    """What the trainer needs of an engine."""

    name: str
    user_tensors: tuple[str, ...]  # names of model tensors with a row per user
    uses_l2: bool  # whether l2 pulls on anything

    @property
    def model(self) -> Model: ...
    def needs_compiling(self) -> bool: ...
    def start_from(self, tensors: Mapping[str, NDArray[Any]]) -> None: ...  # before the first epoch
    def memories(self) -> dict[str, NDArray[Any]]: ...  # what the sampler leaves to a run that goes on with more data
    def take_over(self, memories: Mapping[str, NDArray[Any]]) -> None: ...  # before the first epoch
    def run_epoch(self, epoch: int) -> float: ...
    def observations(self) -> dict[str, float]: ...
    def known_draws(self) -> NDArray[Any]: ...  # how often each known positive was drawn in the last epoch
    def state_dict(self) -> dict[str, NDArray[Any]]: ...
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None: ...
    def by_user(self, name: str) -> bool: ...  # whether a tensor of the state can be cut by users


def make_engine(
    config: RunConfig,
    train: Interactions,
    truth: Truth | None = None,
    *,
    ranks: Ranks = ALONE,
    factory: Factory | None = None,
) -> Engine:
    """The engine that `config.engine` names; auto takes fused wherever it can. `truth` is what an experimenter knows, `factory`
    makes a scorer of one's own."""
    if config.scorer in WITHOUT_NEGATIVES and factory is None:
        return make_classical(config, train, ranks)
    if not SAMPLERS[config.sampler].draws:
        if factory is not None:
            raise ConfigError(f"sampler {config.sampler!r} trains scorer 'gmf', no module of your own")
        return EnmfEngine(config, train, ranks)
    name, fused = config.engine, next((engine for engine in FUSED if engine.supports(config)), None)
    beyond = _beyond_numpy(config, ranks, factory)
    if name == "torch" or (name == "auto" and beyond):
        engine: Engine = _torch_engine(beyond)(config, train, truth, ranks=ranks, factory=factory)
        return engine
    if beyond:
        raise ConfigError(f"engine {name!r} cannot train {beyond}; use engine 'torch' or 'auto'")
    if name == "plain" or (name == "auto" and fused is None):
        return PlainEngine(config, train, truth)
    if fused is None:
        raise ConfigError(
            f"engine 'fused' has no kernel for sampler {config.sampler!r} as set with loss {config.loss!r}"
            f"{' and a perturbation' if config.perturbation else ''}; use 'auto'"
        )
    return fused(config, train, truth)


def _beyond_numpy(config: RunConfig, ranks: Ranks, factory: Factory | None) -> str:
    """What of a run only torch can do."""
    if factory is not None:
        return "a module of your own"
    if config.scorer != GMF.name:
        return f"scorer {config.scorer!r}"
    if SAMPLERS[config.sampler].needs_torch:
        return f"with sampler {config.sampler!r}"
    if ranks.size > 1:
        return f"on {ranks.size} ranks"
    return "" if config.device in ("auto", "cpu") else f"on device {config.device!r}"


def _torch_engine(needed: str) -> Any:
    try:
        from srns.engines.torch import TorchEngine
    except ImportError as error:
        if error.name != "torch":
            raise
        why = f", which trains {needed}," if needed else ""
        raise ConfigError(f"the torch engine{why} needs PyTorch, which is not installed: pip install 'srns[torch]'") from None
    return TorchEngine


__all__ = [
    "Engine",
    "Factory",
    "FusedCandidatesEngine",
    "FusedEngine",
    "FusedSharedEngine",
    "FusedSrnsEngine",
    "PlainEngine",
    "make_engine",
]
