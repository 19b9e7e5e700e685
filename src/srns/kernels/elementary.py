"""Compiled twins of `srns.samplers.elementary`, which vectorise and have the same bits everywhere; and the losses."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from srns.kernels.compiler import compiled
from srns.kernels.lanes import Lanes, as_bits, as_floats, as_integers, fabs, floor, spread, to_floats, where
from srns.samplers import elementary

float32 = np.float32
int32 = np.int32
LOWEST, LOG2_E, LN2_HIGH, LN2_LOW = (
    float32(c) for c in (elementary.LOWEST, elementary.LOG2_E, elementary.LN2_HIGH, elementary.LN2_LOW)
)
C5, C4, C3, C2, C1, C0 = (float32(c) for c in elementary.COEFFICIENTS)
L8, L7, L6, L5, L4, L3, L2, L1, L0 = (float32(c) for c in elementary.LOG_COEFFICIENTS)
ROOT_HALF = int32(elementary.ROOT_HALF.view(np.int32))
SPARE = int32(64)  # exponents below the smallest that `log_of_lanes` is asked for, so that none is negative
WORD_SHIFT, WORD_UNIT = int32(32 - elementary.WORD_BITS), float32(2.0**-elementary.WORD_BITS)
HALF, ONE = float32(0.5), float32(1.0)
BIAS, MANTISSA = int32(127), int32(23)


@compiled(inline=True)
def exp_nonpositive(x: float32) -> float32:
    """`srns.samplers.elementary.exp_nonpositive`; the power of two is made of the float's own bits."""
    x = x if x > LOWEST else LOWEST
    n = np.floor(x * LOG2_E + HALF)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    y = ((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
    y = y * r * r + r + ONE
    return y * int32((int32(n) + BIAS) << MANTISSA).view(float32)


@compiled(inline=True)
def logistic(x: float32) -> float32:
    """`srns.samplers.elementary.logistic`."""
    small = exp_nonpositive(-abs(x))
    return (ONE if x > float32(0) else small) / (ONE + small)


@compiled(inline=True)
def exp_of_lanes(x: Lanes) -> Lanes:
    """`exp_nonpositive` of eight numbers, by the same operations."""
    one, lowest = spread(ONE), spread(LOWEST)
    x = where(x > lowest, x, lowest)
    n = floor(x * spread(LOG2_E) + spread(HALF))
    r = x - n * spread(LN2_HIGH)
    r = r - n * spread(LN2_LOW)
    y = ((((spread(C5) * r + spread(C4)) * r + spread(C3)) * r + spread(C2)) * r + spread(C1)) * r + spread(C0)
    y = y * r * r + r + one
    return y * as_floats((as_integers(n) + spread(BIAS)) << spread(MANTISSA))


@compiled(inline=True)
def logistic_of_lanes(x: Lanes) -> Lanes:
    """`srns.samplers.elementary.logistic` of eight numbers."""
    zero, one = spread(float32(0)), spread(ONE)
    small = exp_of_lanes(zero - fabs(x))
    return where(x > zero, one, small) / (one + small)


@compiled(inline=True)
def softplus_of_lanes(x: Lanes) -> Lanes:
    """`srns.samplers.elementary.softplus` of eight numbers."""
    zero = spread(float32(0))
    return where(x > zero, x, zero) + log_of_lanes(exp_of_lanes(zero - fabs(x)) + spread(ONE))


@compiled(inline=True)
def log_of_lanes(x: Lanes) -> Lanes:
    """`srns.samplers.elementary.log` of eight numbers of at least 2^-60."""
    mantissa = spread(MANTISSA)
    n = ((as_bits(x) - spread(ROOT_HALF) + (spread(SPARE) << mantissa)) >> mantissa) - spread(SPARE)
    f = as_floats(as_bits(x) - (n << mantissa)) - spread(ONE)
    square, exponent = f * f, to_floats(n)
    fourth = square * square
    low = (spread(L1) * f + spread(L0)) + (spread(L3) * f + spread(L2)) * square
    high = (spread(L5) * f + spread(L4)) + (spread(L7) * f + spread(L6)) * square
    y = low + (high + spread(L8) * fourth) * fourth
    y = y * f * square
    y = y + exponent * spread(LN2_LOW)
    y = y - spread(HALF) * square
    return f + y + exponent * spread(LN2_HIGH)


@compiled(inline=True)
def gumbel_of_lanes(uppers: Lanes) -> Lanes:
    """`srns.samplers.elementary.gumbel` of eight words of which only the upper bits are left."""
    nothing = spread(float32(0))
    u = (to_floats(uppers) + spread(HALF)) * spread(WORD_UNIT)
    return nothing - log_of_lanes(nothing - log_of_lanes(u))


# Losses take the margins r_uj - r_ui of positives begin..end with K negatives each, replace them by the derivatives of the
# loss by them, and return the summed loss. That by r_ui is minus their sum.


@compiled(entry=False)
def bpr_slopes(margins: NDArray[np.float32], begin: int, end: int, n_negatives: int) -> float:
    """`srns.losses.bpr`: the mean over negatives of log(1 + exp(s)) = max(s, 0) + log(1 + exp(-|s|)); margins as one row.

    The logs are one log of a product of factors in (1, 2]: at most 1,000 of them, lest it overflow.
    """
    loss, product, share = 0.0, 1.0, ONE / float32(n_negatives)
    for x in range(begin * n_negatives, end * n_negatives):
        s = margins[x]
        small = exp_nonpositive(-abs(s))
        margins[x] = share * ((ONE if s > 0 else small) / (ONE + small))
        product *= 1.0 + small
        loss += max(s, float32(0))
    return (loss + math.log(product)) / n_negatives


@compiled(entry=False)
def softmax_slopes(margins: NDArray[np.float32], begin: int, end: int) -> float:
    """`srns.losses.softmax`: log(1 + the sum over negatives of exp(s)), shifted by the largest margin."""
    loss = 0.0
    for x in range(begin, end):
        highest = float32(0)
        for k in range(margins.shape[1]):
            highest = max(highest, margins[x, k])
        together = exp_nonpositive(-highest)
        for k in range(margins.shape[1]):
            margins[x, k] = exp_nonpositive(margins[x, k] - highest)
            together += margins[x, k]
        for k in range(margins.shape[1]):
            margins[x, k] /= together
        loss += highest + math.log(together)
    return loss
