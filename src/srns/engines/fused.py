"""The fast engine: GMF on the CPU, each epoch one call into `srns.kernels.gmf`. Reaches what `srns.engines.plain` specifies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.config import RunConfig
from srns.errors import DataError
from srns.interactions import Interactions
from srns.kernels import gmf as kernel
from srns.kernels.compiler import needs_compiling
from srns.samplers import Uniform
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
    """Trains GMF on `train` as `config` says; `run_epoch(0)`, `run_epoch(1)`, ... in turn."""

    name = "fused"

    def __init__(self, config: RunConfig, train: Interactions) -> None:
        require_unseen(train)
        if len(train) >= 2**32:
            raise DataError(f"{len(train):,} interactions; the fused engine numbers them with 32 bits")
        self.config = config
        self.train = train
        model = GMF.init(train.n_users, train.n_items, config.dim, config.seed)
        cells = kernel.make_cells(np.concatenate([model.users, model.items]))
        self._table = kernel.Table(cells, np.zeros(len(cells), np.uint32))
        self._beta = kernel.make_cells(model.beta[None])
        batch_size = config.batch_size_for(len(train))
        self._batches = kernel.make_batches(batch_size)
        self._scratch = kernel.make_scratch(batch_size, config.dim)
        self._threads = min(config.threads or numba.config.NUMBA_NUM_THREADS, numba.config.NUMBA_NUM_THREADS)
        self._places = np.zeros((self._threads, len(cells)), np.uint32)
        self._batch_size = batch_size
        self._steps = 0

    @staticmethod
    def supports(config: RunConfig) -> bool:
        return config.scorer == GMF.name and config.loss == "bpr" and config.sampler == Uniform.name

    @staticmethod
    def needs_compiling() -> bool:
        """Whether the first epoch will spend seconds on compilation, as it does once per installation."""
        return needs_compiling(kernel.uniform_epoch)

    @property
    def model(self) -> GMF:
        """A copy of the current parameters."""
        n_users, dim = self.train.n_users, self.config.dim
        values, beta = (np.array(kernel.parts_of(cells, dim)[0]) for cells in (self._table.cells, self._beta))
        return GMF(values[:n_users], values[n_users:], beta[0])

    def run_epoch(self, epoch: int) -> float:
        """One pass over the shuffled positives; returns the mean loss per positive."""
        n, seed = len(self.train), self.config.seed
        if n == 0:
            return 0.0
        steps = -(-n // self._batch_size)
        key = rng.stream_key(seed, Uniform.name, epoch)
        losses = np.zeros(1)
        with _numba_threads(self._threads):
            kernel.uniform_epoch(
                self._threads,
                self.train.users,
                self.train.items,
                self.train.indptr,
                self.train.n_items,
                rng.feistel(rng.stream_key(seed, "shuffle", epoch), n),
                (np.uint32(key.a), np.uint32(key.b)),
                np.float32(self.config.l2),
                self._beta,
                self._table,
                kernel.make_decay(self._steps, steps, self.config.learning_rate),
                self._batches,
                self._scratch,
                self._places,
                losses,
            )
        self._steps += steps
        return float(losses[0] / n)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        return {"steps": np.asarray(self._steps)} | {name: np.array(part) for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        for name, part in self._parts().items():
            part[:] = state[name]

    def _parts(self) -> dict[str, NDArray[np.float32]]:
        """Views of the parameters and of the Adam state that `srns.kernels.gmf` keeps for them, by name."""
        return {
            f"{kind}.{name}": part
            for name, cells in (("rows", self._table.cells), ("beta", self._beta))
            for kind, part in zip(("value", "direction", "root"), kernel.parts_of(cells, self.config.dim), strict=True)
        }
