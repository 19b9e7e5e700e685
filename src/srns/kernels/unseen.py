"""Compiled twin of `srns.samplers.unseen`: from a number below a user's count of unseen items to the item.

Most numbers are items that the user has not seen, and stay as they are. A small bit map per user, indexed by the low bits of
an item, says so in one read; only where its bit is set, by the item or by another with the same low bits, the user's row is
searched.
"""

from __future__ import annotations

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
PART = 16  # bits per interaction, at least, of other maps: one unseen item in 16 to 32 is searched for in vain
ONE, TWO, FIVE, LOW_FIVE = uint32(1), uint32(2), uint32(5), uint32(31)


class Pool(NamedTuple):
    """Rows of seen items with their stand-ins, the counts of unseen items (U,), and the bit maps: where in `maps` (uint32) a
    user's begins (U,), and its number of bits - 1 (U,), which is a mask. Each word of a map is followed by how many bits of the
    map are set before it."""

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]
    stand_ins: NDArray[np.int32]
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
    for begin in range(0, len(train), 1 << 20):  # in blocks, to keep what is in between small
        users, items = (column[begin : begin + (1 << 20)] for column in (train.users, train.items))
        place = items.astype(np.uint32) & masks[users]
        word = starts[users] + (place >> FIVE)
        np.bitwise_or.at(maps[:, 0], word, uint32(1) << (place & LOW_FIVE))
        np.add.at(maps[:, 1], word, uint32(1))
    maps[:, 1] = np.cumsum(maps[:, 1], dtype=np.uint32) - maps[:, 1]
    maps[:, 1] -= np.repeat(maps[starts, 1], lengths)
    counts = train.n_items - train.user_counts
    return Pool(train.indptr, train.items, stand_ins(train), counts, maps.reshape(-1), 2 * starts, masks)


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
def search(number: int, begin: int, end: int, items: NDArray[np.int32], stand_ins: NDArray[np.int32]) -> int:
    """Item `number`, or its stand-in if it is one of the seen items[begin:end], of which there is at least one."""
    place, length = np.uint64(begin), np.uint64(end - begin)
    one = np.uint64(1)
    while length > one:  # a comparison decides what to add, never where to go on: nothing to guess wrong
        half = np.uint64(length >> one)
        place = select(items[np.uint64(place + half)] <= number, np.uint64(place + half), place)
        length = np.uint64(length - half)
    return select(items[place] == number, np.int64(stand_ins[place]), np.int64(number))


@compiled(inline=True)
def resolve(number: uint32, begin: int, end: int, count: int, items: NDArray[np.int32], stand_ins: NDArray[np.int32],
            maps: NDArray[np.uint32], start: int, mask: uint32) -> int:  # fmt: skip
    """The unseen item that has a number whose bit is set, for a user with the seen items[begin:end] and `count` unseen ones."""
    if np.int64(mask) + 1 >= count + end - begin:  # the map holds all items
        word = np.uint64(np.uint64(start) + np.uint64(TWO * (number >> FIVE)))
        before = uint32(maps[word] & uint32(uint32(ONE << uint32(number & LOW_FIVE)) - ONE))
        rank = uint32(maps[np.uint64(word + np.uint64(1))] + ones(before))
        return np.int64(stand_ins[np.uint64(np.uint64(begin) + np.uint64(rank))])
    return search(np.int64(number), begin, end, items, stand_ins)
