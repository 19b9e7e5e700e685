"""Compiled twin of `srns.samplers.srns`: the negatives of one batch of GMF, drawn by several threads.

Every positive is served by one thread from what the last step left behind; new memories are put aside and moved in after
the whole batch, so that no thread sees another's. All sums that could depend on the number of threads are of whole numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from srns.interactions import Interactions
from srns.kernels.compiler import compiled
from srns.kernels.elementary import exp_nonpositive, logistic
from srns.kernels.gmf import (
    Batches,
    Counts,
    Decay,
    Doubles,
    Floats,
    Ints,
    Known,
    Learning,
    Scratch,
    Table,
    flush,
    group_batch,
    label_errors,
    pull_of,
    step_batch,
    take_positives,
    value_of,
)
from srns.kernels.lanes import LANES, aligned_zeros, load, padded, spread, store, total
from srns.kernels.random import below, bits, row_keys
from srns.kernels.unseen import Pool, maybe_seen, search
from srns.samplers.observations import BINS, RATIO_UNIT
from srns.samplers.srns import SRNS, WEIGHT_UNIT

float32 = np.float32
uint32 = np.uint32
STRATEGIES = {"variance": 0, "difficulty": 1, "random": 2}
VARIANCE, RANDOM = STRATEGIES["variance"], STRATEGIES["random"]
NOT_ALLOWED = float32(-np.inf)
LARGEST_WEIGHT, N_BINS, UNIT_OF_RATIO = float32(WEIGHT_UNIT), float32(BINS), float32(RATIO_UNIT)
HISTOGRAM = 4  # where in a row of counters the histogram of P_pos begins, after the sums below
RATIOS, N_RATIOS, REPLACED, N_SLOTS = range(HISTOGRAM)


class Rules(NamedTuple):
    """What the sampler does in this epoch."""

    expansion_size: int
    temperature: float32
    strategy: int  # one of STRATEGIES
    weight: float32  # alpha_t
    filled: int  # past epochs to take the std over
    latest: int  # slot of the last epoch in `Past` if its scores are to be used instead of current ones, else -1
    updating: bool
    keys: Counts  # (4,): the two words for this epoch's updates, and the two for draws with strategy "random"


class Past(NamedTuple):
    """Parameters at the ends of past epochs: rows user * depth + slot of beta * p_u, rows item * depth + slot of q_i."""

    users: Floats
    items: Floats
    depth: int


class Memories(NamedTuple):
    """Candidates of each user (U, S1), -1 where there are none; those `staged` (B, S1) to take their place after the batch, if the
    positive is the `first` (B,) of its user; the batch in which each user was `met` (U,) last; and hidden positives by user, of
    which noise experiments keep one in the first slot."""

    slots: Ints
    staged: Ints
    first: NDArray[np.bool_]
    met: Counts
    hidden_indptr: NDArray[np.int64]
    hidden_items: Ints


class Desk(NamedTuple):
    """What T threads work with: `ids` (T, C) of candidates, their `scores` and `weights` (T, C) and the `sums` of eight weights each
    (T, C / 8), C being S1 + S2 rounded up to lanes; `suspects` (T, C), places to be searched for; beta * p_u in `vectors`
    (T, width); for the memory P_pos now and in the past in `values` (T, 1 + H, C), its `spread` std and mean (T, 2, C) and
    `worth` (T, C); the `chosen` slots (T, K); and `counters` (T, HISTOGRAM + BINS)."""

    ids: Ints
    scores: Floats
    weights: Ints
    sums: NDArray[np.int64]
    suspects: Ints
    vectors: Floats
    values: Floats
    spread: Floats
    worth: Doubles
    chosen: Ints
    counters: NDArray[np.int64]


def make_past(n_users: int, n_items: int, depth: int, dim: int) -> Past:
    return Past(aligned_zeros(n_users * depth, padded(dim)), aligned_zeros(n_items * depth, padded(dim)), depth)


def make_memories(slots: Ints, batch_size: int, hidden: Interactions | None) -> Memories:
    n_users, size = slots.shape
    indptr, items = (np.zeros(1, np.int64), np.zeros(0, np.int32)) if hidden is None else (hidden.indptr, hidden.items)
    return Memories(slots, np.zeros((batch_size, size), np.int32), np.zeros(batch_size, np.bool_), np.zeros(n_users, np.uint32),
                    indptr, items)  # fmt: skip


def make_desk(threads: int, sampler: SRNS, dim: int) -> Desk:
    candidates = padded(sampler.memory_size + sampler.expansion_size)

    def ints(*shape: int) -> Ints:
        return np.zeros((threads, *shape), np.int32)

    return Desk(
        ids=ints(candidates),
        scores=aligned_zeros(threads, candidates),
        weights=ints(candidates),
        sums=np.zeros((threads, candidates // LANES), np.int64),
        suspects=ints(candidates),
        vectors=aligned_zeros(threads, padded(dim)),
        values=aligned_zeros(threads, sampler.history_epochs + 1, candidates),
        spread=aligned_zeros(threads, 2, candidates),
        worth=np.zeros((threads, candidates)),
        chosen=ints(sampler.negatives),
        counters=np.zeros((threads, HISTOGRAM + BINS), np.int64),
    )


@compiled(inline=True)
def dot(a: Floats, row_a: int, b: Floats, row_b: int) -> float32:
    together = spread(float32(0))
    for f in range(0, a.shape[1], LANES):
        together = together + load(a, row_a, f) * load(b, row_b, f)
    return total(together)


@compiled()
def refresh(now: int, n_users: int, table: Table, decay: Decay, current: Floats) -> None:
    """Write all item rows as they are after step `now` to `current` (I, width): read 72 times per positive, they should be close."""
    cells, last = table
    width = current.shape[1]
    for item in range(current.shape[0]):
        row = uint32(n_users + item)
        pull = spread(pull_of(last[row], now, decay.power_ratio, decay.tail))
        for f in range(0, width, LANES):
            store(current, item, f, value_of(cells, row, f, width, pull))


# What follows runs once per positive. It takes plain arrays: an array out of a tuple costs a reference count.


@compiled(inline=True)
def rate(user: int, positive: int, size: int, filled: int, stale: bool, depth: int, past_users: Floats, past_items: Floats,
         current: Floats, ids: Ints, scores: Floats, vectors: Floats, task: int, values: Floats,
         spreads: Floats) -> None:  # fmt: skip
    """Score the memory in ids[:size], write its P_pos to values[0], and std and mean over past epochs to `spreads`."""
    to_positive = dot(vectors, task, current, positive)
    for k in range(size):
        scores[k] = dot(vectors, task, current, max(ids[k], 0))
        values[0, k] = scores[k] - to_positive
    for s in range(filled):
        row = user * depth + s
        then = dot(past_users, row, past_items, positive * depth + s)
        for k in range(size):
            values[1 + s, k] = dot(past_users, row, past_items, max(ids[k], 0) * depth + s)
            if not stale:
                values[1 + s, k] -= then
    for s in range(0, 1 if stale else 1 + filled):
        for k in range(size):
            values[s, k] = logistic(values[s, k])
    count = float32(max(filled, 1))
    for k in range(size):
        spreads[0, k] = float32(0)
        spreads[1, k] = values[1, k]
    for s in range(1, filled):
        for k in range(size):
            spreads[1, k] += values[1 + s, k]
    for k in range(size):
        spreads[1, k] /= count
    for s in range(filled):
        for k in range(size):
            away = values[1 + s, k] - spreads[1, k]
            spreads[0, k] += away * away
    for k in range(size):
        spreads[0, k] = np.sqrt(spreads[0, k] / count)


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
def expand(user: int, size: int, first: uint32, second: uint32, ids: Ints, suspects: Ints, indptr: Any, items: Ints,
           stand_ins: Ints, counts: Any, words: Counts, starts: Any, masks: Counts) -> None:  # fmt: skip
    """Fresh candidates to ids[size:]: twin of `srns.samplers.unseen.Unseen.sample`."""
    count, start, mask = counts[user], starts[user], masks[user]
    wanted = ids.shape[0] - size
    length = max(count // wanted, 1)
    shift = below(bits(first, second, 0), count)
    for c in range(wanted):
        place = c * length + below(bits(first, second, c + 1), length) + shift
        place = place - count if place >= count else place
        ids[size + c] = place if c * length < count else -1
    doubtful = 0
    for c in range(wanted):
        suspects[doubtful] = size + c
        doubtful += maybe_seen(uint32(max(ids[size + c], 0)), words, start, mask)
    for d in range(doubtful):
        c = suspects[d]
        if ids[c] >= 0:
            ids[c] = search(ids[c], indptr[user], indptr[user + 1], items, stand_ins)


@compiled(inline=True)
def weigh(size: int, reserved: bool, temperature: float32, ids: Ints, scores: Floats, weights: Ints, sums: Any) -> int:
    """Whole weights of the candidates, 0 for what is empty, repeated or reserved, and their sums by eight; returns the sum of all."""
    n = ids.shape[0]
    for c in range(n):
        weights[c] = ids[c] >= 0
    for k in range(size):
        for c in range(size, n):
            weights[c] &= ids[c] != ids[k]
    if reserved:
        weights[0] = 0
    best = NOT_ALLOWED
    for c in range(n):
        best = max(best, scores[c] if weights[c] else NOT_ALLOWED)
    for c in range(n):
        relative = (scores[c] - best) / temperature if weights[c] else float32(0)
        weights[c] *= 1 + np.int32(exp_nonpositive(relative) * LARGEST_WEIGHT)
    everything = np.int64(0)
    for b in range(sums.shape[0]):
        together = np.int64(0)
        for c in range(b * LANES, min((b + 1) * LANES, n)):
            together += weights[c]
        sums[b] = together
        everything += together
    return everything


@compiled(inline=True)
def redraw(size: int, first: uint32, second: uint32, everything: int, ids: Ints, weights: Ints, sums: Any,
           staged: Ints) -> int:  # fmt: skip
    """Draw a new memory by the weights, without replacement; returns how many of it are fresh."""
    fresh = 0
    wanted = ids.shape[0] - size
    for k in range(size):
        staged[k] = -1
        if everything > 0:
            target = below(bits(first, second, wanted + 1 + k), everything)
            b = 0
            while target >= sums[b]:
                target -= sums[b]
                b += 1
            c = b * LANES
            while target >= weights[c]:
                target -= weights[c]
                c += 1
            staged[k] = ids[c]
            fresh += c >= size
            everything -= weights[c]
            sums[b] -= weights[c]
            weights[c] = 0
    return fresh


@compiled()
def serve(task: int, tasks: int, step: int, w: int, batches: Batches, rules: Rules, pool: Pool, memories: Memories, past: Past,
          current: Floats, beta: Floats, table: Table, decay: Decay, desk: Desk) -> None:  # fmt: skip
    """Negatives and new memories for this task's part of batch w, the positives of step `step` (counted from 0)."""
    expansion_size, temperature, strategy, weight, filled, latest, updating, keys = rules
    indptr, items, stand_ins, counts, words, starts, masks = pool
    slots, staged, first_of_user, _, hidden_indptr, hidden_items = memories
    past_users, past_items, depth = past
    cells, last = table
    power_ratio, tail = decay.power_ratio, decay.tail
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    size, stale = slots.shape[1], latest >= 0
    n = size + expansion_size
    ids, scores, weights, sums = desk.ids[task, :n], desk.scores[task, :n], desk.weights[task, :n], desk.sums[task]
    suspects, vectors, values, spreads = desk.suspects[task], desk.vectors, desk.values[task], desk.spread[task]
    worth, chosen, counters = desk.worth[task], desk.chosen[task], desk.counters[task]
    width = vectors.shape[1]
    begin, end = task * batches.size[w] // tasks, (task + 1) * batches.size[w] // tasks
    for x in range(begin, end):
        user, positive = np.int64(users[x]), np.int64(positives[x])
        pull = spread(pull_of(last[uint32(user)], step, power_ratio, tail))
        for f in range(0, width, LANES):
            if stale:
                store(vectors, task, f, load(past_users, user * depth + latest, f))
            else:
                store(vectors, task, f, load(beta, 0, f) * value_of(cells, uint32(user), f, width, pull))
        for k in range(size):
            ids[k] = slots[user, k]
        rate(user, positive, size, filled, stale, depth, past_users, past_items, current, ids, scores, vectors, task, values,
             spreads)  # fmt: skip
        choose(user, positive, size, strategy, weight, stale, keys, ids, scores, values, spreads, worth, chosen)
        for k in range(chosen.shape[0]):
            slot = chosen[k]
            negatives[x, k] = ids[slot]
            counters[HISTOGRAM + min(np.int64(values[0, slot] * N_BINS), BINS - 1)] += 1
            if filled > 0 and not stale:
                counters[RATIOS] += np.int64(spreads[0, slot] / spreads[1, slot] * UNIT_OF_RATIO)
                counters[N_RATIOS] += 1
        if updating and first_of_user[x]:
            first, second = row_keys(keys[0], keys[1], user, step)
            expand(user, size, first, second, ids, suspects, indptr, items, stand_ins, counts, words, starts, masks)
            for c in range(size, n):
                scores[c] = dot(vectors, task, current, max(ids[c], 0))
            n_hidden = hidden_indptr[user + 1] - hidden_indptr[user] if hidden_indptr.shape[0] > 1 else 0
            everything = weigh(size, n_hidden > 0, temperature, ids, scores, weights, sums)
            fresh = redraw(size, first, second, everything, ids, weights, sums, staged[x])
            counters[REPLACED] += fresh
            counters[N_SLOTS] += size
            if n_hidden > 0:
                for k in range(size - 1, 0, -1):
                    staged[x, k] = staged[x, k - 1]
                drawn = bits(first, second, expansion_size + size + 1)
                staged[x, 0] = hidden_items[hidden_indptr[user] + below(drawn, n_hidden)]


@compiled()
def meet(w: int, step: int, batches: Batches, memories: Memories) -> None:
    """Mark the first positive of each user in batch w."""
    first, met = memories.first, memories.met
    for x in range(batches.size[w]):
        user = batches.users[w, x]
        first[x] = met[user] != step + 1
        met[user] = step + 1


@compiled()
def move_in(w: int, batches: Batches, memories: Memories) -> None:
    """Replace memories by those that were put aside."""
    slots, staged, first = memories.slots, memories.staged, memories.first
    for x in range(batches.size[w]):
        if first[x]:
            user = batches.users[w, x]
            for k in range(slots.shape[1]):
                slots[user, k] = staged[x, k]


@compiled(parallel=True)
def srns_epoch(threads: int, users: Ints, items: Ints, shuffle: Any, pool: Pool, known: Known, rules: Rules, memories: Memories,
               past: Past, current: Floats, desk: Desk, learning: Learning, beta: Floats, table: Table, decay: Decay, batches: Batches,
               scratch: Scratch, places: Counts, totals: Doubles) -> None:  # fmt: skip
    """A whole epoch with SRNS negatives; adds its summed loss and the number of label errors to `totals`."""
    batch_size, n_users = batches.users.shape[1], memories.slots.shape[0]
    steps = (users.shape[0] + batch_size - 1) // batch_size
    for step in range(steps):
        w = step % batches.size.shape[0]
        take_positives(w, step * batch_size, users, items, shuffle, batches)
        meet(w, step, batches, memories)
        if rules.latest < 0:
            refresh(step, n_users, table, decay, current)
        for task in prange(threads):
            serve(task, threads, step, w, batches, rules, pool, memories, past, current, beta, table, decay, desk)
        if rules.updating:
            move_in(w, batches, memories)
        group_batch(w, n_users, places[0], batches)
        totals[0] += step_batch(w, step + 1, batches, learning, beta, table, decay, scratch)
        totals[1] += label_errors(w, known, batches)
    flush(steps, table, decay)
