"""The fast engine: GMF on the CPU, each epoch one call into `srns.kernels.gmf`. Reaches what `srns.engines.plain` specifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.config import RunConfig
from srns.interactions import Interactions
from srns.kernels import gmf as kernel
from srns.kernels.compiler import needs_compiling
from srns.samplers import Uniform
from srns.samplers.unseen import Unseen
from srns.scorers import GMF


class FusedEngine:
    """Trains GMF on `train` as `config` says; `run_epoch(0)`, `run_epoch(1)`, ... in turn."""

    name = "fused"

    def __init__(self, config: RunConfig, train: Interactions) -> None:
        Unseen(train, np)  # refuses a user without a single unseen item, for whom the kernel could not draw
        self.config = config
        self.train = train
        model = GMF.init(train.n_users, train.n_items, config.dim, config.seed)
        values = np.concatenate([model.users, model.items])
        self._table = kernel.Table(values, np.zeros_like(values), np.zeros_like(values), np.zeros(len(values), np.int64))
        self._beta = np.zeros((3, config.dim), np.float32)
        self._beta[0] = model.beta
        batch_size = config.batch_size_for(len(train))
        self._windows = kernel.make_batches(batch_size), kernel.make_batches(batch_size)
        self._scratch = np.zeros((3 * batch_size + 1, config.dim), np.float32), np.zeros(batch_size, np.float32)
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
        """A view of the current parameters."""
        n_users = self.train.n_users
        return GMF(self._table.values[:n_users], self._table.values[n_users:], self._beta[0])

    def run_epoch(self, epoch: int) -> float:
        """One pass over the shuffled positives; returns the mean loss per positive."""
        n, seed = len(self.train), self.config.seed
        if n == 0:
            return 0.0
        steps = -(-n // self._batch_size)
        key = rng.stream_key(seed, Uniform.name, epoch)
        threads = min(self.config.threads or numba.config.NUMBA_NUM_THREADS, numba.config.NUMBA_NUM_THREADS)
        numba.set_num_threads(threads)
        loss = kernel.uniform_epoch(
            threads,
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
            *self._windows,
            *self._scratch,
        )
        self._steps += steps
        return loss / n

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        return {
            "steps": np.asarray(self._steps),
            "values": self._table.values,
            "first": self._table.first,
            "second": self._table.second,
            "beta": self._beta,
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        for name in ("values", "first", "second"):
            getattr(self._table, name)[:] = state[name]
        self._beta[:] = state["beta"]
