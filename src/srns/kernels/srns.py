"""One epoch of GMF with SRNS negatives by a crew of threads, the twin of `srns.samplers.srns`.

Every positive is served by one member from what the last step left behind; new memories are put aside and moved in after
the whole batch, so that nobody sees another's. Where a memory is drawn anew after each positive, all positives of a user in a
batch are served by one member in their order, and pulls wait until all are served. All sums that could depend on the number of
threads are of whole numbers.

Items are scored from `current` (I, width), their rows as they are now one after another, which each step brings up to date; or,
where that would take longer than the step itself because there are so many of them, from the table, and `current` is empty.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.interactions import Interactions
from srns.kernels.batches import Batches, Ints, Known, rows_of, take_positives
from srns.kernels.compiler import compiled
from srns.kernels.crew import JOBS, LINE, Gate, add_one, wait_for_all
from srns.kernels.gmf import Counts, Decay, Doubles, Floats, Table, dot, flush, prefetch_part, pull_of, reach_of, value_of
from srns.kernels.lanes import FLOATS_PER_LINE, LANES, aligned_zeros, load, padded, prefetch, spread, store, whole_lines
from srns.kernels.memory import LOWEST, Items, Work, choose, rate, renew
from srns.kernels.random import below, bits, row_keys
from srns.kernels.step import SHARE, Learning, Pulls, Shards, finish, owner, pull, refresh, score, shares_of
from srns.kernels.unseen import Pool
from srns.samplers.observations import BINS, RATIO_UNIT
from srns.samplers.srns import SRNS

float32 = np.float32
int32 = np.int32
uint32 = np.uint32
N_BINS, UNIT_OF_RATIO = float32(BINS), float32(RATIO_UNIT)
A_BIT_MORE = float32(1.0002)  # than rounding adds to a score and takes off the lengths: 1.2e-4 together for 4,096 factors
UP, DOWN = float32(0.01), float32(-0.2)
HISTOGRAM = 4  # where in a row of counters the histogram of P_pos begins, after the sums below
RATIOS, N_RATIOS, REPLACED, N_SLOTS = range(HISTOGRAM)


class Rules(NamedTuple):
    """What the sampler does in this epoch."""

    expansion_size: int
    inverse: float32  # 1 / temperature
    strategy: int  # one of `srns.kernels.memory.STRATEGIES`
    weight: float32  # alpha_t
    filled: int  # past epochs to take the std over
    latest: int  # slot of the last epoch in `Past` if its scores are to be used instead of current ones, else -1
    updating: bool
    each: bool  # whether a memory is drawn anew after each positive, not once per user and batch
    keys: Counts  # (4,): the two words for this epoch's updates, and the two for draws with strategy "random"


class Past(NamedTuple):
    """Parameters at the ends of past epochs: rows user * depth + slot of beta * p_u, rows item * depth + slot of q_i."""

    users: Floats
    items: Floats
    depth: int


class Memories(NamedTuple):
    """Candidates of each user (U, S1), -1 where there are none; those `staged` (B, S1) to take their place after the batch, if
    the positive is the `first` (W, B) of its user; the one of the same user `following` (W, B) in the batch, -1 after the last;
    the batch in which each user was `met` (U,) last, and its place in it, `seat` (U,); and hidden positives by user, of which
    noise experiments keep one in the first slot."""

    slots: Ints
    staged: Ints
    first: NDArray[np.bool_]
    following: Ints
    met: Counts
    seat: Ints
    hidden_indptr: NDArray[np.int64]
    hidden_items: Ints


class Desk(NamedTuple):
    """What T threads work with, each row from a cache line on, since two that write to one line wait for each other: a `Work`
    for each in `rows`; a guess of what the last of a new memory is worth in `levels`, see `renew`, and the largest of the
    lengths below in `reaches`, both the first of (T, a line); and `counters` (T, HISTOGRAM + BINS or more). Shared by all: the
    `lengths` (I,) that items may have before their next step, each written by the owner of its row."""

    rows: Work
    levels: Floats
    reaches: Floats
    counters: NDArray[np.int64]
    lengths: Floats


def make_past(n_users: int, n_items: int, depth: int, dim: int) -> Past:
    return Past(aligned_zeros(n_users * depth, padded(dim)), aligned_zeros(n_items * depth, padded(dim)), depth)


def make_memories(slots: Ints, window: int, batch_size: int, hidden: Interactions | None) -> Memories:
    n_users, size = slots.shape
    indptr, items = rows_of(hidden)
    shape = (window, batch_size)
    return Memories(slots, np.zeros((batch_size, size), np.int32), np.zeros(shape, np.bool_), np.zeros(shape, np.int32),
                    np.zeros(n_users, np.uint32), np.zeros(n_users, np.int32), indptr, items)  # fmt: skip


def make_desk(threads: int, sampler: SRNS, dim: int, n_items: int) -> Desk:
    # a register more, since lists are written eight at a time
    candidates = whole_lines(padded(sampler.memory_size) + padded(sampler.expansion_size) + LANES)

    def floats() -> Floats:
        return aligned_zeros(threads, candidates)

    def ints() -> Ints:
        return floats().view(np.int32)

    rows = Work(
        ids=ints(),
        scores=floats(),
        worth=floats(),
        best=floats(),
        places=ints(),
        winners=ints(),
        uppers=ints(),
        listed=ints(),
        good=ints(),
        values=aligned_zeros(threads, sampler.history_epochs + 1, candidates),
        spread=aligned_zeros(threads, 2, candidates),
        vector=aligned_zeros(threads, 2, padded(dim)),
        chosen=aligned_zeros(threads, whole_lines(sampler.n_negatives)).view(np.int32),
    )
    rows.ids[:] = -1
    counters = aligned_zeros(threads, whole_lines(2 * (HISTOGRAM + BINS))).view(np.int64)
    levels, reaches = (aligned_zeros(threads, FLOATS_PER_LINE) for _ in range(2))
    return Desk(rows, levels, reaches, counters, aligned_zeros(n_items))


@compiled(inline=True)
def work_of(task: int, rows: Work) -> Work:
    """The row of one thread."""
    return Work(
        rows.ids[task], rows.scores[task], rows.worth[task], rows.best[task], rows.places[task], rows.winners[task],
        rows.uppers[task], rows.listed[task], rows.good[task], rows.values[task], rows.spread[task], rows.vector[task],
        rows.chosen[task],
    )  # fmt: skip


@compiled(entry=False)
def reach_at_first(task: int, crew: int, n_users: int, table: Table, decay: Decay, lengths: Floats) -> float32:
    """Note how long this member's items may get before their first step of the epoch; returns the largest."""
    cells, reach = table.cells, float32(0)
    for item in range(lengths.shape[0]):
        row = uint32(n_users + item)
        if owner(row, crew) == task:
            lengths[item] = reach_of(cells, row, cells.shape[1] // 3, decay.tail[0])
            reach = max(reach, lengths[item])
    return reach


@compiled(inline=True)
def ask_ahead(x: int, end: int, filled: int, updating: bool, users: Ints, positives: Ints, first_of_user: Any, slots: Ints,
              cells: Floats, last: Counts, pool: Pool, past_users: Floats, past_items: Floats, width: int) -> None:  # fmt: skip
    """Ask for what the next two positives need of their users. It was last read long ago, and what is read first decides what
    is read next: without this, half of the time goes into waiting. Rows of memories and candidates, which wait for nothing but
    their number, need no asking."""
    later, soon = np.int64(users[min(x + 2, end - 1)]), min(x + 1, end - 1)
    prefetch_part(slots, later, 0, slots.shape[1])
    prefetch_part(cells, later, 0, 2 * width)
    prefetch(last, 0, later)
    prefetch(pool.indptr, 0, later)
    prefetch(pool.counts, 0, later)
    prefetch(pool.starts, 0, later)
    prefetch(pool.masks, 0, later)
    user = np.int64(users[soon])
    if filled > 0:
        prefetch_part(past_users, user, 0, filled * width)
        prefetch_part(past_items, positives[soon], 0, filled * width)
    if updating and first_of_user[soon]:
        prefetch_part(pool.maps, 0, pool.starts[user], 2 * ((pool.masks[user] >> uint32(5)) + 1))


@compiled(entry=False)
def serve(task: int, crew: int, w: int, share: int, step: int, batches: Batches, rules: Rules, pool: Pool, memories: Memories,
          past: Past, current: Floats, table: Table, decay: Decay, pulls: Pulls, desk: Desk) -> None:  # fmt: skip
    """Negatives and new memories for one share of batch w, the positives of step `step` (counted from 0), or, where a memory is
    drawn anew after `each`, for all positives of the users who come first in that share.

    Users and margins are left in `pulls`; where scores are stale, `score` has to follow.
    """
    wanted, inverse, strategy, weight, filled, latest, updating, each, keys = rules
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    slots, staged, hidden_indptr, hidden_items = memories.slots, memories.staged, memories.hidden_indptr, memories.hidden_items
    first_of_user, following, cells = memories.first[w], memories.following[w], table.cells
    size, stale = slots.shape[1], latest >= 0
    work, counters, levels = work_of(task, desk.rows), desk.counters[task], desk.levels[task]
    items, vector, chosen, winners = Items(current, table, decay, slots.shape[0], step), work.vector, work.chosen, work.winners
    width, n_negatives = vector.shape[1], negatives.shape[1]
    past_users, past_items = past.users.reshape(-1, past.depth * width), past.items.reshape(-1, past.depth * width)
    beta, end, reach = (step + 1) & 1, min((share + 1) * SHARE, batches.size[w]), float32(0)
    for member in range(crew):
        reach = max(reach, desk.reaches[member, 0])
    for begin in range(share * SHARE, end):
        x = begin if first_of_user[begin] or not each else -1
        while x >= 0:
            ask_ahead(x, end, filled, updating, users, positives, first_of_user, slots, cells, table.last, pool, past_users,
                      past_items, width)  # fmt: skip
            user, positive = np.int64(users[x]), np.int64(positives[x])
            moved = spread(pull_of(table.last[uint32(user)], step, decay.power_ratio, decay.tail))
            for f in range(0, width, LANES):
                if stale:
                    store(vector, 0, f, load(past_users, user, latest * width + f))
                else:
                    store(vector, 0, f, load(pulls.betas, beta, f) * value_of(cells, uint32(user), f, width, moved))
                store(pulls.users, x, f, load(vector, 0, f))
            for k in range(size):
                work.ids[k] = slots[user, k]
            to_positive = rate(user, positive, size, filled, stale, past_users, past_items, items, work)
            choose(user, positive, size, n_negatives, strategy, weight, filled, stale, keys, work)
            for k in range(n_negatives):
                slot = chosen[k]
                negatives[x, k] = work.ids[slot]
                pulls.slopes[x, k] = work.scores[slot] - to_positive
                counters[HISTOGRAM + min(np.int64(work.values[0, slot] * N_BINS), BINS - 1)] += 1
                if filled > 0 and not stale:
                    counters[RATIOS] += np.int64(work.spread[0, slot] / work.spread[1, slot] * UNIT_OF_RATIO)
                    counters[N_RATIOS] += 1
            if updating and (each or first_of_user[x]):
                first, second = row_keys(keys[0], keys[1], user, positive if each else step)
                n_hidden = hidden_indptr[user + 1] - hidden_indptr[user] if hidden_indptr.shape[0] > 1 else 0
                reserved = int(n_hidden > 0)  # a hidden positive takes the first slot
                push = np.sqrt(dot(vector, 0, 0, vector, 0, 0, width)) * inverse * A_BIT_MORE
                scarce = pool.counts[user] <= size  # then all win, and nothing is learnt from it
                level = LOWEST if scarce else levels[0]
                fresh, misses = renew(
                    user, size, wanted, reserved, inverse, push, reach, desk.lengths, level, first, second, pool, items, work
                )
                if not scarce:  # too high one time in 21: looking twice costs as much as looking too closely
                    levels[0] += DOWN if misses > 0 else UP
                counters[REPLACED] += fresh
                counters[N_SLOTS] += size - reserved
                room, row = (slots, user) if each else (staged, x)
                for k in range(reserved, size):
                    room[row, k] = winners[k - reserved]
                if reserved:
                    drawn = below(bits(first, second, 2 * wanted + size + 1), n_hidden)
                    room[row, 0] = hidden_items[hidden_indptr[user] + drawn]
            x = following[x] if each else -1


@compiled(entry=False)
def prepare(step: int, w: int, users: Ints, items: Ints, shuffle: Any, batches: Batches, memories: Memories) -> None:
    """Make batch w of the positives of step `step` and note which are of one user."""
    take_positives(w, step * batches.users.shape[1], users, items, shuffle, batches)
    first, following, met, seat, who = memories.first[w], memories.following[w], memories.met, memories.seat, batches.users[w]
    for x in range(batches.size[w]):
        user = who[x]
        first[x] = met[user] != step + 1
        met[user] = step + 1
        if not first[x]:
            following[seat[user]] = x
        following[x] = -1
        seat[user] = x


@compiled(entry=False)
def move_in(w: int, begin: int, end: int, batches: Batches, memories: Memories) -> None:
    """Replace the memories of positives begin..end of batch w by those that were put aside."""
    slots, staged, first, users = memories.slots, memories.staged, memories.first[w], batches.users[w]
    for x in range(begin, end):
        if first[x]:
            for k in range(slots.shape[1]):
                slots[users[x], k] = staged[x, k]


@compiled(entry=False)
def learn(w: int, share: int, now: int, stale: bool, batches: Batches, n_users: int, learnt: Floats, learning: Learning,
          table: Table, decay: Decay, pulls: Pulls) -> None:  # fmt: skip
    """Note the pulls of one share of batch w, whose margins are there unless they were of stale scores."""
    if stale:
        score(w, share, now, batches, n_users, learnt, table, decay, pulls)
    pull(w, share, now, batches, n_users, learnt, learning, table, decay, pulls)


@compiled()
def srns_epoch(task: int, crew: int, gate: Gate, users: Ints, items: Ints, shuffle: Any, pool: Pool, known: Known,
               batches: Batches, learning: Learning, beta: Floats, table: Table, decay: Decay, pulls: Pulls, shards: Shards,
               totals: Doubles, rules: Rules, memories: Memories, past: Past, current: Floats, nothing: Floats,
               desk: Desk) -> None:  # fmt: skip
    """What one member does in an epoch; adds its summed loss and the number of label errors to totals[task].

    In the first half of a step the crew takes jobs in turn: one prepares the next batch, the others draw and pull for a share
    of the positives each. In the second half each member moves its own rows and brings `current` up to date with them. Stale
    scores are frozen in `current`; the items that are learnt are then read from the table, which `nothing` stands for.
    """
    window, batch_size, n_users = batches.users.shape[0], batches.users.shape[1], memories.slots.shape[0]
    steps = (users.shape[0] + batch_size - 1) // batch_size
    stale = rules.latest >= 0
    learnt = nothing if stale else current
    measured = desk.lengths if rules.updating and not stale else nothing.reshape(-1)  # of stale scores as they are at first
    if task == 0:
        prepare(0, 0, users, items, shuffle, batches, memories)
    if rules.updating:
        desk.reaches[task, 0] = reach_at_first(task, crew, n_users, table, decay, desk.lengths)
    if not stale:
        refresh(task, crew, 0, n_users, table, decay, current)
    wait_for_all(crew, gate)
    for step in range(steps):
        w, jobs, now = step % window, JOBS + LINE * (step & 1), step + 1
        size = batches.size[w]
        shares = shares_of(size)
        job = add_one(gate, jobs)
        while job <= shares:
            if job > 0:
                serve(task, crew, w, job - 1, step, batches, rules, pool, memories, past, current, table, decay, pulls, desk)
                if not rules.each:
                    learn(w, job - 1, now, stale, batches, n_users, learnt, learning, table, decay, pulls)
            elif now < steps:
                prepare(now, now % window, users, items, shuffle, batches, memories)
            job = add_one(gate, jobs)
        wait_for_all(crew, gate)
        if rules.each:
            for share in range(task, shares, crew):
                learn(w, share, now, stale, batches, n_users, learnt, learning, table, decay, pulls)
            wait_for_all(crew, gate)
        elif rules.updating:
            move_in(w, task * size // crew, (task + 1) * size // crew, batches, memories)
        reach = finish(
            task, crew, gate, step, w, batches, n_users, known, learning, beta, table, decay, pulls, shards, totals, learnt,
            measured,
        )  # fmt: skip
        desk.reaches[task, 0] = max(desk.reaches[task, 0], reach)
        if not stale:
            refresh(task, crew, now, n_users, table, decay, current)
        wait_for_all(crew, gate)
    if task == 0:
        flush(steps, table, decay)
