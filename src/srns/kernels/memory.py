"""What SRNS does for one positive: rate the memory, choose from it, look at fresh candidates, draw the new memory.

Each function is the twin of a method of `srns.samplers.srns.SRNSState`, in lanes. They take plain arrays: an array out of a
tuple costs a reference count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from srns.kernels.across import among, count, dots, last, running_total
from srns.kernels.batches import Ints
from srns.kernels.compiler import compiled
from srns.kernels.elementary import exp_of_lanes, logistic_of_lanes
from srns.kernels.gmf import Counts, Doubles, Floats
from srns.kernels.lanes import (
    LANES,
    Lanes,
    as_integers,
    count_from,
    high_product,
    largest,
    load,
    spread,
    sqrt,
    store,
    total,
    where,
)
from srns.kernels.random import below, bits, row_keys
from srns.kernels.unseen import maybe_seen, resolve
from srns.samplers.srns import WEIGHT_UNIT

float32 = np.float32
int32 = np.int32
uint32 = np.uint32
STRATEGIES = {"variance": 0, "difficulty": 1, "random": 2}
RANDOM = STRATEGIES["random"]
NOT_ALLOWED, LARGEST_WEIGHT = float32(-np.inf), float32(WEIGHT_UNIT)
BEYOND = int32(np.iinfo(np.int32).max)  # more than all weights together


@compiled(inline=True)
def dot(a: Floats, row_a: int, column_a: int, b: Floats, row_b: int, column_b: int, width: int) -> float32:
    together = spread(float32(0))
    for f in range(0, width, LANES):
        together = together + load(a, row_a, column_a + f) * load(b, row_b, column_b + f)
    return total(together)


@compiled(inline=True)
def largest_of(a: Lanes, b: Lanes) -> Lanes:
    return where(a > b, a, b)


@compiled(inline=True)
def rate(user: int, positive: int, size: int, filled: int, stale: bool, past_users: Floats, past_items: Floats, current: Floats,
         ids: Ints, scores: Floats, vector: Floats, values: Floats, spreads: Floats) -> float32:  # fmt: skip
    """Score the memory in ids[:size], write its P_pos to values[0], and std and mean over past epochs to `spreads`; returns the
    score of the positive."""
    width, nobody, nothing = vector.shape[0], spread(int32(0)), spread(float32(0))
    to_this = dot(vector, 0, 0, current, positive, 0, width)
    to_positive = spread(to_this)
    for k in range(0, size, LANES):
        score = dots(vector, 0, 0, current, largest_of(load(ids, 0, k), nobody), 0, width)
        store(scores, 0, k, score)
        store(values, 0, k, score - to_positive)
    for s in range(filled):
        at = s * width
        then = spread(dot(past_users, user, at, past_items, positive, at, width))
        for k in range(0, size, LANES):
            score = dots(past_users, user, at, past_items, largest_of(load(ids, 0, k), nobody), at, width)
            store(values, 1 + s, k, score if stale else score - then)
    count = spread(float32(max(filled, 1)))
    for s in range(1 if stale else 1 + filled):
        for k in range(0, size, LANES):
            store(values, s, k, logistic_of_lanes(load(values, s, k)))
    for k in range(0, size, LANES):
        mean, square = nothing, nothing
        for s in range(1, 1 + filled):
            mean = mean + load(values, s, k)
        mean = mean / count
        for s in range(1, 1 + filled):
            away = load(values, s, k) - mean
            square = square + away * away
        store(spreads, 0, k, sqrt(square / count))
        store(spreads, 1, k, mean)
    return to_this


@compiled(inline=True)
def choose(user: int, positive: int, size: int, strategy: int, weight: float32, stale: bool, keys: Counts, ids: Ints,
           scores: Floats, values: Floats, spreads: Floats, worth: Doubles, chosen: Ints) -> None:  # fmt: skip
    """Slots of the best of the memory, in order; a memory with fewer items starts again from its best."""
    if strategy == RANDOM:
        first, second = row_keys(keys[2], keys[3], user, positive)
        for k in range(size):
            worth[k] = bits(first, second, k)
    else:
        for k in range(size):
            worth[k] = (scores[k] if stale else values[0, k]) + weight * spreads[0, k]
    filled = 0
    for k in range(size):
        filled += ids[k] >= 0
        worth[k] = worth[k] if ids[k] >= 0 else -np.inf
    for n in range(min(chosen.shape[0], filled)):
        best = 0
        for k in range(1, size):
            best = k if worth[k] > worth[best] else best
        chosen[n] = best
        worth[best] = -np.inf
    for n in range(filled, chosen.shape[0]):
        chosen[n] = chosen[n - filled]


@compiled(inline=True)
def expand(user: int, begin: int, wanted: int, drawn: Counts, ids: Ints, suspects: Ints, indptr: Any, items: Ints,
           stand_ins: Ints, counts: Any, words: Counts, starts: Any, masks: Counts, ranks: Counts) -> None:  # fmt: skip
    """Fresh candidates to ids[begin:]: twin of `srns.samplers.unseen.Unseen.sample`."""
    count = uint32(counts[user])
    length = max(uint32(count // uint32(wanted)), uint32(1))
    end, ring, arc, none = spread(min(uint32(length * uint32(wanted)), count)), spread(count), spread(length), spread(int32(-1))
    shift = spread(uint32(below(drawn[0], count) - count))
    for c in range(0, wanted, LANES):
        start = count_from(c) * arc
        place = start + high_product(load(drawn, 0, c + 1), arc) + shift
        store(ids, 0, begin + c, where(end > start, place + (ring & (none >= place)), none))
    start, mask, doubtful = starts[user], masks[user], uint32(0)
    for c in range(uint32(begin), uint32(begin + wanted)):
        suspects[doubtful] = c
        doubtful += maybe_seen(uint32(ids[c]), words, start, mask)
    for d in range(doubtful):
        c = uint32(suspects[d])
        if ids[c] >= 0:
            ids[c] = resolve(
                uint32(ids[c]), indptr[user], indptr[user + 1], counts[user], items, stand_ins, words, start, mask, ranks
            )


@compiled(inline=True)
def weigh(begin: int, end: int, reserved: bool, temperature: float32, ids: Ints, scores: Floats, weights: Ints, edges: Ints,
          blocks: Ints) -> int:  # fmt: skip
    """Whole weights of the candidates, of which those from `begin` on are fresh; 0 for what is empty, repeated or reserved.

    For each the sum of the weights before it in its block of eight goes to `edges`, and for each block the sum of the blocks
    before it to `blocks`. Returns the sum of all.
    """
    nothing, lowest, one, unit = spread(int32(0)), spread(NOT_ALLOWED), spread(int32(1)), spread(LARGEST_WEIGHT)
    for c in range(0, end, LANES):
        store(weights, 0, c, load(ids, 0, c) >= nothing)
    for k in range(0, begin, LANES):
        memory = load(ids, 0, k)
        for c in range(begin, end, LANES):
            store(weights, 0, c, where(among(load(ids, 0, c), memory), nothing, load(weights, 0, c)))
    if reserved:
        weights[0] = 0
    best = lowest
    for c in range(0, end, LANES):
        best = largest_of(best, where(load(weights, 0, c), load(scores, 0, c), lowest))
    best, divisor, zero = spread(largest(best)), spread(temperature), spread(float32(0))
    everything = int32(0)
    for b in range(0, blocks.shape[0], LANES):
        store(blocks, 0, b, spread(BEYOND))
    for c in range(0, end, LANES):
        allowed = load(weights, 0, c)
        relative = where(allowed, (load(scores, 0, c) - best) / divisor, zero)
        relative = where(relative > zero, zero, relative)  # infinite only if the model has diverged
        weight = allowed & (one + as_integers(exp_of_lanes(relative) * unit))
        sums = running_total(weight)
        store(weights, 0, c, weight)
        store(edges, 0, c, sums - weight)
        blocks[c // LANES] = everything
        everything = int32(everything + last(sums))
    return everything


@compiled(inline=True)
def redraw(size: int, begin: int, everything: int, drawn: Counts, first_draw: int, ids: Ints, weights: Ints, edges: Ints,
           blocks: Ints, staged: Ints, x: int) -> int:  # fmt: skip
    """Draw a new memory staged[x] by the weights, without replacement; returns how many of it are fresh.

    What was drawn leaves no room between its edge and the next. Counting edges needs no loop that ends nobody knows when.
    """
    fresh = 0
    for k in range(size):
        staged[x, k] = -1
        if everything > 0:
            target = int32(below(drawn[first_draw + k], everything))
            b = -1
            for at in range(0, blocks.shape[0], LANES):
                b += count(spread(target) >= load(blocks, 0, at))
            rest = spread(int32(target - blocks[b]))
            inside = load(edges, 0, b * LANES)
            c = b * LANES + count(rest >= inside) - 1
            weight = spread(weights[c])
            store(edges, 0, b * LANES, inside - (weight & (inside > rest)))
            for at in range(0, blocks.shape[0], LANES):
                store(blocks, 0, at, load(blocks, 0, at) - (weight & (load(blocks, 0, at) > spread(target))))
            staged[x, k] = ids[c]
            fresh += c >= begin
            everything = int32(everything - weights[c])
    return fresh
