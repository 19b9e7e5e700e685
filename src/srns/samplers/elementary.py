"""exp, log, the logistic function and the square root in float32, with the same bits in every array library.

Libraries differ in the last bit of exp, log and even of sqrt, and a last bit can decide which of two candidates is drawn.
`srns.kernels.elementary` is the compiled twin and takes its constants from here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

Array = Any  # an array of any library that follows the Python array API

LOWEST = -87.0  # exp(-87) is about the smallest normal float32
LOG2_E = 1.44269504
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 in two parts, so that n * ln 2 is exact enough
# Minimax coefficients of (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2, highest power first (Cephes, S. Moshier).
COEFFICIENTS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# The same of (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) <= 1 + f < sqrt(2).
LOG_COEFFICIENTS = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
                    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
ROOT_HALF = np.float32(np.sqrt(0.5))
LOWEST_POWER = -126
POWERS_OF_2 = np.ldexp(np.float32(1), np.arange(LOWEST_POWER, 127)).astype(np.float32)
WORD_BITS = 23  # of a random word that make a uniform number, so that it and its distance from 0 and 1 are exact


def exp_nonpositive(x: Array, xp: ModuleType) -> Array:
    """exp(x) for float32 x <= 0, relative error below 1e-7 down to exp(-87), constant below.

    >>> exp_nonpositive(np.asarray([0, -1, -100], np.float32), np).round(4).tolist()
    [1.0, 0.367900013923645, 0.0]
    """

    constant = _constants(xp)
    x = xp.where(x > constant(LOWEST), x, constant(LOWEST))  # NaN too becomes a number: draws stay within bounds
    n = xp.floor(x * constant(LOG2_E) + constant(0.5))
    r = x - n * constant(LN2_HIGH)
    r = r - n * constant(LN2_LOW)
    y = constant(COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        y = y * r + constant(coefficient)
    return (y * r * r + r + constant(1)) * _power_of_2(n, xp)


def log(x: Array, xp: ModuleType) -> Array:
    """log(x) for positive, normal float32 x, relative error below 3e-7.

    >>> [f"{value:.4f}" for value in log(np.asarray([1, 10, 0.001], np.float32), np)]
    ['0.0000', '2.3026', '-6.9078']
    """
    constant = _constants(xp)
    root_half = constant(float(ROOT_HALF))
    n = xp.astype(
        xp.floor(xp.log2(xp.astype(x, xp.float64) / float(ROOT_HALF))), xp.float32
    )  # or one off, where a library errs
    above, below = x >= root_half * _power_of_2(n + 1, xp), x < root_half * _power_of_2(n, xp)
    n = n + xp.astype(above, xp.float32) - xp.astype(below, xp.float32)
    f = x * _power_of_2(-n, xp) - constant(1)
    square = f * f
    fourth = square * square
    c8, c7, c6, c5, c4, c3, c2, c1, c0 = (constant(coefficient) for coefficient in LOG_COEFFICIENTS)
    low = (c1 * f + c0) + (c3 * f + c2) * square  # in pairs, of which a processor works on several at a time
    high = (c5 * f + c4) + (c7 * f + c6) * square
    y = (low + (high + c8 * fourth) * fourth) * f * square
    y = y + n * constant(LN2_LOW)
    y = y - constant(0.5) * square
    return f + y + n * constant(LN2_HIGH)


def gumbel(words: Array, xp: ModuleType) -> Array:
    """-log(-log(u)) with u in (0, 1) from the upper bits of random words (int64)."""
    constant = _constants(xp)
    u = (xp.astype(words >> (32 - WORD_BITS), xp.float32) + constant(0.5)) * constant(2.0**-WORD_BITS)
    return -log(-log(u, xp), xp)


def logistic(x: Array, xp: ModuleType) -> Array:
    """1 / (1 + exp(-x)) for float32 x."""
    small = exp_nonpositive(-xp.abs(x), xp)
    one = xp.asarray(1, dtype=xp.float32)
    return xp.where(x > 0, one, small) / (one + small)


def square_root(x: Array, xp: ModuleType) -> Array:
    """The float32 nearest to the root of float32 x; libraries that err in the last bit of float64 still get it right."""
    return xp.astype(xp.sqrt(xp.astype(x, xp.float64)), xp.float32)


def _constants(xp: ModuleType) -> Callable[[float], Array]:
    return lambda value: xp.asarray(value, dtype=xp.float32)


def _power_of_2(n: Array, xp: ModuleType) -> Array:
    """2^n for whole n, as float32."""
    powers = xp.take(xp.asarray(POWERS_OF_2), xp.reshape(xp.astype(n, xp.int64) - LOWEST_POWER, (-1,)), axis=0)
    return xp.reshape(powers, n.shape)
