"""exp, log, the logistic function and the square root in float32, with the same bits in every array library.

Libraries differ in the last bit of exp, log and even of sqrt, and a last bit can decide which of two candidates is drawn.
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
# The same of (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) <= 1 + f < sqrt(2).
LOG_COEFFICIENTS = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
                    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
ROOT_HALF = np.float32(np.sqrt(0.5))
MANTISSA_BITS, EXPONENT_OF_1 = 23, 127  # of a float32
ROOT_HALF_BITS = int(ROOT_HALF.view(np.int32))
LOWEST_POWER = -126
POWERS_OF_2 = np.ldexp(np.float32(1), np.arange(LOWEST_POWER, 127)).astype(np.float32)
LOWEST_WORTH = -3e38  # of a candidate: whatever its score, it comes before an empty slot
CHANCE_BITS = 24  # of a random word that are compared with those of others, exact in float32
WORD_BITS = 23  # of a random word that make a uniform number, so that it and its distance from 0 and 1 are exact


def exp_nonpositive(x: Array, xp: ModuleType) -> Array:
    """exp(x) for float32 x <= 0, relative error below 1e-7 down to exp(-87), constant below.

    >>> exp_nonpositive(np.asarray([0, -1, -100], np.float32), np).round(4).tolist()
    [1.0, 0.367900013923645, 0.0]
    """
    x = xp.where(x > LOWEST, x, xp.full_like(x, LOWEST))  # NaN too becomes a number: draws stay within bounds
    n = xp.floor(x * LOG2_E + 0.5)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    y = r * COEFFICIENTS[0] + COEFFICIENTS[1]
    for coefficient in COEFFICIENTS[2:]:
        y = y * r + coefficient
    return (y * r * r + r + 1.0) * _power_of_2(xp.astype(n, xp.int32), xp)


def log(x: Array, xp: ModuleType) -> Array:
    """log(x) for positive, normal float32 x, relative error below 3e-7.

    >>> [f"{value:.4f}" for value in log(np.asarray([1, 10, 0.001], np.float32), np)]
    ['0.0000', '2.3026', '-6.9078']
    """
    whole = _whole_powers(x, xp)
    n = xp.astype(whole, xp.float32)
    f = x * _power_of_2(-whole, xp) - 1.0
    square = f * f
    fourth = square * square
    c8, c7, c6, c5, c4, c3, c2, c1, c0 = LOG_COEFFICIENTS
    low = (f * c1 + c0) + (f * c3 + c2) * square  # in pairs, of which a processor works on several at a time
    high = (f * c5 + c4) + (f * c7 + c6) * square
    y = (low + (high + fourth * c8) * fourth) * f * square
    y = y + n * LN2_LOW
    y = y - square * 0.5
    return f + y + n * LN2_HIGH


def gumbel(words: Array, xp: ModuleType) -> Array:
    """-log(-log(u)) with u in (0, 1) from the upper bits of random words (int64)."""
    u = (xp.astype(words >> (32 - WORD_BITS), xp.float32) + 0.5) * 2.0**-WORD_BITS
    return -log(-log(u, xp), xp)


def logistic(x: Array, xp: ModuleType) -> Array:
    """1 / (1 + exp(-x)) for float32 x."""
    small = exp_nonpositive(-xp.abs(x), xp)
    return xp.where(x > 0, xp.ones_like(small), small) / (small + 1.0)


def softplus(x: Array, xp: ModuleType) -> Array:
    """log(1 + exp(x)) for float32 x.

    >>> softplus(np.asarray([-30, 0, 30], np.float32), np).round(4).tolist()
    [0.0, 0.6930999755859375, 30.0]
    """
    small = exp_nonpositive(-xp.abs(x), xp)
    return xp.where(x > 0, x, xp.zeros_like(x)) + log(small + 1.0, xp)


def square_root(x: Array, xp: ModuleType) -> Array:
    """The float32 nearest to the root of float32 x; libraries that err in the last bit of float64 still get it right."""
    return xp.astype(xp.sqrt(xp.astype(x, xp.float64)), xp.float32)


def largest(worth: Array, k: int, xp: ModuleType) -> Array:
    """The places of the k largest of each row of float32 worth (B, N), largest first, the first of equals first: (B, k)."""
    if not hasattr(xp, "topk"):
        return xp.argsort(worth, axis=1, descending=True, stable=True)[:, :k]
    # torch does not sort for a few of many, and knows nothing of places among equals, so these go into what is compared: the
    # bits of floats, the negative ones turned round, are in the order of the floats.
    bits = worth.view(xp.int32)
    size = worth.shape[1]
    width = size.bit_length()
    ordered = xp.astype(bits ^ ((bits >> 31) & 0x7FFFFFFF), xp.int64) << width
    ordered |= xp.arange(size - 1, -1, -1, dtype=xp.int64)
    return size - 1 - (xp.topk(ordered, k, dim=1).values & ((1 << width) - 1))


def largest_of(worth: Array, filled: Array, k: int, xp: ModuleType) -> Array:
    """`largest`, again from the first where only `filled` (B, 1) of each row are there."""
    return xp.take_along_axis(largest(worth, k, xp), xp.arange(k, dtype=xp.int64)[None, :] % filled, axis=1)


def allowed_first(worth: Array, allowed: Array, xp: ModuleType) -> Array:
    """`worth` so that those which are allowed come first, even if a model has diverged and it is not a number."""
    lowest = xp.full_like(worth, LOWEST_WORTH)
    return xp.where(allowed, xp.where(worth > lowest, worth, lowest), xp.full_like(worth, -np.inf))


def chances(words: Array, xp: ModuleType) -> Array:
    """Random words (int64) as float32, for the largest of them to be taken."""
    return xp.astype(words >> (32 - CHANCE_BITS), xp.float32)


def taken(values: Array, places: Array, xp: ModuleType) -> Array:
    """values (n, ...) at `places` of any shape."""
    found = xp.take(values, xp.reshape(places, (-1,)), axis=0)
    return xp.reshape(found, (*places.shape, *values.shape[1:]))


def _whole_powers(x: Array, xp: ModuleType) -> Array:
    """n (int32) with root_half * 2^n <= x < root_half * 2^(n + 1)."""
    if hasattr(
        x, "view"
    ):  # the bits of floats are in the order of the floats, and 2^23 of them apart where one is twice the other
        return (x.view(xp.int32) - ROOT_HALF_BITS) >> MANTISSA_BITS
    root_half = float(ROOT_HALF)
    n = xp.astype(xp.floor(xp.log2(xp.astype(x, xp.float64) / root_half)), xp.int32)  # or one off, where a library errs
    above, below = x >= _power_of_2(n + 1, xp) * root_half, x < _power_of_2(n, xp) * root_half
    return n + xp.astype(above, xp.int32) - xp.astype(below, xp.int32)


def _power_of_2(n: Array, xp: ModuleType) -> Array:
    """2^n for int32 n, as float32; a library that does not show the bits of its floats has them in a table."""
    if hasattr(n, "view"):
        return ((n + EXPONENT_OF_1) << MANTISSA_BITS).view(xp.float32)
    powers = xp.take(xp.asarray(POWERS_OF_2), xp.reshape(xp.astype(n, xp.int64) - LOWEST_POWER, (-1,)), axis=0)
    return xp.reshape(powers, n.shape)
