"""EASE (Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019): r_u = x_u B, a linear model of items by items.

B minimises |X - X B|^2 + l2 |B|^2 under a diagonal of 0, which forbids an item to explain itself. With P = (X'X + l2 I)^-1 it
is B_ij = -P_ij / P_jj (the paper's equation 8), and the minimum is the sum over items of 1 / P_jj - l2.

Cost: n_items^3 operations and 12 n_items^2 bytes, whatever the number of users; a score costs a look-up per interaction.
The linear algebra (LAPACK) decides on its threads by itself (OPENBLAS_NUM_THREADS and the like).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from srns.errors import ConfigError
from srns.interactions import Int32, Int64, Interactions

Floats = NDArray[np.float32]
BLOCK = 1 << 22  # numbers held at a time beside the matrices themselves
EPSILON = 1e-13  # a pivot that is smaller, beside the largest, is 0 but for rounding
USABLE = 0.9  # share of the memory that a solution may take


@dataclass(frozen=True, eq=False)
class EASE:
    """`weights` (n_items, n_items) float32 is B; `indptr` (n_users + 1,) int64 and `items` (n,) int32 are the rows of X.

    >>> model, _ = EASE.solve(Interactions.from_pairs([0, 0, 1, 1, 2], [0, 1, 0, 1, 2]), l2=1.0)
    >>> model.score_all([0]).astype(float).round(2).tolist()
    [[0.67, 0.67, 0.0]]
    """

    name: ClassVar[str] = "ease"
    dtypes: ClassVar[dict[str, type[np.generic]]] = {"indptr": np.int64, "items": np.int32}  # of tensors other than float32
    weights: Floats
    indptr: Int64
    items: Int32

    @classmethod
    def unsolved(cls, train: Interactions) -> EASE:
        """B = 0, which takes no memory until it is written to."""
        return cls(np.zeros((train.n_items, train.n_items), np.float32), train.indptr, train.items)

    @classmethod
    def solve(cls, train: Interactions, l2: float) -> tuple[EASE, float]:
        """The model and the minimum that it reaches. In float64, in place; B alone is float32."""
        from scipy.linalg.lapack import dpotrf, dpotri  # here, since importing it would delay every command

        matrix = _rows(train.indptr, train.items, train.n_items)
        inverse = _gram(matrix)
        np.einsum("ii->i", inverse)[:] += l2
        # Transposed, the symmetric matrix is in LAPACK's order of columns, and is overwritten instead of copied.
        factor, failed = dpotrf(inverse.T, lower=1, clean=0, overwrite_a=1)
        pivots = np.einsum("ii->i", factor) ** 2
        if failed or pivots.min() < EPSILON * pivots.max():
            raise ConfigError(f"l2 = {l2:g}: the items of these data cannot be told apart without more; set l2 to 1 or above")
        half, _ = dpotri(factor, lower=1, overwrite_c=1)
        inverse = half.T  # its upper triangle
        diagonal = np.einsum("ii->i", inverse).copy()
        weights = np.empty(inverse.shape, np.float32)
        for some in _blocks(len(weights), len(weights)):
            block = inverse[some, some]
            inverse[some, some] = np.triu(block) + np.triu(block, 1).T
            inverse[some.stop :, some] = inverse[some, some.stop :].T
            weights[some] = inverse[some] / -diagonal
        np.einsum("ii->i", weights)[:] = 0
        return cls(weights, train.indptr, train.items), float(np.sum(1 / diagonal - l2))

    @property
    def item_factors(self) -> Floats:
        """(n_items, n_items): what each item is explained by. By the cosine of these, the scale 1 / P_jj does not matter."""
        factors: Floats = self.weights.T
        return factors

    @cached_property
    def _matrix(self) -> sp.csr_array:
        return _rows(self.indptr, self.items, len(self.weights))

    def __call__(self, users: ArrayLike, items: ArrayLike) -> Floats:
        """Scores of items (B, K) for users (B,): (B, K)."""
        users, items = np.asarray(users), np.asarray(items)
        scores = np.empty(items.shape, np.float32)
        for some in _blocks(len(users), len(self.weights)):
            scores[some] = np.take_along_axis(self.score_all(users[some]), items[some], axis=1)
        return scores

    def score_all(self, users: ArrayLike) -> Floats:
        """Scores of every item for users (B,): (B, n_items)."""
        scores: Floats = self._matrix[np.asarray(users)] @ self.weights
        return scores

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The parameters by name, as they are saved."""
        return {"weights": self.weights, "indptr": self.indptr, "items": self.items}

    @staticmethod
    def shapes(n_users: int, n_items: int, dim: int, hidden_layers: int) -> dict[str, tuple[int, ...]]:
        """What `tensors` look like, for a check of what is read from disk; how many items there are, `indptr` says."""
        return {"weights": (n_items, n_items), "indptr": (n_users + 1,)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]]) -> EASE:
        weights, indptr, items = (tensors[name] for name in ("weights", "indptr", "items"))
        whole = indptr[0] == 0 and indptr[-1] == len(items) and not np.any(np.diff(indptr) < 0)
        if not whole or items.dtype != np.int32 or np.any((items < 0) | (items >= len(weights))):
            raise ValueError("tensors 'indptr' and 'items' are no rows of users")
        return cls(weights, indptr, items)


def check_memory(n_items: int) -> None:
    """Refuse a catalogue whose matrices do not fit the memory of this machine."""
    needed, limit = 12 * n_items**2, _memory()
    if limit is not None and needed > USABLE * limit:
        fitting = int((USABLE * limit / 12) ** 0.5)
        raise ConfigError(
            f"scorer 'ease' needs {needed:,} bytes for {n_items:,} items, 12 for each pair of them; this machine has "
            f"{limit:,}, enough for {fitting:,} items: leave out rare items with --min-item, or take another scorer"
        )


def _memory() -> int | None:
    """Bytes of memory that this process may use, where the system says so."""
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # no such question on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(ValueError, OSError):  # of a container; "max" where there is no limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits, default=None)


def _rows(indptr: Int64, items: Int32, n_items: int) -> sp.csr_array:
    """X (n_users, n_items), 1 where a user has interacted with an item."""
    return sp.csr_array((np.ones(len(items), np.float32), items, indptr), shape=(len(indptr) - 1, n_items))


def _gram(matrix: sp.csr_array) -> NDArray[np.float64]:
    """X'X, dense; made in blocks, since a sparse product of popular items is larger than the result."""
    by_item, n_items = sp.csr_array(matrix.T), matrix.shape[1]
    gram = np.empty((n_items, n_items))
    for some in _blocks(n_items, n_items):
        gram[some] = (by_item[some] @ matrix).toarray()
    return gram


def _blocks(n: int, width: int) -> list[slice]:
    """0..n cut so that rows of `width` numbers stay small."""
    size = max(1, BLOCK // max(1, width))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]
