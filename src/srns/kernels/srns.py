"""One epoch of GMF with SRNS negatives by a crew of threads, the twin of `srns.samplers.srns`.

Every positive is served by one member from what the last step left behind; new memories are put aside and moved in after
the whole batch, so that nobody sees another's. All sums that could depend on the number of threads are of whole numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.interactions import Interactions
from srns.kernels.across import among, count, dots, last, running_total
from srns.kernels.batches import Batches, Ints, Known, label_errors, rows_of, take_positives
from srns.kernels.compiler import compiled
from srns.kernels.crew import JOBS, LINE, Gate, add_one, put, wait_for_all
from srns.kernels.elementary import exp_of_lanes, logistic_of_lanes
from srns.kernels.gmf import Counts, Decay, Doubles, Floats, Table, flush, pull_of, value_of
from srns.kernels.lanes import (
    FLOATS_PER_LINE,
    LANES,
    Lanes,
    aligned_zeros,
    as_integers,
    count_from,
    high_product,
    largest,
    load,
    padded,
    prefetch,
    spread,
    sqrt,
    store,
    total,
    where,
)
from srns.kernels.random import below, bits, many_bits, row_keys
from srns.kernels.step import SHARE, Learning, Pulls, Shards, gather, move, owner, pull, score
from srns.kernels.unseen import Pool, maybe_seen, resolve
from srns.samplers.observations import BINS, RATIO_UNIT
from srns.samplers.srns import SRNS, WEIGHT_UNIT

float32 = np.float32
int32 = np.int32
uint32 = np.uint32
STRATEGIES = {"variance": 0, "difficulty": 1, "random": 2}
VARIANCE, RANDOM = STRATEGIES["variance"], STRATEGIES["random"]
NOT_ALLOWED = float32(-np.inf)
LARGEST_WEIGHT, N_BINS, UNIT_OF_RATIO = float32(WEIGHT_UNIT), float32(BINS), float32(RATIO_UNIT)
BEYOND = int32(np.iinfo(np.int32).max)  # more than all weights together
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
    """Candidates of each user (U, S1), -1 where there are none; those `staged` (B, S1) to take their place after the batch, if
    the positive is the `first` (W, B) of its user; the batch in which each user was `met` (U,) last; and hidden positives by
    user, of which noise experiments keep one in the first slot."""

    slots: Ints
    staged: Ints
    first: NDArray[np.bool_]
    met: Counts
    hidden_indptr: NDArray[np.int64]
    hidden_items: Ints


class Desk(NamedTuple):
    """What T threads work with, each row from a cache line on. For the C = S1 + S2 candidates, both rounded up to lanes: their
    `ids`, -1 where there is none, `scores`, `weights`, `edges` (T, C) and `blocks` (T, C / 8), see `weigh`; `suspects` (T, C),
    places to be searched for; random words `drawn`; beta * p_u in `vectors` (T, width). For the memory P_pos now and in the
    past in `values` (T, 1 + H, C), its `spread` std and mean (T, 2, C) and `worth` (T, C); the `chosen` slots (T, K). And
    `counters` (T, HISTOGRAM + BINS)."""

    ids: Ints
    scores: Floats
    weights: Ints
    edges: Ints
    blocks: Ints
    suspects: Ints
    drawn: Counts
    vectors: Floats
    values: Floats
    spread: Floats
    worth: Doubles
    chosen: Ints
    counters: NDArray[np.int64]


def make_past(n_users: int, n_items: int, depth: int, dim: int) -> Past:
    return Past(aligned_zeros(n_users * depth, padded(dim)), aligned_zeros(n_items * depth, padded(dim)), depth)


def make_memories(slots: Ints, window: int, batch_size: int, hidden: Interactions | None) -> Memories:
    n_users, size = slots.shape
    indptr, items = rows_of(hidden)
    return Memories(slots, np.zeros((batch_size, size), np.int32), np.zeros((window, batch_size), np.bool_),
                    np.zeros(n_users, np.uint32), indptr, items)  # fmt: skip


def make_desk(threads: int, sampler: SRNS, dim: int) -> Desk:
    size, wanted = padded(sampler.memory_size), padded(sampler.expansion_size)
    candidates = size + wanted

    def ints(n: int) -> Ints:
        return aligned_zeros(threads, -(-n // FLOATS_PER_LINE) * FLOATS_PER_LINE).view(np.int32)

    ids = ints(candidates)
    ids[:] = -1
    return Desk(
        ids=ids,
        scores=aligned_zeros(threads, candidates),
        weights=ints(candidates),
        edges=ints(candidates),
        blocks=aligned_zeros(threads, padded(candidates // LANES)).view(np.int32),
        suspects=ints(candidates),
        drawn=ints(candidates + 2 * LANES).view(np.uint32),
        vectors=aligned_zeros(threads, padded(dim)),
        values=aligned_zeros(threads, sampler.history_epochs + 1, candidates),
        spread=aligned_zeros(threads, 2, candidates),
        worth=np.zeros((threads, candidates)),
        chosen=np.zeros((threads, sampler.n_negatives), np.int32),
        counters=np.zeros((threads, HISTOGRAM + BINS), np.int64),
    )


@compiled(inline=True)
def dot(a: Floats, row_a: int, column_a: int, b: Floats, row_b: int, column_b: int, width: int) -> float32:
    together = spread(float32(0))
    for f in range(0, width, LANES):
        together = together + load(a, row_a, column_a + f) * load(b, row_b, column_b + f)
    return total(together)


@compiled(inline=True)
def largest_of(a: Lanes, b: Lanes) -> Lanes:
    return where(a > b, a, b)


@compiled()
def refresh(task: int, crew: int, now: int, n_users: int, table: Table, decay: Decay, current: Floats) -> None:
    """Write this member's item rows as they are after step `now` to `current` (I, width): they are read 72 times per
    positive."""
    cells, last = table
    width = current.shape[1]
    for item in range(current.shape[0]):
        row = uint32(n_users + item)
        if owner(row, crew) == task:
            pull = spread(pull_of(last[row], now, decay.power_ratio, decay.tail))
            for f in range(0, width, LANES):
                store(current, item, f, value_of(cells, row, f, width, pull))


# What follows runs once per positive. It takes plain arrays: an array out of a tuple costs a reference count.


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


@compiled(inline=True)
def prefetch_part(array: Any, row: int, start: int, length: int) -> None:
    """Ask for array[row, start : start + length]."""
    for f in range(start, start + length, FLOATS_PER_LINE):
        prefetch(array, row, f)


@compiled()
def serve(task: int, w: int, share: int, step: int, batches: Batches, rules: Rules, pool: Pool, memories: Memories, past: Past,
          current: Floats, table: Table, decay: Decay, pulls: Pulls, desk: Desk) -> None:  # fmt: skip
    """Negatives and new memories for one share of batch w, the positives of step `step` (counted from 0).

    Users and margins are left in `pulls`, unless scores are stale.
    """
    betas, user_rows, margins = pulls.betas, pulls.users, pulls.slopes
    expansion_size, temperature, strategy, weight, filled, latest, updating, keys = rules
    indptr, items, stand_ins, counts, words, starts, masks, ranks = pool
    slots, staged, hidden_indptr, hidden_items = memories.slots, memories.staged, memories.hidden_indptr, memories.hidden_items
    first_of_user = memories.first[w]
    cells, stepped = table
    power_ratio, tail = decay.power_ratio, decay.tail
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    size, stale = slots.shape[1], latest >= 0
    ids, scores, weights, edges = desk.ids[task], desk.scores[task], desk.weights[task], desk.edges[task]
    blocks, suspects, drawn, vector = desk.blocks[task], desk.suspects[task], desk.drawn[task], desk.vectors[task]
    values, spreads, worth = desk.values[task], desk.spread[task], desk.worth[task]
    chosen, counters = desk.chosen[task], desk.counters[task]
    width = vector.shape[0]
    past_users, past_items = past.users.reshape(-1, past.depth * width), past.items.reshape(-1, past.depth * width)
    fresh_at = -(-size // LANES) * LANES
    end = fresh_at - (-expansion_size // LANES) * LANES
    beta, n_positives = (step + 1) & 1, batches.size[w]
    for x in range(share * SHARE, min((share + 1) * SHARE, n_positives)):
        # Each user's data was last read long ago: without asking for it ahead, half of the time goes into waiting.
        later, soon = np.int64(users[min(x + 2, n_positives - 1)]), min(x + 1, n_positives - 1)
        prefetch_part(slots, later, 0, size)
        prefetch_part(cells, later, 0, 2 * width)
        prefetch(indptr, 0, later)
        prefetch(counts, 0, later)
        prefetch(starts, 0, later)
        prefetch(masks, 0, later)
        later = np.int64(users[soon])
        prefetch_part(past_users, later, 0, filled * width)
        prefetch_part(past_items, positives[soon], 0, filled * width)
        for k in range(size):
            prefetch_part(past_items, max(slots[later, k], 0), 0, filled * width)
        if updating and first_of_user[soon]:
            prefetch_part(words, 0, starts[later], (masks[later] >> uint32(5)) + 1)
            prefetch_part(ranks, 0, starts[later], (masks[later] >> uint32(5)) + 1)
            prefetch_part(stand_ins, 0, indptr[later], indptr[later + 1] - indptr[later])
        user, positive = np.int64(users[x]), np.int64(positives[x])
        pull = spread(pull_of(stepped[uint32(user)], step, power_ratio, tail))
        for f in range(0, width, LANES):
            if stale:
                store(vector, 0, f, load(past_users, user, latest * width + f))
            else:
                store(vector, 0, f, load(betas, beta, f) * value_of(cells, uint32(user), f, width, pull))
        for k in range(size):
            ids[k] = slots[user, k]
        to_positive = rate(user, positive, size, filled, stale, past_users, past_items, current, ids, scores, vector, values,
                           spreads)  # fmt: skip
        for f in range(0, width, LANES):
            store(user_rows, x, f, load(vector, 0, f))
        choose(user, positive, size, strategy, weight, stale, keys, ids, scores, values, spreads, worth, chosen)
        for k in range(chosen.shape[0]):
            slot = chosen[k]
            negatives[x, k] = ids[slot]
            margins[x, k] = scores[slot] - to_positive
            counters[HISTOGRAM + min(np.int64(values[0, slot] * N_BINS), BINS - 1)] += 1
            if filled > 0 and not stale:
                counters[RATIOS] += np.int64(spreads[0, slot] / spreads[1, slot] * UNIT_OF_RATIO)
                counters[N_RATIOS] += 1
        if updating and first_of_user[x]:
            first, second = row_keys(keys[0], keys[1], user, step)
            many_bits(first, second, expansion_size + size + 2, drawn)
            expand(user, fresh_at, expansion_size, drawn, ids, suspects, indptr, items, stand_ins, counts, words, starts,
                   masks, ranks)  # fmt: skip
            for c in range(fresh_at, end, LANES):
                store(scores, 0, c, dots(vector, 0, 0, current, largest_of(load(ids, 0, c), spread(int32(0))), 0, width))
            n_hidden = hidden_indptr[user + 1] - hidden_indptr[user] if hidden_indptr.shape[0] > 1 else 0
            everything = weigh(fresh_at, end, n_hidden > 0, temperature, ids, scores, weights, edges, blocks)
            fresh = redraw(size, fresh_at, everything, drawn, expansion_size + 1, ids, weights, edges, blocks, staged, x)
            counters[REPLACED] += fresh
            counters[N_SLOTS] += size
            if n_hidden > 0:
                for k in range(size - 1, 0, -1):
                    staged[x, k] = staged[x, k - 1]
                staged[x, 0] = hidden_items[hidden_indptr[user] + below(drawn[expansion_size + size + 1], n_hidden)]


@compiled()
def prepare(step: int, w: int, users: Ints, items: Ints, shuffle: Any, batches: Batches, memories: Memories) -> None:
    """Make batch w of the positives of step `step` and mark the first of each user."""
    take_positives(w, step * batches.users.shape[1], users, items, shuffle, batches)
    first, met, who = memories.first[w], memories.met, batches.users[w]
    for x in range(batches.size[w]):
        first[x] = met[who[x]] != step + 1
        met[who[x]] = step + 1


@compiled()
def move_in(w: int, begin: int, end: int, batches: Batches, memories: Memories) -> None:
    """Replace the memories of positives begin..end of batch w by those that were put aside."""
    slots, staged, first, users = memories.slots, memories.staged, memories.first[w], batches.users[w]
    for x in range(begin, end):
        if first[x]:
            for k in range(slots.shape[1]):
                slots[users[x], k] = staged[x, k]


@compiled()
def srns_epoch(task: int, crew: int, gate: Gate, users: Ints, items: Ints, shuffle: Any, pool: Pool, known: Known,
               batches: Batches, learning: Learning, beta: Floats, table: Table, decay: Decay, pulls: Pulls, shards: Shards,
               totals: Doubles, rules: Rules, memories: Memories, past: Past, current: Floats, nothing: Floats,
               desk: Desk) -> None:  # fmt: skip
    """What one member does in an epoch; adds its summed loss and the number of label errors to totals[task].

    In the first half of a step the crew takes jobs in turn: one prepares the next batch, the others draw and pull for a share
    of the positives each. In the second half each member moves its own rows and brings `current` (I, width) up to date with
    them. Stale scores are frozen in `current`; the items that are learnt are then read from the table, which `nothing` stands
    for.
    """
    window, batch_size, n_users = batches.users.shape[0], batches.users.shape[1], memories.slots.shape[0]
    steps = (users.shape[0] + batch_size - 1) // batch_size
    stale = rules.latest >= 0
    learnt = nothing if stale else current
    if task == 0:
        prepare(0, 0, users, items, shuffle, batches, memories)
    if not stale:
        refresh(task, crew, 0, n_users, table, decay, current)
    wait_for_all(crew, gate)
    for step in range(steps):
        w, jobs, now = step % window, JOBS + LINE * (step & 1), step + 1
        size = batches.size[w]
        shares = (size + SHARE - 1) // SHARE
        job = add_one(gate, jobs)
        while job <= shares:
            if job > 0:
                serve(task, w, job - 1, step, batches, rules, pool, memories, past, current, table, decay, pulls, desk)
                if stale:
                    score(w, job - 1, now, batches, n_users, table, decay, pulls)
                pull(w, job - 1, now, batches, n_users, learnt, learning, table, decay, pulls)
            elif now < steps:
                prepare(now, now % window, users, items, shuffle, batches, memories)
            job = add_one(gate, jobs)
        wait_for_all(crew, gate)
        begin, end = task * size // crew, (task + 1) * size // crew
        if rules.updating:
            move_in(w, begin, end, batches, memories)
        totals[task, 1] += label_errors(w, begin, end, known, batches)
        if task == 0:
            put(gate, JOBS + LINE * (now & 1), 0)
            for share in range(shares):
                totals[0, 0] += pulls.lost[share]
        gather(task, crew, w, batches, n_users, pulls, shards)
        move(task, w, now, batches, n_users, learning, beta, table, decay, pulls, shards)
        if not stale:
            refresh(task, crew, now, n_users, table, decay, current)
        wait_for_all(crew, gate)
    if task == 0:
        flush(steps, table, decay)
