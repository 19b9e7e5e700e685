"""The fast engine: GMF on the CPU, each epoch one call into compiled code (`srns.kernels`). Reaches what `srns.engines.plain`
specifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.config import RunConfig
from srns.engines.plain import initial_model
from srns.errors import DataError
from srns.interactions import Interactions
from srns.kernels import batches, crew, gmf, step, uniform
from srns.kernels.compiler import needs_compiling
from srns.kernels.lanes import aligned_zeros, padded
from srns.kernels.unseen import make_pool
from srns.samplers import Uniform
from srns.samplers.truth import Truth
from srns.samplers.unseen import require_unseen
from srns.scorers import GMF


class FusedEngine:
    """Trains GMF on `train` as `config` says; `run_epoch(0)`, `run_epoch(1)`, ... in turn. Negatives here are uniform;
    `srns.engines.fused_srns` draws others."""

    name = "fused"
    user_tensors: tuple[str, ...] = ("users",)
    uses_l2 = True
    epoch_kernel: ClassVar[Any] = uniform.uniform_epoch

    def __init__(self, config: RunConfig, train: Interactions, truth: Truth | None = None) -> None:
        require_unseen(train)
        if len(train) >= 2**32:
            raise DataError(f"{len(train):,} interactions; the fused engine numbers them with 32 bits")
        self.config = config
        self.train = train
        model = initial_model(config, train)
        cells = gmf.make_cells(np.concatenate([model.users, model.items]))
        self._table = gmf.Table(cells, np.zeros(len(cells), np.uint32))
        self._beta = gmf.make_cells(model.beta[None])
        self._batch_size = config.batch_size_for(len(train))
        self._negatives = config.make_sampler().n_negatives
        self._threads = config.threads or numba.config.NUMBA_NUM_THREADS
        shape = (self._batch_size, self._negatives)
        self._batches = batches.make_batches(batches.WINDOW, *shape)
        self._pulls = step.make_pulls(*shape, config.dim)
        self._shards = step.make_shards(self._threads, *shape, train.n_users, train.n_items, config.dim)
        self._pool = make_pool(train if truth is None or truth.noise is None else train.union(*truth.noise))
        self._known = batches.make_known(truth.positives if truth is not None else None, self._threads)
        self._nothing = aligned_zeros(0, padded(config.dim))
        self._current = self._room_for_items(train.n_items <= self._batch_size * self._negatives)
        self._label_errors: float | None = None
        l2, none = config.l2_for(train.whole.n, train.whole.n_active), np.zeros(0, np.float32)
        correction = self._correction() if config.log_q else (none, none)
        self._learning = step.Learning(step.LOSSES[config.loss], np.float32(l2), config.learn_beta, *correction)
        self._steps = 0

    def _room_for_items(self, used: bool) -> NDArray[np.float32]:
        """Where steps that read most items keep their rows as they are now, one after another (I, width); or none."""
        return aligned_zeros(self.train.n_items if used else 0, padded(self.config.dim))

    def _correction(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """-log(K q_j), by which `srns.losses.softmax` raises margins: a part of users (U,), and less that one of items (I,)."""
        unseen = (self.train.n_items - self.train.user_counts) / self._negatives
        return np.log(unseen).astype(np.float32), np.zeros(self.train.n_items, np.float32)

    @staticmethod
    def supports(config: RunConfig) -> bool:
        return has_kernels(config) and config.sampler == Uniform.name

    @classmethod
    def needs_compiling(cls) -> bool:
        """Whether the first epoch will spend seconds on compilation, as it does once per installation."""
        return needs_compiling(cls.epoch_kernel)

    @property
    def model(self) -> GMF:
        """A copy of the current parameters."""
        n_users, dim = self.train.n_users, self.config.dim
        values, beta = (np.array(gmf.parts_of(cells, dim)[0]) for cells in (self._table.cells, self._beta))
        return GMF(values[:n_users], values[n_users:], beta[0])

    def run_epoch(self, epoch: int) -> float:
        """One pass over the shuffled positives; returns the mean loss per positive."""
        n = len(self.train)
        if n == 0:
            return 0.0
        config, steps = self.config, -(-n // self._batch_size)
        totals = np.zeros((self._threads, 2))
        self._known.drawn[:] = 0
        self._pulls.betas[:] = self._beta[:, : self._pulls.betas.shape[1]]
        crew.run(
            type(self).epoch_kernel,
            self._threads,
            self.train.users,
            self.train.items,
            rng.feistel(rng.stream_key(config.seed, "shuffle", epoch), n),
            self._pool,
            self._known,
            self._batches,
            self._learning,
            self._beta,
            self._table,
            gmf.make_decay(self._steps, steps, config.learning_rate_at(epoch)),
            self._pulls,
            self._shards,
            totals,
            *self._drawing(epoch),
        )
        self._steps += steps
        loss, errors = totals.sum(axis=0)
        self._label_errors = float(errors / (n * self._negatives))
        return float(loss / n)

    def _drawing(self, epoch: int) -> tuple[Any, ...]:
        """What the kernel needs to draw this epoch's negatives."""
        return kernel_key(self.config.seed, Uniform.name, epoch), self._current, self._nothing

    def start_from(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Begin with the parameters of a trained model."""
        parts = self._parts()
        parts["value.rows"][:] = np.concatenate([tensors["users"], tensors["items"]])
        parts["value.beta"][:] = tensors["beta"]

    def memories(self) -> dict[str, NDArray[Any]]:
        """What the sampler leaves to a run that goes on with more data; here it remembers nothing."""
        return {}

    def take_over(self, memories: Mapping[str, NDArray[Any]]) -> None: ...

    def observations(self) -> dict[str, float]:
        """What was drawn in the last epoch, see `srns.samplers.observations`."""
        return {} if self._label_errors is None or not len(self._known.items) else {"label_error_ratio": self._label_errors}

    def known_draws(self) -> NDArray[np.float64]:
        """How often each known positive outside train was a negative in the last epoch, in units of positives."""
        return np.asarray(self._known.drawn.sum(axis=0) / self._negatives)

    @staticmethod
    def by_user(name: str) -> bool:
        return False  # one process alone: nothing is ever cut

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        return {"steps": np.asarray(self._steps)} | {name: np.array(part) for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        for name, part in self._parts().items():
            part[:] = state[name]

    def _parts(self) -> dict[str, NDArray[Any]]:
        """Views of all that changes from epoch to epoch, by name: parameters and the state of Adam (`srns.kernels.gmf`)."""
        return {
            f"{kind}.{name}": part
            for name, cells in (("rows", self._table.cells), ("beta", self._beta))
            for kind, part in zip(("value", "direction", "root"), gmf.parts_of(cells, self.config.dim), strict=True)
        }


def has_kernels(config: RunConfig) -> bool:
    """Whether there are kernels of the scorer and the loss, on the device that is asked for."""
    known = config.scorer == GMF.name and config.loss in step.LOSSES and not config.perturbation
    return known and config.device in ("auto", "cpu")


def kernel_key(seed: int, stream: str, epoch: int) -> tuple[np.uint32, np.uint32]:
    """`srns.rng.stream_key` as kernels take it."""
    key = rng.stream_key(seed, stream, epoch)
    return np.uint32(key.a), np.uint32(key.b)
