"""Losses: from scores of positives and negatives to a loss and its gradient. A loss never knows where negatives come from.

They are written on the array API: NumPy for the plain engine, tensors on any device for the torch engine, which hands the
gradient to autograd at the scores. `srns.kernels.step` has twins of the two that the fused engine knows. Where negatives have a
`weight` (B, K), means over them are weighted means, and sums weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

Array = Any  # an array of any library that follows the Python array API
Loss = Callable[..., tuple[Array, Array, Array]]


def bpr(positive: Array, negative: Array, *, weight: Array | None = None) -> tuple[Array, Array, Array]:
    """Pairwise logistic loss log(1 + exp(r_uj - r_ui)) (paper, equation 2).

    Scores (B,), (B, K) -> loss (B,) and its gradients (B,), (B, K). The losses of several negatives are averaged.

    >>> loss, to_positive, to_negative = bpr(np.array([1.0]), np.array([[1.0]]))
    >>> round(float(loss[0]), 4), to_positive.tolist(), to_negative.tolist()
    (0.6931, [-0.5], [[0.5]])
    """
    xp = array_api_compat.array_namespace(positive, negative)
    loss, slope = _softplus(negative - positive[:, None], xp)  # the slope is P_pos of each negative, (B, K)
    share = _shares(negative, weight, xp)
    slope = slope * share
    return xp.sum(loss * share, axis=1), -xp.sum(slope, axis=1), slope


def hinge(positive: Array, negative: Array, *, margin: float = 1.0, weight: Array | None = None) -> tuple[Array, Array, Array]:
    """max(0, margin - (r_ui - r_uj)), averaged over negatives: a positive that is ahead by the margin teaches nothing more.

    >>> loss, to_positive, to_negative = hinge(np.array([1.0]), np.array([[0.5, -0.5]]))
    >>> loss.tolist(), to_positive.tolist(), to_negative.tolist()
    ([0.25], [-0.5], [[0.5, 0.0]])
    """
    xp = array_api_compat.array_namespace(positive, negative)
    short = margin - (positive[:, None] - negative)  # (B, K)
    slope = xp.astype(short > 0, negative.dtype) * _shares(negative, weight, xp)
    return xp.sum(short * slope, axis=1), -xp.sum(slope, axis=1), slope


def bce(positive: Array, negative: Array, *, weight: Array | None = None) -> tuple[Array, Array, Array]:
    """Binary cross-entropy: log(1 + exp(-r_ui)) and the mean of log(1 + exp(r_uj)); each score by itself is a probability.

    >>> loss, to_positive, to_negative = bce(np.array([0.0]), np.array([[0.0, 0.0]]))
    >>> round(float(loss[0]), 4), to_positive.tolist(), to_negative.tolist()
    (1.3863, [-0.5], [[0.25, 0.25]])
    """
    xp = array_api_compat.array_namespace(positive, negative)
    of_positive, down = _softplus(-positive, xp)
    of_negative, up = _softplus(negative, xp)
    share = _shares(negative, weight, xp)
    return of_positive + xp.sum(of_negative * share, axis=1), -down, up * share


def softmax(
    positive: Array, negative: Array, *, log_q: Array | None = None, weight: Array | None = None
) -> tuple[Array, Array, Array]:
    """Sampled softmax: minus the log of the positive's share of exp(r) among itself and its negatives; with one negative, BPR.

    Scores (B,), (B, K) -> loss (B,) and its gradients (B,), (B, K). With `log_q` (B, K), how likely each draw was to be this
    negative, the sum over negatives is weighed to estimate that over all items: r_uj - log(K q_j) takes the place of r_uj.

    >>> loss, to_positive, to_negative = softmax(np.array([1.0]), np.array([[1.0, 1.0, 1.0]]))
    >>> round(float(loss[0]), 4), to_positive.tolist(), to_negative.tolist()
    (1.3863, [-0.75], [[0.25, 0.25, 0.25]])
    """
    xp = array_api_compat.array_namespace(positive, negative)
    if log_q is not None:
        negative = negative - log_q - float(np.log(negative.shape[1]))
    lead = negative - positive[:, None]  # (B, K)
    if weight is not None:  # what counts nothing must not be the highest, lest the others vanish beside it
        lead = xp.where(weight > 0, lead, xp.full_like(lead, -np.inf))
    highest = xp.max(lead, axis=1, keepdims=True)
    highest = xp.where(highest > 0, highest, xp.zeros_like(highest))
    weights = xp.exp(lead - highest)
    weights = weights if weight is None else weights * weight
    together = xp.exp(-highest) + xp.sum(weights, axis=1, keepdims=True)
    slope = weights / together
    return (highest + xp.log(together))[:, 0], -xp.sum(slope, axis=1), slope


def blended(loss: Loss, positive: Array, negative: Array, blend: Array, **options: Any) -> tuple[Array, Array, Array]:
    """`loss` of negatives that are mixtures, (1 - blend) r_uj + blend r_ui, and its gradients by r_ui and r_uj.

    >>> loss, to_positive, to_negative = blended(bpr, np.array([1.0]), np.array([[0.0]]), np.array([[0.5]]))
    >>> round(float(loss[0]), 4), round(float(to_positive[0] + to_negative[0, 0]), 4)
    (0.4741, 0.0)
    """
    xp = array_api_compat.array_namespace(positive, negative)
    value, to_positive, to_mixture = loss(positive, (1 - blend) * negative + blend * positive[:, None], **options)
    return value, to_positive + xp.sum(blend * to_mixture, axis=1), (1 - blend) * to_mixture


def _shares(negative: Array, weight: Array | None, xp: Any) -> Array | float:
    """What each negative (B, K) counts for in a mean over its row; nothing in a row without weight."""
    if weight is None:
        return 1 / negative.shape[1]
    total = xp.sum(weight, axis=1, keepdims=True)
    return weight / xp.where(total > 0, total, xp.ones_like(total))


def _softplus(x: Array, xp: Any) -> tuple[Array, Array]:
    """log(1 + exp(x)) and its slope, the logistic function, both without overflow."""
    small = xp.exp(-xp.abs(x))
    one = xp.ones_like(small)
    return xp.where(x > 0, x, xp.zeros_like(x)) + xp.log1p(small), xp.where(x < 0, small, one) / (1 + small)


LOSSES: dict[str, Loss] = {"bpr": bpr, "softmax": softmax, "hinge": hinge, "bce": bce}
