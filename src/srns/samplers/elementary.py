"""exp, the logistic function and the square root in float32, with the same bits in every array library.

Libraries differ in the last bit of exp and even of sqrt, and a last bit can decide which of two candidates is drawn.
`srns.kernels.elementary` is the compiled twin and takes its constants from here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

Array = Any  # an array of any library that follows the Python array API

LOWEST = -87.0  # exp(-87) is about the smallest normal float32
LOG2_E = 1.44269504
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # ln 2 in two parts, so that n * ln 2 is exact enough
# Minimax coefficients of (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2, highest power first (Cephes, S. Moshier).
COEFFICIENTS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
POWERS_OF_2 = np.ldexp(np.float32(1), np.arange(-126, 1)).astype(np.float32)


def exp_nonpositive(x: Array, xp: ModuleType) -> Array:
    """exp(x) for float32 x <= 0, relative error below 1e-7 down to exp(-87), constant below.

    >>> exp_nonpositive(np.asarray([0, -1, -100], np.float32), np).round(4).tolist()
    [1.0, 0.367900013923645, 0.0]
    """

    def constant(value: float) -> Array:
        return xp.asarray(value, dtype=xp.float32)

    x = xp.where(x > constant(LOWEST), x, constant(LOWEST))  # NaN too becomes a number: draws stay within bounds
    n = xp.floor(x * constant(LOG2_E) + constant(0.5))
    r = x - n * constant(LN2_HIGH)
    r = r - n * constant(LN2_LOW)
    y = constant(COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        y = y * r + constant(coefficient)
    y = y * r * r + r + constant(1)
    powers = xp.take(xp.asarray(POWERS_OF_2), xp.reshape(xp.astype(n, xp.int64) + 126, (-1,)), axis=0)
    return y * xp.reshape(powers, y.shape)


def logistic(x: Array, xp: ModuleType) -> Array:
    """1 / (1 + exp(-x)) for float32 x."""
    small = exp_nonpositive(-xp.abs(x), xp)
    one = xp.asarray(1, dtype=xp.float32)
    return xp.where(x > 0, one, small) / (one + small)


def square_root(x: Array, xp: ModuleType) -> Array:
    """The float32 nearest to the root of float32 x; libraries that err in the last bit of float64 still get it right."""
    return xp.astype(xp.sqrt(xp.astype(x, xp.float64)), xp.float32)
