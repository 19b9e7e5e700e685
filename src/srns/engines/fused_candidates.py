"""The fast engine with negatives by popularity, by AOBPR or by a rule among uniform candidates: `srns.kernels.candidates`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from srns.config import RunConfig
from srns.engines.fused import FusedEngine, has_kernels, kernel_key
from srns.interactions import Interactions
from srns.kernels import candidates as kernel
from srns.kernels.step import PACKED
from srns.samplers.aobpr import AOBPR, rank_thresholds, steps_between_sorts
from srns.samplers.bns import BNS, prior_of
from srns.samplers.observations import summarise
from srns.samplers.pool import PoolSampler
from srns.samplers.popularity import Lengths, Popularity, lengths_of
from srns.samplers.truth import Truth


class FusedCandidatesEngine(FusedEngine):
    """GMF with the samplers of `srns.kernels.candidates.KINDS`."""

    epoch_kernel: ClassVar[Any] = kernel.candidates_epoch

    def __init__(self, config: RunConfig, train: Interactions, truth: Truth | None = None) -> None:
        super().__init__(config, train, truth)
        self.sampler: Any = config.make_sampler()
        scores, sorts = isinstance(self.sampler, PoolSampler), isinstance(self.sampler, AOBPR)
        if sorts or scores:
            self._current = self._room_for_items(sorts or train.n_items <= PACKED * self._batch_size)
        self._lookups = self._make_lookups()
        drawn, top = self._of_sampler("pool_size"), self._of_sampler("top")
        self._desk = kernel.make_desk(self._threads, drawn, self._negatives, top, config.dim)

    @staticmethod
    def supports(config: RunConfig) -> bool:
        return has_kernels(config) and config.sampler in kernel.KINDS

    def _correction(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        sampler = self.config.make_sampler()
        assert isinstance(sampler, Popularity), "of these samplers, it alone knows how likely its draws are"
        lengths = lengths_of(self.train, sampler.power)
        of_users, of_items = np.log(lengths.unseen / self._negatives), np.log(np.diff(lengths.ends))
        return of_users.astype(np.float32), of_items.astype(np.float32)

    def _of_sampler(self, name: str) -> Any:
        """A hyper-parameter; 0 if the sampler has none of this name."""
        return getattr(self.sampler, name, 0)

    def _make_lookups(self) -> kernel.Lookups:
        sampler, train, dim, nothing = self.sampler, self.train, self.config.dim, np.zeros(0, np.int64)
        sorts = isinstance(sampler, AOBPR)
        return kernel.Lookups(
            *(lengths_of(train, sampler.power) if isinstance(sampler, Popularity) else Lengths(*[nothing] * 4)),
            rank_thresholds(train.n_items, sampler.rank_scale) if sorts else nothing,
            np.zeros((dim, train.n_items) if sorts else (0, 0), np.int32),
            np.zeros(dim if sorts else 0),
            prior_of(train) if isinstance(sampler, BNS) else np.zeros(0, np.float32),
        )

    def _drawing(self, epoch: int) -> tuple[Any, ...]:
        of, name = self._of_sampler, self.sampler.name
        factors = {"softmax": 1 / (of("temperature") or 1), "bns": 1 + of("risk_weight"), "ahns": of("hardness_scale")}
        self._desk.counters[:] = 0
        rules = kernel.Rules(
            kernel.KINDS[name],
            of("candidates"),
            of("pool_size"),
            of("top"),
            np.float32(factors.get(name, 0)),
            np.float32(of("double_hardness") or of("hardness_offset")),
            -of("hardness_power") - 2,
            steps_between_sorts(self.train.n_items, self._batch_size, self._negatives),
            np.array(kernel_key(self.config.seed, name, epoch)),
        )
        return rules, self._lookups, self._current, self._nothing, self._desk

    def observations(self) -> dict[str, float]:
        return super().observations() | summarise(self._desk.counters.sum(axis=0), 0, 0, 0, 0)
