"""Losses: from scores of positives and negatives to a loss and its gradient. A loss never knows where negatives come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Loss = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]


def bpr(positive: Floats, negative: Floats) -> tuple[Floats, Floats, Floats]:
    """Pairwise logistic loss log(1 + exp(r_uj - r_ui)) (paper, equation 2).

    Scores (B,), (B, K) -> loss (B,) and its gradients (B,), (B, K). The losses of several negatives are averaged.

    >>> loss, to_positive, to_negative = bpr(np.array([1.0]), np.array([[1.0]]))
    >>> round(float(loss[0]), 4), to_positive.tolist(), to_negative.tolist()
    (0.6931, [-0.5], [[0.5]])
    """
    margin = positive[:, None] - negative  # (B, K)
    k = negative.shape[1]
    small = np.exp(-np.abs(margin))
    loss = np.maximum(-margin, 0) + np.log1p(small)
    slope = np.where(margin > 0, small, 1) / (1 + small) / k  # P_pos of each negative, (B, K)
    return loss.mean(axis=1), -slope.sum(axis=1), slope


def softmax(positive: Floats, negative: Floats) -> tuple[Floats, Floats, Floats]:
    """Sampled softmax: minus the log of the positive's share of exp(r) among itself and its negatives; with one negative, BPR.

    Scores (B,), (B, K) -> loss (B,) and its gradients (B,), (B, K).

    >>> loss, to_positive, to_negative = softmax(np.array([1.0]), np.array([[1.0, 1.0, 1.0]]))
    >>> round(float(loss[0]), 4), to_positive.tolist(), to_negative.tolist()
    (1.3863, [-0.75], [[0.25, 0.25, 0.25]])
    """
    margin = negative - positive[:, None]  # (B, K)
    highest = np.maximum(margin.max(axis=1, keepdims=True), 0)
    weights = np.exp(margin - highest)
    together = np.exp(-highest) + weights.sum(axis=1, keepdims=True)
    slope = weights / together
    return (highest + np.log(together))[:, 0], -slope.sum(axis=1), slope


LOSSES: dict[str, Loss] = {"bpr": bpr, "softmax": softmax}
