"""Compiled twins of `srns.rng` and of the look-up of unseen items in `srns.samplers.unseen`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.kernels.compiler import compiled

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
    return np.int64((np.uint64(drawn) * np.uint64(n)) >> np.uint64(32))  # type: ignore[return-value]


@compiled(inline=True)
def permuted(position: int, n: int, half: int, keys: NDArray[np.uint32]) -> int:
    """`srns.rng.permutation` of one position."""
    shift = uint32(half)
    mask = uint32((1 << half) - 1)
    x = uint32(position)
    while True:
        left, right = uint32(x >> shift), uint32(x & mask)
        for k in range(keys.shape[0]):
            left, right = right, uint32(left ^ (mix(uint32(right ^ keys[k])) & mask))
        x = uint32((left << shift) | right)
        if x < n:
            return np.int64(x)  # type: ignore[return-value]


@compiled(inline=True)
def nth_unseen(items: NDArray[np.int32], start: int, end: int, rank: int) -> int:
    """`srns.samplers.unseen.Unseen.nth` for the user whose ascending items are items[start:end]; rank < number unseen.

    The search is branchless: a halving whose comparison the processor need not guess.
    """
    base = start
    length = end - start
    while length > 1:
        half = length >> 1
        middle = base + half - 1
        base = middle + 1 if items[middle] - (middle - start) <= rank else base
        length -= half
    if length == 1 and items[base] - (base - start) <= rank:
        base += 1
    return rank + (base - start)
