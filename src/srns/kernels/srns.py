"""One epoch of GMF with SRNS negatives by a crew of threads, the twin of `srns.samplers.srns`.

Every positive is served by one member from what the last step left behind; new memories are put aside and moved in after
the whole batch, so that nobody sees another's. All sums that could depend on the number of threads are of whole numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.interactions import Interactions
from srns.kernels.across import dots
from srns.kernels.batches import Batches, Ints, Known, label_errors, rows_of, take_positives
from srns.kernels.compiler import compiled
from srns.kernels.crew import JOBS, LINE, Gate, add_one, put, wait_for_all
from srns.kernels.gmf import Counts, Decay, Doubles, Floats, Table, flush, prefetch_part, pull_of, value_of
from srns.kernels.lanes import FLOATS_PER_LINE, LANES, aligned_zeros, load, padded, prefetch, spread, store
from srns.kernels.memory import choose, expand, largest_of, rate, redraw, weigh
from srns.kernels.random import below, many_bits, row_keys
from srns.kernels.step import SHARE, Learning, Pulls, Shards, gather, move, owner, pull, score
from srns.kernels.unseen import Pool
from srns.samplers.observations import BINS, RATIO_UNIT
from srns.samplers.srns import SRNS

float32 = np.float32
int32 = np.int32
uint32 = np.uint32
N_BINS, UNIT_OF_RATIO = float32(BINS), float32(RATIO_UNIT)
HISTOGRAM = 4  # where in a row of counters the histogram of P_pos begins, after the sums below
RATIOS, N_RATIOS, REPLACED, N_SLOTS = range(HISTOGRAM)


class Rules(NamedTuple):
    """What the sampler does in this epoch."""

    expansion_size: int
    temperature: float32
    strategy: int  # one of `srns.kernels.memory.STRATEGIES`
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
