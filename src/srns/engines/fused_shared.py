"""The fused engine where the positives of a batch share their negatives: products of matrices, and compiled loss and Adam.

Up to rounding it takes the steps of `srns.engines.plain`, where NumPy's passes over the (B, K) scores take most of the time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srns.adam import sum_rows
from srns.config import RunConfig
from srns.engines.fused import has_kernels
from srns.engines.plain import PlainEngine
from srns.kernels.compiler import needs_compiling
from srns.kernels.lanes import LANES
from srns.kernels.shared import shared_bpr
from srns.samplers import Negatives
from srns.samplers.nncf import NNCF


class FusedSharedEngine(PlainEngine):
    """Trains GMF with sampler `nncf` and loss `bpr`."""

    name = "fused"

    @staticmethod
    def supports(config: RunConfig) -> bool:
        return has_kernels(config) and config.sampler == NNCF.name and config.loss == "bpr"

    @staticmethod
    def needs_compiling() -> bool:
        return needs_compiling(shared_bpr)

    def _step(self, users: NDArray[np.int64], positives: NDArray[np.int64], drawn: Negatives) -> float:
        """As of the plain engine; an item that was drawn several times is scored once and counts so often."""
        assert drawn.weight is not None
        p, q, beta = self._values["users"], self._values["items"], self._values["beta"]
        negatives, first, times = np.unique(drawn.ids[0], return_index=True, return_counts=True)
        rest = -len(negatives) % LANES  # columns that fill up a register, and count nothing
        negatives, first, times = np.pad(negatives, (0, rest), "edge"), np.pad(first, (0, rest)), np.pad(times, (0, rest))
        counts = times.astype(np.float32)
        p_u, q_i, q_j = p[users], q[positives], q[negatives]  # (B, F), (B, F), (K, F)
        vectors = beta * p_u
        scores, parts = vectors @ q_j.T, np.take(drawn.weight, first, axis=1)  # (B, K)
        loss, to_positive = np.empty((2, len(users)), np.float32)
        r_ui = np.asarray((p_u * q_i) @ beta, np.float32)
        shared_bpr(r_ui, scores, parts, counts[None], loss, to_positive)
        pulled = to_positive[:, None] * q_i + scores @ q_j  # (B, F): dloss/d(beta * p_u)
        l2, each = np.float32(self._l2), np.float32(len(users) / drawn.ids.shape[1])
        of_items = to_positive[:, None] * vectors + l2 * q_i, scores.T @ vectors + l2 * each * counts[:, None] * q_j
        gradient = {
            "users": sum_rows(beta * pulled + l2 * p_u, users, len(p)),
            "items": sum_rows(np.concatenate(of_items), np.append(positives, negatives), len(q)),
        }
        if self.config.learn_beta:
            gradient["beta"] = np.sum(p_u * pulled, axis=0)
        self._adam.step(gradient, self._rate)
        return float(loss.sum(dtype=np.float64))
