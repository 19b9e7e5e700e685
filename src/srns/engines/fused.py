"""The fast engine: GMF on the CPU, each epoch one call into `srns.kernels.gmf`. Reaches what `srns.engines.plain` specifies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.config import RunConfig
from srns.engines.plain import initial_model
from srns.errors import DataError
from srns.interactions import Interactions
from srns.kernels import gmf as kernel
from srns.kernels.compiler import needs_compiling
from srns.kernels.unseen import make_pool
from srns.samplers import Uniform
from srns.samplers.truth import Truth
from srns.samplers.unseen import require_unseen
from srns.scorers import GMF


@contextmanager
def _numba_threads(n: int) -> Iterator[None]:
    """Numba's threads within the block; what the caller had set before comes back after it."""
    before = numba.get_num_threads()
    numba.set_num_threads(n)
    try:
        yield
    finally:
        numba.set_num_threads(before)


class FusedEngine:
    """Trains GMF on `train` as `config` says; `run_epoch(0)`, `run_epoch(1)`, ... in turn. Negatives here are uniform;
    `srns.engines.fused_srns` draws others."""

    name = "fused"
    epoch_kernel: ClassVar[Any] = kernel.uniform_epoch
    window: ClassVar[int] = 2 * kernel.WINDOW

    def __init__(self, config: RunConfig, train: Interactions, truth: Truth | None = None) -> None:
        require_unseen(train)
        if len(train) >= 2**32:
            raise DataError(f"{len(train):,} interactions; the fused engine numbers them with 32 bits")
        self.config = config
        self.train = train
        model = initial_model(config, train)
        cells = kernel.make_cells(np.concatenate([model.users, model.items]))
        self._table = kernel.Table(cells, np.zeros(len(cells), np.uint32))
        self._beta = kernel.make_cells(model.beta[None])
        self._batch_size = config.batch_size_for(len(train))
        self._negatives = config.make_sampler().negatives
        shape = (self._batch_size, self._negatives, train.n_items)
        self._batches = kernel.make_batches(*shape, self.window)
        self._scratch = kernel.make_scratch(*shape, config.dim)
        self._threads = min(config.threads or numba.config.NUMBA_NUM_THREADS, numba.config.NUMBA_NUM_THREADS)
        self._places = np.zeros((self._threads, len(cells)), np.uint32)
        self._pool = make_pool(train if truth is None or truth.noise is None else train.union(*truth.noise))
        self._known = kernel.make_known(truth.positives if truth is not None else None)
        self._label_errors: float | None = None
        self._l2 = config.l2_for(len(train), int(np.count_nonzero(train.user_counts)))
        self._steps = 0

    @staticmethod
    def supports(config: RunConfig) -> bool:
        return config.scorer == GMF.name and config.loss in kernel.LOSSES and config.sampler == Uniform.name

    @classmethod
    def needs_compiling(cls) -> bool:
        """Whether the first epoch will spend seconds on compilation, as it does once per installation."""
        return needs_compiling(cls.epoch_kernel)

    @property
    def model(self) -> GMF:
        """A copy of the current parameters."""
        n_users, dim = self.train.n_users, self.config.dim
        values, beta = (np.array(kernel.parts_of(cells, dim)[0]) for cells in (self._table.cells, self._beta))
        return GMF(values[:n_users], values[n_users:], beta[0])

    def run_epoch(self, epoch: int) -> float:
        """One pass over the shuffled positives; returns the mean loss per positive."""
        n = len(self.train)
        if n == 0:
            return 0.0
        steps = -(-n // self._batch_size)
        totals = np.zeros(2)
        with _numba_threads(self._threads):
            type(self).epoch_kernel(
                self._threads,
                self.train.users,
                self.train.items,
                rng.feistel(rng.stream_key(self.config.seed, "shuffle", epoch), n),
                self._pool,
                self._known,
                *self._drawing(epoch),
                kernel.Learning(kernel.LOSSES[self.config.loss], np.float32(self._l2), self.config.learn_beta),
                self._beta,
                self._table,
                kernel.make_decay(self._steps, steps, self.config.learning_rate_at(epoch)),
                self._batches,
                self._scratch,
                self._places,
                totals,
            )
        self._steps += steps
        self._label_errors = float(totals[1] / (n * self._negatives))
        return float(totals[0] / n)

    def _drawing(self, epoch: int) -> tuple[Any, ...]:
        """What the kernel needs to draw this epoch's negatives."""
        return (kernel_key(self.config.seed, Uniform.name, epoch),)

    def observations(self) -> dict[str, float]:
        """What was drawn in the last epoch, see `srns.samplers.observations`."""
        return {} if self._label_errors is None or not len(self._known.items) else {"label_error_ratio": self._label_errors}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        return {"steps": np.asarray(self._steps)} | {name: np.array(part) for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        for name, part in self._parts().items():
            part[:] = state[name]

    def _parts(self) -> dict[str, NDArray[Any]]:
        """Views of all that changes from epoch to epoch, by name: parameters and what `srns.kernels.gmf` keeps for them."""
        return {
            f"{kind}.{name}": part
            for name, cells in (("rows", self._table.cells), ("beta", self._beta))
            for kind, part in zip(("value", "direction", "root"), kernel.parts_of(cells, self.config.dim), strict=True)
        }


def kernel_key(seed: int, stream: str, epoch: int) -> tuple[np.uint32, np.uint32]:
    """`srns.rng.stream_key` as kernels take it."""
    key = rng.stream_key(seed, stream, epoch)
    return np.uint32(key.a), np.uint32(key.b)
