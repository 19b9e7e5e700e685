"""Adam (Kingma and Ba, ICLR 2015) on whole tables, the optimiser of the paper (appendix B.4), in NumPy.

Epsilon is added to sqrt(v) itself, as in the authors' code, and not to the root of the corrected v.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.config import BETA_1, BETA_2, EPSILON

Floats = NDArray[np.float32]


class Adam:
    """Parameters `values` by name, which it changes in place, and their moments."""

    def __init__(self, values: dict[str, Floats]) -> None:
        self.values = values
        self._first = {name: np.zeros_like(value) for name, value in values.items()}
        self._second = {name: np.zeros_like(value) for name, value in values.items()}
        self._steps = 0

    def step(self, gradient: Mapping[str, Floats], learning_rate: float) -> None:
        """One step along the gradient of each parameter."""
        self._steps += 1
        rate = learning_rate * np.sqrt(1 - BETA_2**self._steps) / (1 - BETA_1**self._steps)
        for name, g in gradient.items():
            m, v = self._first[name], self._second[name]
            m += np.float32(1 - BETA_1) * (g - m)
            v += np.float32(1 - BETA_2) * (g * g - v)
            self.values[name] -= np.float32(rate) * m / (np.sqrt(v) + np.float32(EPSILON))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All that `load_state_dict` needs to go on exactly."""
        state: dict[str, NDArray[Any]] = {"steps": np.asarray(self._steps)}
        for kind, tensors in self._tensors():
            state |= {f"{kind}.{name}": tensor for name, tensor in tensors.items()}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._steps = int(state["steps"])
        for kind, tensors in self._tensors():
            for name in tensors:
                tensors[name] = np.array(state[f"{kind}.{name}"])

    def _tensors(self) -> tuple[tuple[str, dict[str, Floats]], ...]:
        return ("value", self.values), ("first", self._first), ("second", self._second)
