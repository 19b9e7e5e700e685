"""A vector for a user who was not there in training, from the items they touched; and what each of these contributes.

With the items fixed, the vector p of a user with items S is the minimum of a convex function, the softmax loss that training
samples, over the whole catalogue or a fixed part of it, with the same L2 per interaction:

    f(p) = -sum_{i in S} p.q_i + |S| log sum_j exp(p.q_j) + |S| l2 / 2 |p|^2

Where the gradient is zero, p = sum_{i in S} (q_i - q) / (|S| l2) with q the mean of items under that softmax. So a score p.q_j
is a sum over the user's own items, which is what `shares` gives.

Newton's method finds it, in float64. A step that changes scores by at most R, one against another, has a third derivative of at
most R times the second, so that log(1 + R) / R of it lowers f for certain (Bach, Electronic Journal of Statistics 2010); mostly
all of it does. Of a large catalogue, the user's own items are always part of the softmax, since the rest could not hold them.

Scorer als has a closed form of its own: `Squares` (Hu et al., ICDM 2008, equation 4 and section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from srns.config import RunConfig
from srns.errors import ConfigError, DataError
from srns.interactions import Int64, Interactions
from srns.scorers import EASE, GMF, SCORERS, Model, Popularity

Floats = NDArray[np.float32]
Float64 = NDArray[np.float64]
CATALOGUE = 4096  # items that stand for all others, where there are more
LEAST_L2 = 1e-3  # without any, a user of one item would have a vector without end
STEPS = 200  # of Newton's method; a dozen is usual
DECREASE = 1e-10  # of f / |S| expected of a step, at which it is the last; the next would be of its square


@dataclass(frozen=True, eq=False)
class Newcomers:
    """What a trained model makes of people by the items they touched, which are dense ids (n,), each once."""

    model: Model
    config: RunConfig
    train: Interactions

    def vector(self, touched: Int64) -> Floats:
        """(F,), for scorers with factors."""
        return self._solver.vector(touched)

    def scores(self, touched: Int64) -> Floats:
        """(n_items,) of all items."""
        if isinstance(self.model, EASE):
            scores: Floats = self.model.weights[touched].sum(axis=0)
            return scores
        if isinstance(self.model, Popularity):
            return self.train.popularity
        return self._solver.items @ self.vector(touched)

    def reasons(self, touched: NDArray[np.integer], wanted: NDArray[np.integer], k: int) -> tuple[NDArray[np.integer], Floats]:
        """For each of m items that are `wanted`, those k of `touched`, or fewer, that add most to its score, most first, and
        what they add: (m, k) and (m, k). No item is a reason for itself."""
        if isinstance(self.model, EASE):
            shares = self.model.weights[touched[:, None], wanted]
        else:
            shares = self._solver.shares(touched, wanted)[0]
        itself = touched[:, None] == wanted
        shares = np.where(itself, -np.inf, shares)
        best = np.argsort(-shares.T, axis=1, kind="stable")[:, : min(k, len(touched) - int(itself.any()))]
        return touched[best], np.take_along_axis(shares.T, best, axis=1)

    @cached_property
    def _solver(self) -> FoldIn | Squares:
        model, config, train = self.model, self.config, self.train
        if not isinstance(model, GMF):
            named = f"scorer {config.scorer!r}" if isinstance(model, tuple(SCORERS.values())) else "a module of your own"
            raise ConfigError(f"{named} cannot place somebody by the items they had; gmf, lightgcn, als and ease can")
        l2 = config.l2_for(len(train), int(np.count_nonzero(train.user_counts)))
        if config.scorer == "als":
            return Squares.of(model.item_factors, l2, config.confidence)
        return FoldIn.of(model.item_factors, l2)


@dataclass(frozen=True, eq=False)
class FoldIn:
    """Solves for users one at a time. `items` (n_items, F) are the factors, `some` (m,) the items that stand for all others."""

    items: Floats
    some: NDArray[np.int64]
    l2: float

    @classmethod
    def of(cls, items: Floats, l2: float) -> FoldIn:
        n = len(items)
        some = np.arange(n) if n <= CATALOGUE else np.random.default_rng(0).choice(n, CATALOGUE, replace=False)
        return cls(items, some, max(l2, LEAST_L2))

    def vector(self, liked: NDArray[np.integer]) -> Floats:
        """(F,) of a user who touched these items, dense ids (n,), each once; zeros for none."""
        return self._solved(liked)[0].astype(np.float32)

    def shares(self, liked: NDArray[np.integer], item: int | NDArray[np.integer]) -> tuple[Floats, Floats]:
        """What each of a user's items (n,) adds to the score of `item`, (n,), or of m items, (n, m); and the vector (F,) whose
        scores are their sums."""
        vector, mean = self._solved(liked)
        centred = (self.items[liked] - mean) / (max(1, len(liked)) * self.l2)
        return np.asarray(centred @ self.items[item].T, np.float32), vector.astype(np.float32)

    def _solved(self, liked: NDArray[np.integer]) -> tuple[Float64, Float64]:
        """The minimum (F,), and the mean of items (F,) under its softmax."""
        p = np.zeros(self.items.shape[1])
        if not len(liked):
            return p, p
        items, scores = self._catalogue(liked)
        single = items.astype(np.float32)
        wanted = self.items[liked].mean(axis=0, dtype=np.float64)
        last = False
        for _ in range(STEPS):
            weights = softmax(scores)
            mean = weights @ items
            if last:
                return p, mean
            slope = mean - wanted + self.l2 * p
            rooted = np.sqrt(weights, dtype=np.float32)[:, None] * (single - mean.astype(np.float32))
            curvature = (rooted.T @ rooted).astype(np.float64) + self.l2 * np.eye(len(p))  # in float32, which is quicker
            step = np.linalg.solve(curvature, -slope)
            change, decrease = items @ step, float(-slope @ step)
            share = self._share(weights, change, float((self.l2 * p - wanted) @ step), self.l2 * float(step @ step), decrease)
            p, scores, last = p + share * step, scores + share * change, decrease <= DECREASE
        raise DataError("no vector fits these items: are all factors of items finite numbers?")

    def _catalogue(self, liked: NDArray[np.integer]) -> tuple[Float64, Float64]:
        """Factors of the items of the softmax, and the logarithm of how many each stands for: the user's own for themselves."""
        if len(self.some) == len(self.items):
            return self._double, np.zeros(len(self.items))
        others = ~np.isin(self.some, liked)
        each = np.log((len(self.items) - len(liked)) / max(1, others.sum()))
        rows = np.concatenate([self._double[others], self.items[liked].astype(np.float64)])
        return rows, np.where(np.arange(len(rows)) < others.sum(), each, 0.0)

    @cached_property
    def _double(self) -> Float64:
        return self.items[self.some].astype(np.float64)

    @staticmethod
    def _share(weights: Float64, change: Float64, linear: float, square: float, decrease: float) -> float:
        """How much of a step to go: all of it, or half and so on until f falls by a fair part of what its slope promises."""
        reach = float(np.ptp(change))
        least = float(np.log1p(reach)) / reach if reach > 0 else 1.0
        share = 1.0
        with np.errstate(divide="ignore"):
            logs = np.log(weights)
        while (
            share > least and logsumexp(logs + share * change) + share * linear + share**2 / 2 * square > -share / 10 * decrease
        ):
            share = max(least, share / 2)
        return share


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
