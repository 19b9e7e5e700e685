"""What every sampler is: a frozen set of hyper-parameters that starts a state, which draws negatives.

Samplers return ids, never losses. The array-API form here is the specification and serves any training loop; where a
method is hot in the fused engine, a kernel is its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy
from pydantic import BaseModel, ConfigDict

from srns.interactions import Interactions, Total

Array = Any  # an array of any library that follows the Python array API: NumPy, PyTorch, ...
Score = Callable[[Array, Array], Array]  # users (B,), items (B, K) -> scores (B, K); no side effect


class Negatives(NamedTuple):
    """Drawn negatives: `ids` (B, K) and, where the sampler knows it, the log of their sampling probability, `log_q` (B, K)."""

    ids: Array
    log_q: Array | None = None


class Sampler(BaseModel):
    """A method of choosing negatives; its fields are its hyper-parameters, and `start` begins a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]
    knows_log_q: ClassVar[bool] = False  # whether `sample` says how likely each draw was
    negatives: int

    @property
    def n_negatives(self) -> int:
        """How many negatives each positive gets (K)."""
        return self.negatives

    def start(self, train: Interactions, *, seed: int, xp: ModuleType = numpy) -> SamplerState:
        """The state of a run over `train`, with arrays of the library `xp`."""
        raise NotImplementedError


class SamplerState:
    """A running sampler. Subclasses draw in `sample` and override the rest where they learn or remember.

    With `observing` set, it notes what it draws for `observations`, which takes a few numbers per negative until the epoch
    ends.
    """

    observing: bool = False

    def begin_epoch(self, epoch: int, score: Score) -> None:
        """Called once before each epoch, counted from 0; draws depend on it."""

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        """Negatives for each (user, positive) of a batch: (B,), (B,) -> ids (B, K). `step` counts batches within the epoch."""
        raise NotImplementedError

    def feedback(self, users: Array, negatives: Array, reward: Array) -> None:
        """What the drawn negatives were worth, for samplers that learn from it."""

    def observations(self, total: Total = lambda sums: sums) -> dict[str, float]:
        """What the sampler did since `begin_epoch`, for people: names and numbers. `total` adds arrays up over ranks."""
        return {}

    def needs_compiling(self) -> bool:
        """Whether the first epoch will spend seconds on the compilation of twins."""
        return False

    def state_dict(self) -> dict[str, Array]:
        """Everything a resumed run needs to go on exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over a state that `state_dict` returned."""


class Twins(Protocol):
    """Compiled forms of what `srns.samplers.srns` and `srns.samplers.unseen` do row by row, for arrays in main memory:
    `srns.kernels.rows`. Rows are pairs of words (B,) as of `srns.rng.row_keys`, scores those of [positive | memory | fresh]."""

    def needs_compiling(self, names: Iterable[str]) -> bool:
        """Whether the first call of any of the twins of these names will compile it."""

    def expand(self, users: Array, rows: tuple[Array, Array], counts: Array, table: Array, n_items: int, size: int) -> Array:
        """`Unseen.sample` by its `counts` and `table` of unseen items: (B, size)."""

    def choose(
        self, memory: Array, scores: Array, past: list[Array], weight: float, n_negatives: int
    ) -> tuple[Array, Array, Array | None]:
        """`SRNSState._choose` with scores at the ends of `past` epochs."""

    def renew(
        self, rows: tuple[Array, Array], asked: Array, scores: Array, reserved: Array, memory_size: int, inverse: float
    ) -> Array:
        """`SRNSState._winners` at `inverse` temperature."""
