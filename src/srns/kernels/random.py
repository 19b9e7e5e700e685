"""Compiled twins of `srns.rng`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.kernels.compiler import compiled
from srns.kernels.lanes import Lanes, spread

uint32 = np.uint32
MULTIPLY_1 = uint32(rng.MULTIPLY_1)
MULTIPLY_2 = uint32(rng.MULTIPLY_2)
GOLDEN = uint32(rng.GOLDEN)
SIXTEEN, FIFTEEN = uint32(16), uint32(15)


@compiled(inline=True)
def mix(x: uint32) -> uint32:
    """`srns.rng.mix`."""
    x ^= x >> SIXTEEN
    x = uint32(x * MULTIPLY_1)
    x ^= x >> FIFTEEN
    x = uint32(x * MULTIPLY_2)
    return uint32(x ^ (x >> SIXTEEN))


@compiled(inline=True)
def row_keys(a: uint32, b: uint32, x: int, y: int) -> tuple[uint32, uint32]:
    """`srns.rng.row_keys` for one row."""
    first = mix(uint32(mix(uint32(uint32(x) ^ a)) + uint32(y)))
    second = mix(uint32(mix(uint32(uint32(y) ^ b)) + uint32(x)))
    return first, second


@compiled(inline=True)
def bits(first: uint32, second: uint32, draw: int) -> uint32:
    """`srns.rng.bits` for one row."""
    return mix(uint32(mix(uint32(first + uint32(uint32(draw) * GOLDEN))) ^ second))


@compiled(inline=True)
def below(drawn: uint32, n: int) -> int:
    """`srns.rng.below`."""
    return np.int64((np.uint64(drawn) * np.uint64(n)) >> np.uint64(32))


@compiled(inline=True)
def mix_lanes(x: Lanes) -> Lanes:
    """`mix` of eight words."""
    sixteen = spread(SIXTEEN)
    x = (x ^ (x >> sixteen)) * spread(MULTIPLY_1)
    x = (x ^ (x >> spread(FIFTEEN))) * spread(MULTIPLY_2)
    return x ^ (x >> sixteen)


@compiled(inline=True)
def draws(first: uint32, second: uint32, numbers: Lanes) -> Lanes:
    """`bits` of eight draws of a row."""
    return mix_lanes(mix_lanes(spread(first) + numbers * spread(GOLDEN)) ^ spread(second))


# A whole batch at a time: position by position, each waits for its last result, and the processor guesses wrong when a walk
# ends.


@compiled(entry=False)
def scramble(values: NDArray[np.uint32], count: int, half: int, keys: NDArray[np.uint32]) -> None:
    """Send the first `count` values through the Feistel network of `srns.rng.permutation` once."""
    shift, mask = uint32(half), uint32((1 << half) - 1)
    for k in range(keys.shape[0]):
        key = keys[k]
        for x in range(count):
            left, right = uint32(values[x] >> shift), uint32(values[x] & mask)
            values[x] = uint32(right << shift) | uint32(left ^ (mix(uint32(right ^ key)) & mask))


@compiled(allocates=True)
def permuted(start: int, n: int, half: int, keys: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """`srns.rng.permutation` of the positions start, start + 1, ...: passes over all that still lie outside 0..n-1."""
    size = out.shape[0]
    outside, walking = np.empty(size, np.uint32), np.empty(size, np.uint32)
    for x in range(size):
        outside[x] = x
        walking[x] = start + x
    count = size
    while count > 0:
        scramble(walking, count, half, keys)
        left = 0
        for c in range(count):  # those that must go on close ranks
            value, at = walking[c], outside[c]
            out[at] = value
            walking[left] = value
            outside[left] = at
            left += value >= n
        count = left
