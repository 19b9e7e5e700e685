"""The fast engine with SRNS negatives: memories and past parameters around `srns.kernels.srns`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from srns.config import RunConfig
from srns.engines.fused import FusedEngine, has_kernels, kernel_key
from srns.interactions import Interactions
from srns.kernels import srns as kernel
from srns.kernels.batches import WINDOW
from srns.kernels.gmf import parts_of
from srns.kernels.memory import STRATEGIES
from srns.kernels.step import PACKED
from srns.samplers import SRNS
from srns.samplers.observations import BINS, summarise
from srns.samplers.truth import Truth


class FusedSrnsEngine(FusedEngine):
    """GMF with SRNS; the twin of `srns.samplers.srns.SRNSState`, whose memories it starts from."""

    epoch_kernel: ClassVar[Any] = kernel.srns_epoch

    def __init__(self, config: RunConfig, train: Interactions, truth: Truth | None = None) -> None:
        super().__init__(config, train, truth)
        sampler = config.make_sampler()
        assert isinstance(sampler, SRNS)
        self.sampler = sampler
        noise = None if truth is None else truth.noise
        slots = sampler.start(train, seed=config.seed, noise=noise).memory.astype(np.int32)
        self._epochs = np.zeros(2, np.int64)  # of the run whose memories these are; of that and of this one
        self._memories = kernel.make_memories(slots, WINDOW, self._batch_size, None if noise is None else noise.hidden)
        sizes = (train.n_users, train.n_items) if sampler.needs_past else (0, 0)
        self._past = kernel.make_past(*sizes, sampler.history_epochs, config.dim)
        packed = sampler.criterion == "stale_scores" or train.n_items <= PACKED * self._batch_size
        self._current = self._room_for_items(packed)
        self._desk = kernel.make_desk(self._threads, sampler, config.dim, train.n_items)

    @staticmethod
    def supports(config: RunConfig) -> bool:
        if not has_kernels(config) or config.sampler != SRNS.name:
            return False
        sampler = config.make_sampler()
        assert isinstance(sampler, SRNS)
        return sampler.history == "snapshots"

    def _drawing(self, epoch: int) -> tuple[Any, ...]:
        sampler, depth = self.sampler, self.sampler.history_epochs
        epoch += int(self._epochs[0])
        self._epochs[1] = epoch + 1
        slot = (epoch - 1) % depth
        if sampler.needs_past:
            self._remember(slot)
        stale = sampler.criterion == "stale_scores"
        weight = sampler.weight_at(epoch)
        filled = min(epoch, depth) if sampler.uses_variance else 0
        self._desk.counters[:] = 0
        self._memories.met[:] = 0
        rules = kernel.Rules(
            sampler.expansion_size,
            np.float32(1 / sampler.temperature),
            STRATEGIES[sampler.strategy],
            np.float32(weight),
            0 if stale and (filled < depth or not weight) else filled,
            slot if stale else -1,
            sampler.updates_in(epoch),
            sampler.update_after == "positive" and sampler.updates_in(epoch),
            np.array([word for stream in ("srns", "srns-random") for word in kernel_key(self.config.seed, stream, epoch)]),
        )
        return rules, self._memories, self._past, self._current, self._nothing, self._desk

    def _remember(self, slot: int) -> None:
        """Keep the parameters that the last epoch left."""
        n_users, dim = self.train.n_users, self.config.dim
        values, beta = (parts_of(cells, dim)[0] for cells in (self._table.cells, self._beta))
        self._by_slot("users")[:, slot, :dim] = values[:n_users] * beta
        self._by_slot("items")[:, slot, :dim] = values[n_users:]
        if self.sampler.criterion == "stale_scores":
            self._current[:, :dim] = values[n_users:]

    def _by_slot(self, kind: str) -> NDArray[np.float32]:
        """Past rows of users or items as (rows, depth, width)."""
        rows: NDArray[np.float32] = getattr(self._past, kind)
        return rows.reshape(-1, self._past.depth, rows.shape[1])

    def observations(self) -> dict[str, float]:
        counters = self._desk.counters.sum(axis=0)
        ratios, n_ratios, replaced, n_slots = counters[: kernel.HISTOGRAM].tolist()
        return super().observations() | summarise(
            counters[kernel.HISTOGRAM : kernel.HISTOGRAM + BINS], ratios, n_ratios, replaced, n_slots
        )

    def _parts(self) -> dict[str, NDArray[Any]]:
        past = {f"past.{kind}": self._by_slot(kind)[:, :, : self.config.dim] for kind in ("users", "items")}
        return super()._parts() | {"memory": self._memories.slots, "epochs": self._epochs} | past

    def memories(self) -> dict[str, NDArray[Any]]:
        """As those of `SRNSState`; past rows of users have beta folded in."""
        found = {"memory": np.array(self._memories.slots), "epochs": np.array(self._epochs[1])}
        if not self.sampler.needs_past:
            return found
        dim = self.config.dim
        for slot in range(self.sampler.history_epochs):
            rows = {kind: np.array(self._by_slot(kind)[:, slot, :dim]) for kind in ("users", "items")}
            found |= {f"past.{slot}.{kind}": part for kind, part in rows.items()}
            found[f"past.{slot}.beta"] = np.ones(dim, np.float32)
        return found

    def take_over(self, memories: Mapping[str, NDArray[Any]]) -> None:
        self._memories.slots[:] = memories["memory"]
        self._epochs[:] = int(memories.get("epochs", 0))
        for slot in range(self.sampler.history_epochs if self.sampler.needs_past else 0):
            if f"past.{slot}.users" in memories:
                self._by_slot("users")[:, slot, : self.config.dim] = (
                    memories[f"past.{slot}.users"] * memories[f"past.{slot}.beta"]
                )
                self._by_slot("items")[:, slot, : self.config.dim] = memories[f"past.{slot}.items"]
