"""Dense Adam (Kingma and Ba, ICLR 2015) and sums of rows on NumPy arrays or torch tensors, for gradients worked out by hand.

Epsilon is added to sqrt(v) itself, as in the authors' code, and not to the root of the corrected v.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import array_api_compat
import numpy as np
from scipy import sparse

Array = Any  # a NumPy array or a torch tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # as in the paper (appendix B.4) and everywhere else


class Adam:
    """Parameters `values` by name, which it changes in place, and their moments."""

    def __init__(self, values: dict[str, Array]) -> None:
        self.values = values
        self._first, self._second = ({name: 0 * value for name, value in values.items()} for _ in range(2))
        self._steps = 0

    def step(self, gradient: Mapping[str, Array], learning_rate: float) -> None:
        """One step against the gradient of each parameter, which is used up."""
        self._steps += 1
        rate = learning_rate * math.sqrt(1 - BETA_2**self._steps) / (1 - BETA_1**self._steps)
        for name, slope in gradient.items():
            descend(self.values[name], slope, self._first[name], self._second[name], rate)

    def state_dict(self) -> dict[str, Array]:
        """All that `load_state_dict` needs to go on exactly."""
        xp = array_api_compat.array_namespace(*self.values.values())
        state: dict[str, Array] = {"steps": xp.asarray(self._steps)}
        for kind, tensors in self._tensors():
            state |= {f"{kind}.{name}": xp.asarray(tensor, copy=True) for name, tensor in tensors.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        xp = array_api_compat.array_namespace(*self.values.values())
        self._steps = int(state["steps"])
        for kind, tensors in self._tensors():
            for name in tensors:
                tensors[name] = xp.asarray(state[f"{kind}.{name}"], copy=True)

    def _tensors(self) -> tuple[tuple[str, dict[str, Array]], ...]:
        return ("value", self.values), ("first", self._first), ("second", self._second)


def descend(value: Array, gradient: Array, first: Array, second: Array, rate: float) -> None:
    """One step against `gradient`, all arrays of one shape, in place; `gradient` is used up."""
    arrays = value, gradient, first, second
    if all(isinstance(each, np.ndarray) and each.dtype == np.float32 and each.flags.c_contiguous for each in arrays):
        from srns.kernels import dense

        dense.descend(value.reshape(-1), gradient.reshape(-1), first.reshape(-1), second.reshape(-1), np.float32(rate))
        return
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
    # A product with a sparse matrix of ones takes an eighth of the time of np.add.at, or less.
    ones = np.ones(len(ids), rows.dtype)
    return sparse.csc_array((ones, ids, np.arange(len(ids) + 1)), shape=(n, len(ids))) @ rows
