"""Generalised matrix factorisation: r_ui = beta . (p_u * q_i), the scorer of the paper (section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from srns import rng

CACHED = 2**17  # numbers of item rows that are looked up at a time

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class GMF:
    """Embeddings `users` (n_users, F), `items` (n_items, F) and `beta` (F,), all float32. Called as a Score, it scores pairs.

    >>> model = GMF.init(n_users=3, n_items=4, dim=2, std=0.1, learn_beta=False, seed=0)
    >>> model(np.array([0, 1]), np.array([[0, 1, 2], [1, 2, 3]])).shape, model.score_all(np.array([0, 1])).shape
    ((2, 3), (2, 4))
    """

    name: ClassVar[str] = "gmf"
    users: Floats
    items: Floats
    beta: Floats

    @classmethod
    def init(cls, n_users: int, n_items: int, dim: int, *, std: float, learn_beta: bool, seed: int, first_user: int = 0) -> GMF:
        """The start of training; each number depends on (seed, kind, row, column) alone, rows of users counted from
        `first_user`.

        Embeddings are truncated normal, cut at two standard deviations; beta is uniform in +-sqrt(6 / (F + 1)), as in the
        authors' code, if it is to be learnt, else 1.
        """
        columns = np.arange(dim, dtype=np.int64)
        drawn = rng.open_uniform(rng.bits(rng.row_keys(rng.stream_key(seed, "init-beta"), columns, columns), 0))
        beta = (2 * drawn - 1) * np.sqrt(6 / (dim + 1)) if learn_beta else np.ones(dim)
        return cls(*initial_embeddings(n_users, n_items, dim, std, seed, first_user), beta.astype(np.float32))

    @property
    def dim(self) -> int:
        return int(self.beta.shape[0])

    @property
    def user_factors(self) -> Floats:
        """(n_users, F) with beta folded in, so that `user_factors @ item_factors.T` are the scores."""
        return self.users * self.beta

    @property
    def item_factors(self) -> Floats:
        """(n_items, F)."""
        return self.items

    def __call__(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of items (B, K) for users (B,): (B, K)."""
        items = np.asarray(items)
        vectors = self.users[np.asarray(users)] * self.beta
        if len(vectors) != len(items):
            raise ValueError(f"{len(vectors)} users for {len(items)} rows of items")
        scores = np.empty(items.shape, vectors.dtype)
        step = max(1, CACHED // max(1, vectors.shape[1] * items.shape[1]))
        for start in range(0, len(items), step):  # the rows of all items at once would go through memory
            part = slice(start, start + step)
            np.einsum("bf,bkf->bk", vectors[part], self.items[items[part]], out=scores[part])
        return scores

    def score_all(self, users: ArrayLike, out: Floats | None = None) -> Floats:
        """Scores of every item for users (B,): (B, n_items), in `out` where it is given."""
        scores: Floats = np.matmul(self.users[np.asarray(users)] * self.beta, self.items.T, out=out)
        return scores

    def tensors(self) -> dict[str, Floats]:
        """The parameters by name, as they are saved."""
        return {"users": self.users, "items": self.items, "beta": self.beta}

    @staticmethod
    def shapes(n_users: int, n_items: int, dim: int, hidden_layers: int) -> dict[str, tuple[int, ...]]:
        """What `tensors` look like, for a check of what is read from disk."""
        return {"users": (n_users, dim), "items": (n_items, dim), "beta": (dim,)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> GMF:
        return cls(tensors["users"], tensors["items"], tensors["beta"])


def initial_embeddings(n_users: int, n_items: int, dim: int, std: float, seed: int, first_user: int) -> tuple[Floats, Floats]:
    """Rows of users and items at the start of training, truncated normal."""
    users, items = (rng.stream_key(seed, f"init-{kind}") for kind in ("users", "items"))
    return _truncated_normal(users, n_users, dim, std, first_user), _truncated_normal(items, n_items, dim, std, 0)


def _truncated_normal(key: rng.Key, n: int, dim: int, std: float, first: int) -> Floats:
    """(n, F) by the inverse of the normal distribution function, in blocks of rows to keep float64 copies small."""
    values = np.empty((n, dim), np.float32)
    columns = np.arange(dim, dtype=np.int64)
    low, high = ndtr(-2.0), ndtr(2.0)
    for start in range(0, n, 65536):
        rows = first + np.arange(start, min(n, start + 65536), dtype=np.int64)
        u = rng.open_uniform(rng.bits(rng.row_keys(key, rows[:, None], columns), 0))
        values[start : start + 65536] = std * ndtri(low + u * (high - low))
    return values
