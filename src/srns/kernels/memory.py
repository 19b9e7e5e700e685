"""What SRNS does for one positive: rate the memory, choose from it, draw the new memory.

Each function is the twin of a method of `srns.samplers.srns.SRNSState`, in lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from srns.kernels.across import among, count, dots, flags
from srns.kernels.batches import Ints
from srns.kernels.compiler import compiled
from srns.kernels.elementary import WORD_SHIFT, gumbel_of_lanes, logistic_of_lanes
from srns.kernels.gmf import Counts, Decay, Floats, Table, dot, pull_of, pulls_of
from srns.kernels.lanes import (
    LANES,
    Lanes,
    count_from,
    high_product,
    larger,
    largest,
    load,
    lowest_bit,
    pick,
    select,
    spread,
    sqrt,
    store,
    to_floats,
    where,
)
from srns.kernels.random import below, bits, draws, row_keys
from srns.kernels.unseen import Pool, maybe_seen_lanes, resolve
from srns.samplers.elementary import CHANCE_BITS, LOWEST_WORTH, WORD_BITS

float32 = np.float32
int32 = np.int32
uint32 = np.uint32
STRATEGIES = {"variance": 0, "difficulty": 1, "random": 2}
RANDOM = STRATEGIES["random"]
RANDOM_SHIFT = int32(32 - CHANCE_BITS)
FLAGS = 64  # bits of a number
NOBODY, NOT_ALLOWED, LOWEST = int32(-1), float32(-np.inf), float32(LOWEST_WORTH)
SET_BITS = np.array([sorted(range(LANES), key=lambda bit: (not byte >> bit & 1, bit)) for byte in range(2**LANES)], np.int32)
FURTHER = float32(1)  # down, if a level was too high
# u * 2^23 with -log(-log(u)) = -away for the upper ends of steps of `away`; 0 beyond the last. And a little less: noise is off
# by up to 5.3e-7, which is 5e-6 of u at most where anything is left out, and a worth is rounded once more.
PER_UNIT, FIRST_AWAY = float32(16), float32(-8 * 16)
NEEDED = (2.0**WORD_BITS * np.exp(-np.exp((FIRST_AWAY + 1 + np.arange(11 * 16)) / PER_UNIT)) * (1 - 1e-5)).astype(np.int32)


class Items(NamedTuple):
    """Where item rows are read from: `current` (I, width) where it is filled, else the table, in which they begin at `base`, as
    it is after step `now`."""

    current: Floats
    table: Table
    decay: Decay
    base: int
    now: int


class Work(NamedTuple):
    """What one thread works with. For C = S1 + S2 candidates, both rounded up to lanes: their `ids`, -1 where there is none,
    and `worth`; of the fresh ones the `uppers` of their random words and which of them are `listed` to be looked at; those
    that are `good` enough, what the `best` are worth, their `places` by that, and those who win one in `winners` (C,). For
    the memory its `scores` (C,), P_pos now and in the past in `values` (1 + H, C), and its `spread`, std and mean (2, C).
    beta * p_u in the first row of `vector` (2, width), and the `chosen` slots (K or more)."""

    ids: Ints
    scores: Floats
    worth: Floats
    best: Floats
    places: Ints
    winners: Ints
    uppers: Ints
    listed: Ints
    good: Ints
    values: Floats
    spread: Floats
    vector: Floats
    chosen: Ints


@compiled(inline=True)
def scores_of(ids: Lanes, vector: Floats, items: Items) -> Lanes:
    """Scores of eight items by beta * p_u; of item 0 where there is none."""
    width, rows = vector.shape[1], larger(ids, spread(int32(0)))
    if items.current.shape[0] > 0:
        return dots(vector, 0, 0, items.current, rows, 0, width)
    rows = rows + spread(int32(items.base))
    cells, last = items.table
    moved = pulls_of(pick(last, 0, rows), items.now, items.decay.power_ratio, items.decay.tail)
    return dots(vector, 0, 0, cells, rows, 0, width) - moved * dots(vector, 0, 0, cells, rows, width, width)


@compiled(inline=True)
def score_of(item: int, vector: Floats, items: Items) -> float32:
    """`scores_of` one item."""
    width = vector.shape[1]
    if items.current.shape[0] > 0:
        return dot(vector, 0, 0, items.current, item, 0, width)
    row, (cells, last) = items.base + item, items.table
    moved = pull_of(last[row], items.now, items.decay.power_ratio, items.decay.tail)
    return float32(dot(vector, 0, 0, cells, row, 0, width) - moved * dot(vector, 0, 0, cells, row, width, width))


@compiled(inline=True)
def rate(user: int, positive: int, size: int, filled: int, stale: bool, past_users: Floats, past_items: Floats, items: Items,
         work: Work) -> float32:  # fmt: skip
    """Score the memory in ids[:size], write its P_pos to values[0], and std and mean over past epochs to `spread`; returns the
    score of the positive."""
    ids, scores, values, spreads, vector = work.ids, work.scores, work.values, work.spread, work.vector
    width, nobody, nothing = vector.shape[1], spread(int32(0)), spread(float32(0))
    to_this = score_of(positive, vector, items)
    to_positive = spread(to_this)
    for k in range(0, size, LANES):
        score = scores_of(load(ids, 0, k), vector, items)
        store(scores, 0, k, score)
        store(values, 0, k, score - to_positive)
    for s in range(filled):
        at = s * width
        then = spread(dot(past_users, user, at, past_items, positive, at, width))
        for k in range(0, size, LANES):
            score = dots(past_users, user, at, past_items, larger(load(ids, 0, k), nobody), at, width)
            store(values, 1 + s, k, score if stale else score - then)
    epochs = spread(float32(max(filled, 1)))
    for s in range(1 if stale else 1 + filled):
        for k in range(0, size, LANES):
            store(values, s, k, logistic_of_lanes(load(values, s, k)))
    for k in range(0, size, LANES):
        mean, square = nothing, nothing
        for s in range(1, 1 + filled):
            mean = mean + load(values, s, k)
        mean = mean / epochs
        for s in range(1, 1 + filled):
            away = load(values, s, k) - mean
            square = square + away * away
        store(spreads, 0, k, sqrt(square / epochs))
        store(spreads, 1, k, mean)
    return to_this


@compiled(inline=True)
def take_best(size: int, wanted: int, worth: Floats, chosen: Ints) -> None:
    """Write the places of the `wanted` largest of worth[:size] to `chosen`, largest first, the first of equals first; takes all
    but the last out of `worth`, which is filled up with the lowest."""
    none = spread(NOT_ALLOWED)
    for n in range(wanted):
        best = none
        for k in range(0, size, LANES):
            best = larger(load(worth, 0, k), best)
        best, slot = spread(largest(best)), np.uint64(0)
        for k in range((size - 1) // LANES * LANES, -1, -LANES):  # the first of equals is found last
            equal = flags(load(worth, 0, k) >= best)
            slot = select(equal > 0, np.uint64(k) + lowest_bit(equal), slot)
        chosen[n] = slot
        if n + 1 < wanted:
            k = np.int64(slot) // LANES * LANES
            before, place = load(worth, 0, k), count_from(k) - spread(int32(slot))
            store(worth, 0, k, where(place, before, none))


@compiled(inline=True)
def choose(user: int, positive: int, size: int, n_negatives: int, strategy: int, weight: float32, filled_epochs: int,
           stale: bool, keys: Counts, work: Work) -> None:  # fmt: skip
    """Slots of the best of the memory, in order; a memory with fewer items starts again from its best."""
    ids, scores, values, spreads, worth, chosen = work.ids, work.scores, work.values, work.spread, work.worth, work.chosen
    first, second = row_keys(keys[2], keys[3], user, positive)
    by_scores = stale or weight == float32(0) or filled_epochs == 0
    nobody, lowest, none, factor = spread(NOBODY), spread(LOWEST), spread(NOT_ALLOWED), spread(weight)
    filled = 0
    for k in range(0, size, LANES):
        present = load(ids, 0, k) > nobody
        filled += count(present)
        if strategy == RANDOM:
            value = to_floats(draws(first, second, count_from(k)) >> spread(RANDOM_SHIFT))
        else:
            value = (load(scores, 0, k) if by_scores else load(values, 0, k)) + factor * load(spreads, 0, k)
        store(worth, 0, k, where(present, larger(value, lowest), none))
    take_best(size, min(n_negatives, filled), worth, chosen)
    for n in range(filled, n_negatives):
        chosen[n] = chosen[n - filled]


@compiled(inline=True)
def list_above(least: Lanes, values: Any, begin: int, n: int, listed: Ints) -> int:
    """Write the places in values[begin : begin + n] of those that are not below `least` to `listed`; returns how many. All
    without a branch: what is written beyond the last is overwritten or not looked at."""
    found = 0
    for c in range(0, n, LANES):
        above = load(values, 0, begin + c) >= least
        store(listed, 0, found, spread(int32(c)) + load(SET_BITS, np.int64(flags(above)), 0))
        found += count(above)
    return found


@compiled(inline=True)
def find(
    user: int, n: int, begin: int, wanted: int, first: uint32, second: uint32, pool: Pool, listed: Ints, ids: Ints
) -> None:
    """Write the n `listed` of the user's `wanted` fresh candidates to ids[begin:]: twin of
    `srns.samplers.unseen.Unseen.sample`."""
    indptr, seen, counts, maps, starts, masks = pool
    total, start, mask = uint32(counts[user]), starts[user], masks[user]
    length = max(uint32(total // uint32(wanted)), uint32(1))
    end, ring, arc, none = spread(min(uint32(length * uint32(wanted)), total)), spread(total), spread(length), spread(NOBODY)
    shift = spread(uint32(below(bits(first, second, 0), total) - total))
    for block in range(0, n, FLAGS):
        doubtful = np.uint64(0)
        for c in range(block, min(block + FLAGS, n), LANES):
            place = load(listed, 0, c)
            arc_begin = place * arc
            number = arc_begin + high_product(draws(first, second, place - none), arc) + shift
            number = where((end > arc_begin) & (spread(int32(n)) > count_from(c)), number + (ring & (none >= number)), none)
            store(ids, 0, begin + c, number)
            doubtful |= np.uint64(maybe_seen_lanes(number, maps, start, mask) << np.uint64(c - block))
        while doubtful > 0:
            c = np.uint64(np.uint64(begin + block) + lowest_bit(doubtful))
            doubtful &= np.uint64(doubtful - np.uint64(1))
            if ids[c] >= 0:
                ids[c] = resolve(uint32(ids[c]), indptr[user], indptr[user + 1], seen, maps, start, mask)


@compiled(inline=True)
def needed(level: float32, ceiling: float32) -> int:
    """The smallest upper bits of a word with which a score that is at most `ceiling` may still get to `level`, or a little
    less."""
    away = (ceiling - level) * PER_UNIT - FIRST_AWAY  # in steps of the table
    if not away < float32(NEEDED.shape[0]):
        return 0
    return NEEDED[np.uint64(max(away, float32(0)))]


@compiled(inline=True)
def narrow(n: int, begin: int, level: float32, push: float32, lengths: Floats, work: Work) -> int:
    """Keep those of the n `listed` candidates in ids[begin:] that may get to `level` by their own length, with their noise in
    `worth`; returns how many. An item scores at most `push` times its length; if that is not a number, it stays."""
    ids, worth, listed = work.ids, work.worth, work.listed
    none, nobody, nothing = spread(NOT_ALLOWED), spread(NOBODY), spread(int32(0))
    for c in range(0, n, LANES):
        who, noise = load(ids, 0, begin + c), gumbel_of_lanes(pick(work.uppers, 0, load(listed, 0, c)))
        too_far = spread(level) > pick(lengths, 0, larger(who, nothing)) * spread(push) + noise
        store(worth, 0, begin + c, where(too_far, none, where(who > nobody, noise, none)))
    found = list_above(spread(LOWEST), worth, begin, n, listed)
    for c in range(0, found, LANES):
        places = load(listed, 0, c)
        who, noise = pick(ids, begin, places), pick(worth, begin, places)
        store(ids, 0, begin + c, where(spread(int32(found)) > count_from(c), who, nobody))
        store(worth, 0, begin + c, noise)
    return found


@compiled(inline=True)
def rank(size: int, n: int, worth: Floats, places: Ints) -> None:
    """Write the places of worth[:n], filled up with the lowest, to `places`; all beyond the last of `size` places as `size`.

    Each is compared with each other, which is a lot, but nothing waits for anything, and nothing branches.
    """
    room = spread(int32(size))
    for at in range(0, n, LANES):
        mine, place, order = load(worth, 0, at), spread(int32(0)), count_from(at)
        for block in range(0, at, LANES):
            for lane in range(LANES):
                place = place - (spread(worth[block + lane]) >= mine)
        for lane in range(LANES):
            theirs = spread(worth[at + lane])
            place = place - where(order > spread(int32(at + lane)), theirs >= mine, theirs > mine)
        for block in range(at + LANES, n, LANES):
            for lane in range(LANES):
                place = place - (spread(worth[block + lane]) > mine)
        store(places, 0, at, where(room > place, place, room))


@compiled(inline=True)
def renew(user: int, size: int, wanted: int, reserved: int, inverse: float32, push: float32, reach: float32, lengths: Floats,
          level: float32, first: uint32, second: uint32, pool: Pool, items: Items,
          work: Work) -> tuple[int, int]:  # fmt: skip
    """Write a new memory to `winners`, the `size` - `reserved` of memory and fresh candidates for which score / temperature +
    Gumbel noise is largest; returns how many of them are fresh, and how often the level was too high. If 1 is `reserved`, the
    memory's first slot is not among the candidates.

    The noise is a word of each, cheap, and no item scores more than `push` (over the temperature, like all here) times its
    length, which is at most `reach`: so it is known of many fresh candidates that they do not get to `level` without finding
    out who they are, and of many others without reading their rows. If enough others do, the best of them have won; else all is
    done again for a lower level. The outcome is the same for any level.
    """
    drawn = size - reserved
    ids, worth, best, places, winners = work.ids, work.worth, work.best, work.places, work.winners
    uppers, listed, good = work.uppers, work.listed, work.good
    none, nobody, lowest, factor = spread(NOT_ALLOWED), spread(NOBODY), spread(LOWEST), spread(inverse)
    begin = -(-size // LANES) * LANES
    for c in range(0, wanted, LANES):
        upper = draws(first, second, count_from(c + wanted + 1 + size)) >> spread(WORD_SHIFT)
        store(uppers, 0, c, where(spread(int32(wanted)) > count_from(c), upper, nobody))
    for k in range(0, size, LANES):
        noise = gumbel_of_lanes(draws(first, second, count_from(k + wanted + 1)) >> spread(WORD_SHIFT))
        value = larger(load(work.scores, 0, k) * factor + noise, lowest)
        store(worth, 0, k, where(load(ids, 0, k) > nobody, value, none))
    if reserved > 0:
        worth[0] = NOT_ALLOWED
    misses = 0
    while True:
        n = list_above(spread(int32(needed(level, push * reach))), uppers, 0, wanted, listed)
        find(user, n, begin, wanted, first, second, pool, listed, ids)
        n = narrow(n, begin, level, push, lengths, work)
        for c in range(0, n, LANES):
            who, noise = load(ids, 0, begin + c), load(worth, 0, begin + c)
            allowed = who > nobody
            for k in range(0, begin, LANES):
                allowed = where(among(who, load(ids, 0, k)), spread(int32(0)), allowed)
            score = scores_of(who, work.vector, items)
            store(worth, 0, begin + c, where(allowed, larger(score * factor + noise, lowest), none))
        n_good = list_above(spread(level), worth, 0, begin + n, good)
        if n_good >= drawn or level <= LOWEST:
            break
        level = level - FURTHER if misses == 0 else LOWEST
        misses += 1
    for c in range(0, n_good, LANES):
        store(best, 0, c, where(spread(int32(n_good)) > count_from(c), pick(worth, 0, load(good, 0, c)), none))
    rank(drawn, n_good, best, places)
    for k in range(0, size, LANES):
        store(winners, 0, k, nobody)
    fresh = 0
    for c in range(n_good):  # those who do not win go behind the last
        place, candidate = np.uint64(uint32(places[np.uint64(c)])), np.uint64(uint32(good[np.uint64(c)]))
        winners[place] = ids[candidate]
        fresh += (place < np.uint64(drawn)) & (candidate >= np.uint64(begin))
    return fresh, misses
