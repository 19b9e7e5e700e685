"""What every sampler is: a frozen set of hyper-parameters that starts a state, which draws negatives.

Samplers return ids, never losses. The array-API form here is the specification and serves any training loop; where a
method is hot in the fused engine, a kernel is its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Protocol

import array_api_compat
import numpy
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from srns.interactions import Interactions, Total

Array = Any  # an array of any library that follows the Python array API: NumPy, PyTorch, ...
Score = Callable[[Array, Array], Array]  # users (B,), items (B, K) -> scores (B, K); no side effect

NO_EPOCH = -1  # before the first has begun
NOT_BEGUN = "no epoch has begun: call begin_epoch(epoch, score) before sample, and again for each epoch"


class Negatives(NamedTuple):
    """Drawn negatives: `ids` (B, K), or (1, K) where all positives of the batch share them.

    Where the sampler knows it, the log of their sampling probability is `log_q` (B, K). `weight` (B, K) is what each counts for
    in the loss beside the others of its row, 0: nothing, as a shared negative must for a user who has interacted with it.
    `blend` (B, K) is the share of the positive that is mixed into each: its score is (1 - blend) r_uj + blend r_ui. Where ids
    and blend are (B, K, L + 1), that is done in each layer of a scorer with layers, and the mean over layers is the score.
    """

    ids: Array
    log_q: Array | None = None
    weight: Array | None = None
    blend: Array | None = None

    def share(self) -> Array:
        """What a negative of weight 1 is of all that counts beside the same positive: (B, 1) float64, or (1, 1) where it is the
        same for all; 0 where nothing counts.

        >>> Negatives(np.array([[5, 3, 5, 4]]), weight=np.array([[0.0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]])).share().tolist()
        [[0.5], [0.25], [0.0]]
        """
        xp = array_api_compat.array_namespace(self.ids)
        weight = xp.ones_like(self.ids) if self.weight is None else self.weight
        total = xp.sum(weight, axis=1, keepdims=True, dtype=xp.float64)
        return xp.where(total > 0, 1 / xp.where(total > 0, total, xp.ones_like(total)), xp.zeros_like(total))


class Sampler(BaseModel):
    """A method of choosing negatives; its fields are its hyper-parameters, and `start` begins a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]
    cost: ClassVar[str] = ""  # per positive, as a formula: T is the time of one score, K the number of negatives
    knows_log_q: ClassVar[bool] = False  # whether `sample` says how likely each draw was
    learns: ClassVar[bool] = False  # whether it wants `feedback`
    needs_torch: ClassVar[bool] = False  # whether only the torch engine can run it
    one_rank: ClassVar[bool] = False  # whether what it draws for a positive depends on others of the batch, which ranks divide
    draws: ClassVar[bool] = True  # whether it draws at all; else an engine of its own learns from all pairs

    @property
    def n_negatives(self) -> int:
        """How many negatives each positive gets (K), where that does not depend on its batch; else 0."""
        return int(getattr(self, "negatives", 0))

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

    def order(self, epoch: int) -> NDArray[np.int64] | None:
        """The order in which an epoch takes the training interactions, where the method has one of its own; else a shuffle."""
        return None

    def sample(self, users: Array, positives: Array, score: Score, step: int) -> Negatives:
        """Negatives for each (user, positive) of a batch: (B,), (B,) -> ids (B, K). `step` counts batches within the epoch."""
        raise NotImplementedError

    def feedback(self, users: Array, negatives: Array, reward: Array) -> None:
        """How hard the negatives (B, K) that `sample` just drew were for the model, P_pos = sigmoid(r_uj - r_ui) (B, K), for
        samplers that learn from it."""

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

    def by_user(self, name: str, of_model: Collection[str]) -> bool:
        """Whether the tensor `name` of `state_dict` has a row per user, to be divided among ranks with the users; `of_model`
        names the tensors of the model that have. A sampler with `one_rank` need not say."""
        return False

    def memories(self) -> dict[str, Array]:
        """What outlives a run, for one that goes on with more users and items (`srns.carrying`): `memory` (n_users, S1) item
        ids, the number of `epochs` behind it, and past model tensors as `past.SLOT.NAME`; empty where nothing does."""
        return {}

    def take_over(self, memories: Mapping[str, Array]) -> None:
        """Begin with memories of a run before, in the users and items of this one; before the first epoch."""


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
