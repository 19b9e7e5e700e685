"""Counter-based random numbers: a draw is a pure function of what it is for.

Every number is a 32-bit hash of (seed, stream, epoch), of a row, which is a pair of integers such as (user, positive), and of
the draw's position within the row. Threads, ranks, batch order and resumed runs therefore see the same numbers. All arithmetic
is on int64 arrays that hold 32-bit values, which NumPy, PyTorch and the other array libraries share bit for bit;
`srns.kernels.random` is the compiled twin.

The mixing function is the two-round multiply-xorshift permutation "lowbias32" of C. Wellons (avalanche bias 0.17).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = Any  # an array of any library that follows the Python array API

MASK = 0xFFFFFFFF
MULTIPLY_1 = 0x7FEB352D
MULTIPLY_2 = 0x846CA68B
GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: consecutive draws start far apart


class Key(NamedTuple):
    """Two 32-bit words that stand for (seed, stream, epoch)."""

    a: int
    b: int


def mix(x: Array) -> Array:
    """A bijection of 32-bit integers whose every output bit depends on every input bit; Python ints or int64 arrays.

    >>> mix(1), mix(2)
    (1753845952, 3507691905)
    """
    x = x ^ (x >> 16)  # a new array, which may then be changed in place
    x *= MULTIPLY_1
    x &= MASK  # int64 products wrap, and their low 32 bits are what is wanted
    x ^= x >> 15
    x *= MULTIPLY_2
    x &= MASK
    x ^= x >> 16
    return x


def stream_key(seed: int, stream: str, epoch: int = 0) -> Key:
    """The key of one stream of draws, for instance ("shuffle", epoch 3).

    >>> stream_key(0, "uniform", 1) == stream_key(0, "uniform", 1), stream_key(0, "uniform", 1) == stream_key(0, "uniform", 2)
    (True, False)
    """
    words = [seed & MASK, (seed >> 32) & MASK, *stream.encode(), epoch & MASK]
    a, b = 0x243F6A88, 0x85A308D3  # digits of pi: nothing up the sleeve
    for word in words:
        a = mix((a ^ word) & MASK)
        b = mix((b + word + a) & MASK)
    return Key(a, b)


def row_keys(key: Key, x: Array, y: Array) -> tuple[Array, Array]:
    """The two words of each row (x, y), shapes broadcast; `x` and `y` are int64 arrays of non-negative integers."""
    first = mix((mix((x & MASK) ^ key.a) + y) & MASK)
    second = mix((mix((y & MASK) ^ key.b) + x) & MASK)
    return first, second


def bits(rows: tuple[Array, Array], draw: Array | int) -> Array:
    """Draw number `draw` of each row: int64 arrays uniform on 0..2**32-1."""
    first, second = rows
    return mix(mix((first + draw * GOLDEN) & MASK) ^ second)


def words(rows: tuple[Array, Array], draws: Array) -> Array:
    """The same for rows (B,) and draws (n,): (B, n)."""
    first, second = rows
    return bits((first[:, None], second[:, None]), draws[None, :])


def below(drawn: Array, n: Array) -> Array:
    """Map 32 random bits to 0..n-1 (n < 2**31); no value is likelier than another by more than a factor 1 + n / 2**32."""
    return (drawn * n) >> 32


def open_uniform(drawn: Array) -> Array:
    """Map 32 random bits to a float64 strictly between 0 and 1."""
    return (drawn + 0.5) * 2.0**-32


def permutation(key: Key, n: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a random permutation of 0..n-1 sends `positions`: a Feistel network over a power of four, walked until below n.

    Any part of it can be computed anywhere, in any order, without holding the rest.

    >>> sorted(permutation(stream_key(0, "shuffle"), 5, np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """
    half, keys = feistel(key, n)
    mask = (1 << half) - 1
    result = positions.astype(np.int64)
    outside = np.arange(len(result))
    while len(outside):
        x = result[outside]
        left, right = x >> half, x & mask
        for round_key in keys.tolist():
            left, right = right, left ^ (mix(right ^ round_key) & mask)
        x = (left << half) | right
        result[outside] = x
        outside = outside[x >= n]
    return result


def feistel(key: Key, n: int) -> tuple[int, NDArray[np.uint32]]:
    """Bits per half and round keys of the permutation of 0..n-1 (n < 2**32).

    Four rounds shuffle a large set; a small one needs more, as its halves hold few bits for a round to scramble.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    rounds = np.arange(max(4, 24 // half), dtype=np.int64)
    return half, bits(row_keys(key, rounds, rounds), 0).astype(np.uint32)
