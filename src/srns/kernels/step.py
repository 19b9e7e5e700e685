"""One Adam step of GMF from a batch, the twin of `srns.engines.plain`, in parts that a crew can share.

`pull` notes for each positive how it pulls at its rows, by the margins of its negatives, which samplers that score leave
behind and `score` fills in for others: no two positives write to the same place. `gather` adds up the pulls at rows, `move`
moves them: each row belongs to one member, who goes through the batch in order. So any number of threads gives the same bits.
All of a crew must have pulled before the first gathers, and moved before the next pulls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from srns.kernels.batches import Batches, Known, label_errors
from srns.kernels.compiler import compiled
from srns.kernels.crew import JOBS, LINE, Gate, put
from srns.kernels.elementary import ONE, bpr_slopes, softmax_slopes
from srns.kernels.gmf import (
    B1,
    B2,
    Counts,
    Decay,
    Doubles,
    Floats,
    Table,
    adam,
    float32,
    prefetch_part,
    pull_of,
    reach_of,
    uint32,
    value_of,
)
from srns.kernels.lanes import LANES, aligned_zeros, load, padded, spread, store, total
from srns.kernels.random import GOLDEN

LOSSES = {"bpr": 0, "softmax": 1}
SOFTMAX = LOSSES["softmax"]
SHARE = 32  # positives that one member pulls at a time; their loss is one number, so this is part of the result's last bit
CHUNK = 512  # margins whose loss is one logarithm
PACKED = 8  # items per positive of a batch up to which `current` is used
AHEAD = 4  # rows between asking for one and stepping it: without asking, the Adam update takes a quarter longer


class Learning(NamedTuple):
    """What a step minimises, and whether it moves beta. To correct for how likely negatives were to be drawn, margins are
    raised by what their users have in `of_users` (U,) and lowered by what their negatives have in `of_items` (I,); else these
    are empty."""

    loss: int  # one of LOSSES
    l2: float32
    learn_beta: bool
    of_users: Floats
    of_items: Floats


class Pulls(NamedTuple):
    """What lies between the parts of a step. For the positives of a batch: beta * p_u in `users` (B, width), the margins r_uj
    - r_ui, then the derivatives by them, in `slopes` (B, K), and `pulled` (B, width), the sum of slope * (q_j - q_i). For each
    share of a batch the gradient `to_beta` (S, width), if beta is learnt, and the loss in `lost` (S,). And `betas` (2, width),
    which steps take in turn, since a member may still read one as the next is made."""

    users: Floats
    slopes: Floats
    pulled: Floats
    to_beta: Floats
    lost: Doubles
    betas: Floats


class Shards(NamedTuple):
    """What each of T members needs for its rows: how many distinct ones the batch has, `filled` (T,); these `rows` (T, R) in
    order of first occurrence; how often each occurs in `times` (T, R), a negative counting 1 / K; their `gradients` (T, R,
    width), zero between two steps; the `places` (T, rows of the table) where each row stood in that list last; and `slots` and
    `weights` (T, K) of the negatives of one positive."""

    filled: Counts
    rows: Counts
    times: Floats
    gradients: Floats
    places: Counts
    slots: Counts
    weights: Floats


def make_pulls(batch_size: int, negatives: int, dim: int) -> Pulls:
    width, shares = padded(dim), -(-batch_size // SHARE)
    return Pulls(
        users=aligned_zeros(batch_size, width),
        slopes=aligned_zeros(batch_size, negatives),
        pulled=aligned_zeros(batch_size, width),
        to_beta=aligned_zeros(shares, width),
        lost=np.zeros(shares),
        betas=aligned_zeros(2, width),
    )


def make_shards(threads: int, batch_size: int, negatives: int, n_users: int, n_items: int, dim: int) -> Shards:
    room = min(batch_size, n_users) + min(batch_size * (1 + negatives), n_items) + 1  # `slot_of` looks one beyond the last
    return Shards(
        filled=np.zeros(threads, np.uint32),
        rows=np.zeros((threads, room), np.uint32),
        times=np.zeros((threads, room), np.float32),
        gradients=aligned_zeros(threads, room, padded(dim)),
        places=np.zeros((threads, n_users + n_items), np.uint32),
        slots=np.zeros((threads, negatives), np.uint32),
        weights=np.zeros((threads, negatives), np.float32),
    )


@compiled(inline=True)
def shares_of(size: int) -> int:
    """How many shares a batch of `size` positives has."""
    return (size + SHARE - 1) // SHARE


@compiled(entry=False)
def score(w: int, share: int, now: int, batches: Batches, n_users: int, current: Floats, table: Table, decay: Decay,
          pulls: Pulls) -> None:  # fmt: skip
    """beta * p_u and the margins of one share of batch w before step `now`; items are read as in `pull`."""
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    vectors, margins, betas = pulls.users, pulls.slopes, pulls.betas
    cells, last = table
    power_ratio, tail, packed = decay.power_ratio, decay.tail, current.shape[0] > 0
    n_negatives, width, before, beta, base = negatives.shape[1], vectors.shape[1], now - 1, now & 1, uint32(n_users)
    first, end = share * SHARE, min((share + 1) * SHARE, batches.size[w])
    for x in range(first, end):
        soon = min(x + AHEAD, end - 1)
        prefetch_part(cells, users[soon], 0, 2 * width)
        user = uint32(users[x])
        pull_u = spread(pull_of(last[user], before, power_ratio, tail))
        for f in range(0, width, LANES):
            store(vectors, x, f, load(betas, beta, f) * value_of(cells, user, f, width, pull_u))
        if packed:
            i = uint32(positives[x])
            for k in range(n_negatives):
                prefetch_part(current, negatives[soon, k], 0, width)
                j, margin = uint32(negatives[x, k]), spread(float32(0))
                for f in range(0, width, LANES):
                    margin = margin + load(vectors, x, f) * (load(current, j, f) - load(current, i, f))
                margins[x, k] = total(margin)
            continue
        prefetch_part(cells, base + uint32(positives[soon]), 0, 2 * width)
        i = uint32(base + uint32(positives[x]))
        pull_i = spread(pull_of(last[i], before, power_ratio, tail))
        for k in range(n_negatives):
            prefetch_part(cells, base + uint32(negatives[soon, k]), 0, 2 * width)
            j = uint32(base + uint32(negatives[x, k]))
            pull_j = spread(pull_of(last[j], before, power_ratio, tail))
            margin = spread(float32(0))
            for f in range(0, width, LANES):
                contrast = value_of(cells, j, f, width, pull_j) - value_of(cells, i, f, width, pull_i)
                margin = margin + load(vectors, x, f) * contrast
            margins[x, k] = total(margin)  # r_uj - r_ui = beta . (p_u * (q_j - q_i))


@compiled(entry=False)
def pull(w: int, share: int, now: int, batches: Batches, n_users: int, current: Floats, learning: Learning, table: Table,
         decay: Decay, pulls: Pulls) -> None:  # fmt: skip
    """From the margins of one share of batch w to its pulls before step `now`; items are read from `current` (I, width) where
    it is filled, else from the table."""
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    _, slopes, pulled, to_beta, lost, _ = pulls
    cells, last = table
    power_ratio, tail, learn_beta, packed = decay.power_ratio, decay.tail, learning.learn_beta, current.shape[0] > 0
    n_negatives, width, before, base = negatives.shape[1], pulled.shape[1], now - 1, uint32(n_users)
    first, end, flat, nothing = share * SHARE, min((share + 1) * SHARE, batches.size[w]), slopes.reshape(-1), spread(float32(0))
    chunk, loss = max(1, CHUNK // n_negatives), 0.0
    if learning.of_items.shape[0] > 0:
        for x in range(first, end):
            for k in range(n_negatives):
                slopes[x, k] += learning.of_users[users[x]] - learning.of_items[negatives[x, k]]
    for begin in range(first, end, chunk):
        if learning.loss == SOFTMAX:
            loss += softmax_slopes(slopes, begin, min(begin + chunk, end))
        else:
            loss += bpr_slopes(flat, begin, min(begin + chunk, end), n_negatives)
    lost[share] = loss
    for f in range(0, width, LANES):
        store(to_beta, share, f, nothing)
    for x in range(first, end):
        i = uint32(base + uint32(positives[x]))
        pull_i = nothing if packed else spread(pull_of(last[i], before, power_ratio, tail))
        for f in range(0, width, LANES):
            store(pulled, x, f, nothing)
        soon = min(x + 1, end - 1)
        for k in range(n_negatives):
            slope, j = spread(slopes[x, k]), uint32(base + uint32(negatives[x, k]))
            if packed:
                prefetch_part(current, negatives[soon, k], 0, width)
                for f in range(0, width, LANES):
                    contrast = load(current, uint32(j - base), f) - load(current, uint32(i - base), f)
                    store(pulled, x, f, load(pulled, x, f) + slope * contrast)
            else:
                pull_j = spread(pull_of(last[j], before, power_ratio, tail))
                for f in range(0, width, LANES):
                    contrast = value_of(cells, j, f, width, pull_j) - value_of(cells, i, f, width, pull_i)
                    store(pulled, x, f, load(pulled, x, f) + slope * contrast)
        if learn_beta:
            user = uint32(users[x])
            pull_u = spread(pull_of(last[user], before, power_ratio, tail))
            for f in range(0, width, LANES):
                value = value_of(cells, user, f, width, pull_u)
                store(to_beta, share, f, load(to_beta, share, f) + load(pulled, x, f) * value)


@compiled(inline=True)
def owner(row: uint32, crew: int) -> int:
    """The member who settles a row; neighbours and frequent rows are spread over the crew."""
    return np.int64((np.uint64(uint32(row * GOLDEN)) * np.uint64(crew)) >> np.uint64(32))


@compiled(entry=False)
def refresh(task: int, crew: int, now: int, n_users: int, table: Table, decay: Decay, current: Floats) -> None:
    """Write this member's item rows as they are after step `now` to `current`, if that is used, but for those that `move` has
    just written; before the first step, all."""
    cells, last = table
    width = current.shape[1]
    for item in range(current.shape[0]):
        row = uint32(n_users + item)
        if owner(row, crew) == task and (now == 0 or last[row] != now):
            moved = spread(pull_of(last[row], now, decay.power_ratio, decay.tail))
            for f in range(0, width, LANES):
                store(current, item, f, value_of(cells, row, f, width, moved))


@compiled(inline=True)
def slot_of(row: uint32, share: float32, places: Counts, rows: Counts, times: Floats, end: uint32) -> tuple[uint32, uint32]:
    """The slot of `row` among those listed in `rows` up to `end`, after adding it if need be, and where the list now ends.

    `places` remembers where each row of the table stood last; it need not be cleared, for the list tells whether that holds.
    Nothing is guessed here: every second positive is new to its batch, and a branch on that took a fifth longer.
    """
    slot = places[row]
    known = (slot < end) & (rows[slot] == row)
    slot = slot if known else end
    places[row] = slot
    rows[slot] = row
    times[slot] = times[slot] + share if known else share
    return slot, uint32(end + uint32(not known))


@compiled(inline=True)
def add_to(gradients: Floats, slot: uint32, weight: float32, vectors: Floats, x: int) -> None:
    """gradients[slot] += weight * vectors[x]."""
    factor = spread(weight)
    for f in range(0, gradients.shape[1], LANES):
        store(gradients, slot, f, load(gradients, slot, f) + factor * load(vectors, x, f))


@compiled(entry=False)
def gather(task: int, crew: int, w: int, batches: Batches, n_users: int, pulls: Pulls, shards: Shards) -> None:
    """Add up what the positives of batch w pull at the rows that this member owns."""
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    vectors, slopes, pulled = pulls.users, pulls.slopes, pulls.pulled
    rows, times, gradients, places = shards.rows[task], shards.times[task], shards.gradients[task], shards.places[task]
    n_negatives, base, last = negatives.shape[1], uint32(n_users), uint32(0)
    share, width, slots, weights = ONE / float32(n_negatives), gradients.shape[1], shards.slots[task], shards.weights[task]
    for x in range(batches.size[w]):
        row = uint32(users[x])
        if owner(row, crew) == task:
            slot, last = slot_of(row, ONE, places, rows, times, last)
            add_to(gradients, slot, ONE, pulled, x)
        together, mine = float32(0), 0
        for k in range(n_negatives):
            row = uint32(base + uint32(negatives[x, k]))
            together += slopes[x, k]
            if owner(row, crew) == task:
                slot, last = slot_of(row, share, places, rows, times, last)
                prefetch_part(gradients, int(slot), 0, width)
                slots[mine], weights[mine] = slot, slopes[x, k]
                mine += 1
        for n in range(mine):
            add_to(gradients, slots[n], weights[n], vectors, x)
        row = uint32(base + uint32(positives[x]))
        if owner(row, crew) == task:
            slot, last = slot_of(row, ONE, places, rows, times, last)
            add_to(gradients, slot, -together, vectors, x)
    shards.filled[task] = last


@compiled(entry=False)
def move(task: int, w: int, now: int, batches: Batches, n_users: int, learning: Learning, beta_cells: Floats, table: Table,
         decay: Decay, pulls: Pulls, shards: Shards, current: Floats, lengths: Floats) -> float32:  # fmt: skip
    """Adam step `now` of this member's rows, after what they have missed; the first member moves beta too, if it is learnt.

    Where `current` (I, width) is used, writes the items moved here to it while they are at hand, and leaves the others to
    `refresh`. Notes how long the items moved here may get before their next step in `lengths` (I,), if that is not empty, and
    returns the largest.
    """
    cells, last = table
    power_1, power_2, power_ratio, tail, rates = decay
    rows, times, gradients, betas = shards.rows[task], shards.times[task], shards.gradients[task], pulls.betas
    width, rate, zero, one, beta = gradients.shape[1], spread(float32(rates[now])), spread(float32(0)), spread(ONE), now & 1
    l2, base, end, reach = learning.l2, uint32(n_users), shards.filled[task], float32(0)
    for slot in range(end):
        prefetch_part(cells, rows[min(slot + AHEAD, end - 1)], 0, 3 * width)
        row = rows[slot]
        since = last[row]
        missed = uint32(uint32(now) - since)
        pull, fade_1, fade_2 = (
            spread(pull_of(since, now - 1, power_ratio, tail)),
            spread(power_1[missed]),
            spread(power_2[missed]),
        )
        shrink = spread(l2 * times[slot])  # each occurrence is regularised
        is_user = row < base
        for f in range(0, width, LANES):
            value, gathered = value_of(cells, row, f, width, pull), load(gradients, slot, f)
            store(gradients, slot, f, zero)
            scale = load(betas, beta, f) if is_user else one
            adam(cells, row, f, width, value, scale * gathered + shrink * value, fade_1, fade_2, rate)
        last[row] = now
        if current.shape[0] > 0 and not is_user:
            for f in range(0, width, LANES):
                store(current, uint32(row - base), f, load(cells, row, f))
        if lengths.shape[0] > 0 and not is_user:
            length = reach_of(cells, row, width, tail[now])
            lengths[uint32(row - base)] = length
            reach = max(reach, length)
    if task == 0:
        for f in range(0, width, LANES):
            if learning.learn_beta:
                together = zero
                for share in range(shares_of(batches.size[w])):
                    together = together + load(pulls.to_beta, share, f)
                adam(beta_cells, uint32(0), f, width, load(beta_cells, 0, f), together, spread(B1), spread(B2), rate)
            store(betas, (now + 1) & 1, f, load(beta_cells, 0, f))
    return reach


@compiled(entry=False)
def finish(task: int, crew: int, gate: Gate, step: int, w: int, batches: Batches, n_users: int, known: Known,
           learning: Learning, beta: Floats, table: Table, decay: Decay, pulls: Pulls, shards: Shards, totals: Doubles,
           current: Floats, lengths: Floats) -> float32:  # fmt: skip
    """The second half of step `step` (counted from 0), after all have pulled: each member moves its own rows. Adds the loss and
    the label errors to totals[task], lays out the jobs of the next step and returns what `move` does."""
    size, now = batches.size[w], step + 1
    totals[task, 1] += label_errors(task, w, task * size // crew, (task + 1) * size // crew, known, batches)
    if task == 0:
        put(gate, JOBS + LINE * (now & 1), 0)
        for share in range(shares_of(size)):
            totals[0, 0] += pulls.lost[share]
    gather(task, crew, w, batches, n_users, pulls, shards)
    return move(task, w, now, batches, n_users, learning, beta, table, decay, pulls, shards, current, lengths)
