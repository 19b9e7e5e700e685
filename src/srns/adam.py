"""Dense Adam and sums of rows on NumPy arrays or torch tensors, for gradients that are worked out by hand: those of the plain
engine and of the generators of adversarial samplers."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np
from scipy import sparse

Array = Any  # a NumPy array or a torch tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # as in the paper (appendix B.4) and everywhere else


def corrected(rate: float, steps: int) -> float:
    """The step size with the correction of both moments, which start at 0; `steps` counts from 1."""
    return rate * math.sqrt(1 - BETA_2**steps) / (1 - BETA_1**steps)


def descend(value: Array, gradient: Array, first: Array, second: Array, rate: float) -> None:
    """One step against `gradient`, all arrays of one shape, in place; `gradient` is used up."""
    xp = array_api_compat.array_namespace(value)
    square = gradient * gradient
    square -= second
    square *= 1 - BETA_2
    second += square
    gradient -= first
    gradient *= 1 - BETA_1
    first += gradient
    root = xp.sqrt(second)
    root += EPSILON
    move = first / root
    move *= rate
    value -= move


def sum_rows(rows: Array, ids: Array, n: int) -> Array:
    """(n, F): the sum of the `rows` (B, F) of each of `ids` (B,).

    >>> sum_rows(np.array([[1.0], [2.0], [4.0]]), np.array([0, 2, 0]), 3).tolist()
    [[5.0], [0.0], [2.0]]
    """
    if hasattr(rows, "index_add"):
        return rows.new_zeros((n, rows.shape[1])).index_add(0, ids, rows)
    # A product with a sparse matrix of ones takes a fifth of the time of np.add.at.
    ones = np.ones(len(ids), rows.dtype)
    return sparse.csc_array((ones, ids, np.arange(len(ids) + 1)), shape=(n, len(ids))) @ rows
