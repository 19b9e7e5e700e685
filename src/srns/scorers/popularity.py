"""Popularity: r_ui = how many users have interacted with item i, the same for every user; what any model should beat.

Cost: one look at every interaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srns.errors import ConfigError
from srns.interactions import Interactions

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Popularity:
    """Training interactions of each item, `counts` (n_items,) float32.

    >>> Popularity.count(Interactions.from_pairs([0, 1, 1], [0, 0, 1]))(np.array([1]), np.array([[0, 1]])).tolist()
    [[2.0, 1.0]]
    """

    name: ClassVar[str] = "popularity"
    counts: Floats

    @classmethod
    def count(cls, train: Interactions) -> Popularity:
        return cls(train.item_counts.astype(np.float32))

    @property
    def item_factors(self) -> Floats:
        raise ConfigError("popularity knows how often items occur, not which of them are alike; train another scorer")

    def __call__(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of items (B, K) for users (B,): (B, K)."""
        scores: Floats = self.counts[np.asarray(items)]
        return scores

    def score_all(self, users: ArrayLike) -> Floats:
        """Scores of every item for users (B,): (B, n_items), a view of one row."""
        return np.broadcast_to(self.counts, (len(np.asarray(users)), len(self.counts)))

    def tensors(self) -> dict[str, Floats]:
        """The parameters by name, as they are saved."""
        return {"counts": self.counts}

    @staticmethod
    def shapes(n_users: int, n_items: int, dim: int, hidden_layers: int) -> dict[str, tuple[int, ...]]:
        """What `tensors` look like, for a check of what is read from disk."""
        return {"counts": (n_items,)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> Popularity:
        return cls(tensors["counts"])
