"""Compiled twin of `srns.samplers.unseen`: from a number below a user's count of unseen items to the item.

Most numbers are items that the user has not seen, and stay as they are. A small bit map per user, indexed by the low bits of
an item, says so in one read; only where its bit is set, by the item or by another with the same low bits, the seen items with
these bits are looked through, which lie together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.interactions import Interactions
from srns.kernels.across import flags
from srns.kernels.compiler import compiled
from srns.kernels.lanes import Lanes, aligned_zeros, ones, pick, select, spread
from srns.samplers.unseen import stand_ins

uint32 = np.uint32
WHOLE = 64  # bits per interaction up to which a map holds all items
PART = 16  # bits per interaction, at least, of other maps: one unseen item in 16 to 32 is looked for in vain
BLOCK = 1 << 20  # interactions that maps are made of at a time
ONE, TWO, FIVE, LOW_FIVE = uint32(1), uint32(2), uint32(5), uint32(31)


class Pool(NamedTuple):
    """Where the rows of users begin (U + 1,) in `seen` (N, 2), their seen items by low bits, each with its stand-in; the counts
    of unseen items (U,); and the bit maps: where in `maps` (uint32) a user's begins (U,), and its number of bits - 1 (U,),
    which is a mask. Each word of a map is followed by how many seen items belong to words before it."""

    indptr: NDArray[np.int64]
    seen: NDArray[np.int32]
    counts: NDArray[np.int64]
    maps: NDArray[np.uint32]
    starts: NDArray[np.int64]
    masks: NDArray[np.uint32]


def make_pool(train: Interactions) -> Pool:
    """The pool of items that the users of `train` have not interacted with."""
    part = np.minimum(train.user_counts * PART, train.n_items)
    wanted = np.maximum(np.where(train.n_items <= WHOLE * train.user_counts, train.n_items, part), 32)
    bits = np.int64(1) << np.ceil(np.log2(wanted)).astype(np.int64)
    lengths = bits >> 5
    ends = np.cumsum(lengths)
    starts, masks = ends - lengths, (bits - 1).astype(np.uint32)
    maps = aligned_zeros(int(ends[-1]) if len(ends) else 0, 2).view(np.uint32)
    seen = np.stack([train.items, stand_ins(train)], axis=1)
    for block in _blocks(train.indptr):  # to keep what is in between small
        users, items = train.users[block], train.items[block]
        place = items.astype(np.uint32) & masks[users]
        word = starts[users] + (place >> FIVE)
        np.bitwise_or.at(maps[:, 0], word, uint32(1) << (place & LOW_FIVE))
        np.add.at(maps[:, 1], word, uint32(1))
        seen[block] = seen[block][np.lexsort((place, users))]
    maps[:, 1] = np.cumsum(maps[:, 1], dtype=np.uint32) - maps[:, 1]
    maps[:, 1] -= np.repeat(maps[starts, 1], lengths)
    return Pool(train.indptr, seen, train.n_items - train.user_counts, maps.reshape(-1), 2 * starts, masks)


def _blocks(indptr: NDArray[np.int64]) -> Iterator[slice]:
    """The interactions of whole users, about `BLOCK` at a time."""
    begin, users = 0, len(indptr) - 1
    while begin < indptr[-1]:
        end = int(indptr[min(int(np.searchsorted(indptr, begin + BLOCK)), users)])
        yield slice(begin, end)
        begin = end


@compiled(inline=True)
def maybe_seen(number: uint32, maps: NDArray[np.uint32], start: int, mask: uint32) -> uint32:
    """1 if the user whose bit map begins at `start` may have seen item `number`, 0 if surely not."""
    place = uint32(number & mask)
    word = maps[np.uint64(np.uint64(start) + np.uint64(TWO * (place >> FIVE)))]
    return uint32(uint32(word >> uint32(place & LOW_FIVE)) & ONE)


@compiled(inline=True)
def maybe_seen_lanes(numbers: Lanes, maps: NDArray[np.uint32], start: int, mask: uint32) -> np.uint64:
    """`maybe_seen` of eight numbers, as the bits of one."""
    place = numbers & spread(mask)
    word = pick(maps, start, (place >> spread(FIVE)) << spread(ONE))
    return flags((word >> (place & spread(LOW_FIVE))) << spread(LOW_FIVE))


@compiled(inline=True)
def is_seen(number: uint32, begin: int, end: int, seen: NDArray[np.int32], maps: NDArray[np.uint32], start: int,
            mask: uint32) -> bool:  # fmt: skip
    """Whether the user whose row is seen[begin:end] has interacted with item `number`."""
    if not maybe_seen(number, maps, start, mask):
        return False
    return uint32(seen[place_of(number, begin, end, seen, maps, start, mask), 0]) == number


@compiled(inline=True)
def resolve(number: uint32, begin: int, end: int, seen: NDArray[np.int32], maps: NDArray[np.uint32], start: int,
            mask: uint32) -> int:  # fmt: skip
    """The unseen item that has a number whose bit is set, for a user whose row is seen[begin:end]."""
    at = place_of(number, begin, end, seen, maps, start, mask)
    return select(uint32(seen[at, 0]) == number, np.int64(seen[at, 1]), np.int64(number))


@compiled(inline=True)
def place_of(number: uint32, begin: int, end: int, seen: NDArray[np.int32], maps: NDArray[np.uint32], start: int,
             mask: uint32) -> np.uint64:  # fmt: skip
    """Where in the row seen[begin:end] an item whose bit is set stands, if it is there at all."""
    place, one = uint32(number & mask), np.uint64(1)
    word = np.uint64(np.uint64(start) + np.uint64(TWO * (place >> FIVE)))
    before = uint32(maps[word] & uint32(uint32(ONE << uint32(place & LOW_FIVE)) - ONE))
    # at least one item belongs to each bit, and in a map of all items no more than that: then this is the place
    at, last = np.uint64(np.uint64(begin) + np.uint64(uint32(maps[np.uint64(word + one)] + ones(before)))), np.uint64(end - 1)
    while at < last and uint32(uint32(seen[at, 0]) & mask) <= place and uint32(seen[at, 0]) != number:
        at = np.uint64(at + one)
    return at
