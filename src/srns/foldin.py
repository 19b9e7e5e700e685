"""A vector for a user who was not there in training, from the items they touched; and what each of these contributes.

With the items fixed, the vector p of a user with items S is the minimum of a convex function, the softmax loss that training
samples, over the whole catalogue or a fixed part of it, with the same L2 per interaction:

    f(p) = -sum_{i in S} p.q_i + |S| log sum_j exp(p.q_j) + |S| l2 / 2 |p|^2

Where the gradient is zero, p = sum_{i in S} (q_i - q) / (|S| l2) with q the mean of items under that softmax. So a score p.q_j
is a sum over the user's own items, which is what `shares` gives.

Scorer als has a closed form of its own: `Squares` (Hu et al., ICDM 2008, equation 4 and section 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float32]
CATALOGUE = 4096  # items that stand for all others, where there are more
LEAST_L2 = 1e-3  # without any, a user of one item would have a vector without end
ITERATIONS, TOLERANCE = 50, 1e-4  # of L-BFGS; float32 scores know no better


@dataclass(frozen=True, eq=False)
class FoldIn:
    """Solves for users one at a time. `items` (n_items, F) are the factors, `others` (m, F) those that stand for all items."""

    items: Floats
    others: Floats
    l2: float

    @classmethod
    def of(cls, items: Floats, l2: float) -> FoldIn:
        some = (
            np.arange(len(items)) if len(items) <= CATALOGUE else np.random.default_rng(0).choice(len(items), CATALOGUE, False)
        )
        return cls(items, np.ascontiguousarray(items[some]), max(l2, LEAST_L2))

    def vector(self, liked: NDArray[np.integer]) -> Floats:
        """(F,) of a user who touched these items, dense ids (n,); zeros for none."""
        if not len(liked):
            return np.zeros(self.items.shape[1], np.float32)
        wanted = self.items[liked].mean(axis=0)

        def loss(p: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            single = p.astype(np.float32)
            total, weights = self._softmax(single)
            value = total - float(single @ wanted) + self.l2 / 2 * float(p @ p)
            return value, (weights @ self.others - wanted).astype(np.float64) + self.l2 * p

        start = np.zeros(len(wanted))
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS, "gtol": TOLERANCE})
        return np.asarray(found.x, np.float32)

    def shares(self, liked: NDArray[np.integer], item: int | NDArray[np.integer]) -> tuple[Floats, Floats]:
        """What each of a user's items (n,) adds to the score of `item`, (n,), or of m items, (n, m); and the vector (F,) whose
        scores are their sums."""
        vector = self.vector(liked)
        _, weights = self._softmax(vector)
        centred = self.items[liked] - weights @ self.others
        return (centred @ self.items[item].T) / np.float32(len(liked) * self.l2), vector

    def _softmax(self, p: Floats) -> tuple[float, Floats]:
        """log sum exp(score), and the weights of the items that stand for the catalogue."""
        scores = self.others @ p
        highest = scores.max()
        weights = np.exp(scores - highest)
        total = weights.sum()
        return float(highest + np.log(total)), weights / total


@dataclass(frozen=True, eq=False)
class Squares:
    """The same for factors by weighted least squares: p = (Q'Q + (c - 1) sum q_i q_i' + l2 I)^-1 sum c q_i."""

    items: Floats
    gram: NDArray[np.float64]  # Q'Q + l2 I
    confidence: float

    @classmethod
    def of(cls, items: Floats, l2: float, confidence: float) -> Squares:
        double = items.astype(np.float64)
        return cls(items, double.T @ double + l2 * np.eye(items.shape[1]), confidence)

    def vector(self, liked: NDArray[np.integer]) -> Floats:
        return np.asarray(self._solved(liked).sum(axis=0), np.float32)

    def shares(self, liked: NDArray[np.integer], item: int | NDArray[np.integer]) -> tuple[Floats, Floats]:
        parts = self._solved(liked)
        return np.asarray(parts @ self.items[item].T, np.float32), np.asarray(parts.sum(axis=0), np.float32)

    def _solved(self, liked: NDArray[np.integer]) -> NDArray[np.float64]:
        """(n, F): what each item adds to the vector."""
        mine = self.items[liked].astype(np.float64)
        system = self.gram + (self.confidence - 1) * mine.T @ mine
        solved: NDArray[np.float64] = self.confidence * np.linalg.solve(system, mine.T).T
        return solved
