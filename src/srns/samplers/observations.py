"""What a sampler that scores did in an epoch: how hard the drawn negatives were, how much their P_pos wavers, what changed.

Everything is counted in whole numbers, so that the order of batches, threads and engines does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from srns.interactions import Total

BINS = 1000  # of P_pos: quantiles are exact to a thousandth
RATIO_UNIT = 2**20  # std / mean is added up in units of 1 / RATIO_UNIT
QUANTILES = {"p_pos_05": 0.05, "p_pos_50": 0.5, "p_pos_95": 0.95}


def summarise(histogram: NDArray[np.int64], ratios: int, n_ratios: int, replaced: int, n_slots: int) -> dict[str, float]:
    """Quantiles of P_pos of drawn negatives from its histogram (BINS,), mean std / mean, and the share of slots that updates
    changed.

    >>> summarise(np.eye(BINS, dtype=np.int64)[700] * 3, 0, 0, 1, 4)
    {'p_pos_05': 0.7, 'p_pos_50': 0.7, 'p_pos_95': 0.7, 'turnover': 0.25}
    """
    found: dict[str, float] = {}
    drawn = int(histogram.sum())
    if drawn:
        below = np.cumsum(histogram)
        found |= {name: int(np.searchsorted(below, share * drawn)) / BINS for name, share in QUANTILES.items()}
    if n_ratios:
        found["std_over_mean"] = ratios / RATIO_UNIT / n_ratios
    if n_slots:
        found["turnover"] = replaced / n_slots
    return found


@dataclass
class Observations:
    """Arrays gathered batch by batch, on whatever device they are: `bins` of P_pos, `ratios` std / mean, updates as (replaced,
    slots)."""

    bins: list[Any] = field(default_factory=list)
    ratios: list[Any] = field(default_factory=list)
    updates: list[tuple[Any, Any]] = field(default_factory=list)

    def summary(self, total: Total) -> dict[str, float]:
        bins, ratios = _joined(self.bins), _joined(self.ratios)
        histogram = np.bincount(np.minimum(bins, BINS - 1), minlength=BINS)
        replaced, slots = (sum(int(pair[x]) for pair in self.updates) for x in (0, 1))
        counts = total(np.array([*histogram, ratios.sum(), len(ratios), replaced, slots], np.int64))
        return summarise(counts[:BINS], *counts[BINS:].tolist())


def _joined(arrays: list[Any]) -> NDArray[np.int64]:
    parts = [np.asarray(array_api_compat.to_device(array, "cpu")).ravel() for array in arrays]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
