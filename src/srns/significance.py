"""How sure differences are: resamples of users, intervals, and the correction of p-values where there are several.

`srns.evaluation.paired_bootstrap` compares two models; here many are compared at once, on the same resamples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
RESAMPLES, CONFIDENCE = 10_000, 0.95


def interval(means: Float64) -> tuple[Float64, Float64]:
    """The percentile interval of resampled means (resamples, ...): its ends (...)."""
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high


def resampled_means(values: Float64, resamples: int = RESAMPLES, seed: int = 0) -> Float64:
    """(resamples, m) means of rows of `values` (n, m) drawn with replacement, the same rows for all columns."""
    n = len(values)
    rng = np.random.default_rng(seed)
    rows = max(1, (1 << 22) // n)
    found = []
    for begin in range(0, resamples, rows):
        size = min(rows, resamples - begin)
        drawn = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        found.append(np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n) @ values / n)
    return np.concatenate(found)


def standard_error(values: Sequence[float]) -> float:
    """Of a mean over seeds; NaN where there is one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that hold for all comparisons together.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, floor = [0.0] * len(p_values), 0.0
    for place, n in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        floor = max(floor, min(1.0, (len(p_values) - place) * p_values[n]))
        adjusted[n] = floor
    return adjusted
