"""The BPR loss, with exp as a short polynomial on the float's own bits: vectorises everywhere, with the same bits."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from srns.kernels.compiler import compiled

float32 = np.float32
int32 = np.int32
LOWEST = float32(-87.0)  # exp(-87) is about the smallest normal float32
LOG2_E = float32(1.44269504)
LN2_HIGH, LN2_LOW = float32(0.693359375), float32(-2.12194440e-4)  # ln 2 in two parts, so that n * ln 2 is exact enough
HALF, ONE = float32(0.5), float32(1.0)
# Minimax coefficients of (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2 (Cephes, S. Moshier).
C5, C4, C3, C2, C1, C0 = (
    float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
BIAS, MANTISSA = int32(127), int32(23)


@compiled(inline=True)
def exp_nonpositive(x: float32) -> float32:
    """exp(x) for x <= 0 in float32, relative error below 1e-7 down to exp(-87), constant below."""
    x = max(x, LOWEST)
    n = np.floor(x * LOG2_E + HALF)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    y = ((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
    y = y * r * r + r + ONE
    return y * int32((int32(n) + BIAS) << MANTISSA).view(float32)


@compiled()
def slopes_of(margins: NDArray[np.float32], size: int) -> float:
    """Replace margins s by dloss/ds = -sigmoid(-s); returns the summed loss log(1 + exp(-s)).

    log(1 + exp(-s)) = max(-s, 0) + log(1 + exp(-|s|)), and the logs are one log of a product of factors in (1, 2];
    `size` is at most 1,000 lest the product overflow.
    """
    loss, product = 0.0, 1.0
    for x in range(size):
        s = margins[x]
        small = exp_nonpositive(-abs(s))
        margins[x] = -(small if s > 0 else ONE) / (ONE + small)
        product *= 1.0 + small
        loss += max(-s, float32(0))
    return loss + math.log(product)
