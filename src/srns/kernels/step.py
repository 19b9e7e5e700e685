"""One Adam step of GMF from a batch, the twin of `srns.engines.plain`, in parts that a crew can share.

`pull` scores positives and negatives and notes for each positive how it pulls at its rows: no two positives write to the same
place. `gather` adds up the pulls at rows, `move` moves them: each row belongs to one member, who goes through the batch in order.
So any number of threads gives the same bits. All of a crew must have pulled before the first gathers, and moved before the next
pulls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from srns.kernels.batches import Batches
from srns.kernels.compiler import compiled
from srns.kernels.elementary import ONE, bpr_slopes, softmax_slopes
from srns.kernels.gmf import B1, B2, Counts, Decay, Doubles, Floats, Table, adam, float32, pull_of, uint32, value_of
from srns.kernels.lanes import FLOATS_PER_LINE, LANES, aligned_zeros, load, padded, prefetch, spread, store, total
from srns.kernels.random import GOLDEN

LOSSES = {"bpr": 0, "softmax": 1}
SOFTMAX = LOSSES["softmax"]
SHARE = 64  # positives that one member pulls at a time; their loss is one number, so this is part of the result's last bit
CHUNK = 32  # negatives whose margins are taken together; their rows stay in the first-level cache until the gradients
AHEAD = 4  # rows between asking for one and stepping it: without asking, the Adam update takes a quarter longer


class Learning(NamedTuple):
    """What a step minimises, and whether it moves beta."""

    loss: int  # one of LOSSES
    l2: float32
    learn_beta: bool


class Pulls(NamedTuple):
    """What lies between the parts of a step. For the positives of a batch: beta * p_u in `users` (B, width), the derivatives by r_uj
    in `slopes` (B, K), and `pulled` (B, width), the sum of slope * (q_j - q_i). For each share of a batch the gradient `to_beta` (S, width), if beta is learnt, and the loss in `lost` (S,). Then `betas` (2, width),
    which steps take in turn, since a member may still read one as the next is made. And for a few positives at a time q_j - q_i and
    p_u in `rows` (T, about 2 * CHUNK, width)."""

    users: Floats
    slopes: Floats
    pulled: Floats
    to_beta: Floats
    lost: Doubles
    betas: Floats
    rows: Floats


class Shards(NamedTuple):
    """What each of T members needs for its rows: how many distinct ones the batch has, `filled` (T,); these `rows` (T, R) in order
    of first occurrence; how often each occurs in `times` (T, R), a negative counting 1 / K; their `gradients` (T, R, width), zero
    between two steps; and the `places` (T, rows of the table) where each row stood in that list last."""

    filled: Counts
    rows: Counts
    times: Floats
    gradients: Floats
    places: Counts


def make_pulls(threads: int, batch_size: int, negatives: int, dim: int) -> Pulls:
    width, shares = padded(dim), -(-batch_size // SHARE)
    return Pulls(
        users=aligned_zeros(batch_size, width),
        slopes=aligned_zeros(batch_size, negatives),
        pulled=aligned_zeros(batch_size, width),
        to_beta=aligned_zeros(shares, width),
        lost=np.zeros(shares),
        betas=aligned_zeros(2, width),
        rows=aligned_zeros(threads, max(CHUNK, negatives) + CHUNK, width),
    )


def make_shards(threads: int, batch_size: int, negatives: int, n_users: int, n_items: int, dim: int) -> Shards:
    room = min(batch_size, n_users) + min(batch_size * (1 + negatives), n_items) + 1  # `slot_of` looks one beyond the last
    return Shards(
        filled=np.zeros(threads, np.uint32),
        rows=np.zeros((threads, room), np.uint32),
        times=np.zeros((threads, room), np.float32),
        gradients=aligned_zeros(threads, room, padded(dim)),
        places=np.zeros((threads, n_users + n_items), np.uint32),
    )


@compiled(inline=True)
def prefetch_part(cells: Floats, row: int, length: int) -> None:
    """Ask for the first `length` numbers of a row."""
    for f in range(0, length, FLOATS_PER_LINE):
        prefetch(cells, row, f)


@compiled()
def pull(task: int, w: int, share: int, now: int, batches: Batches, n_users: int, current: Floats, learning: Learning,
         table: Table, decay: Decay, pulls: Pulls) -> None:  # fmt: skip
    """The pulls of one share of batch w before step `now`; items are read from `current` (I, width) where it is filled."""
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    vectors, slopes, pulled, to_beta, lost, betas, rows = pulls
    cells, last = table
    power_ratio, tail, learn_beta = decay.power_ratio, decay.tail, learning.learn_beta
    row, beta, packed = rows[task], now & 1, current.shape[0] > 0
    n_negatives, width, before = negatives.shape[1], vectors.shape[1], now - 1
    chunk, first, end = max(1, CHUNK // n_negatives), share * SHARE, min((share + 1) * SHARE, batches.size[w])
    loss, base, flat, values = 0.0, uint32(n_users), slopes.reshape(-1), row.shape[0] - CHUNK
    for f in range(0, width, LANES):
        store(to_beta, share, f, spread(float32(0)))
    for begin in range(first, end, chunk):
        stop = min(begin + chunk, end)
        for x in range(begin, stop):
            soon = min(x + AHEAD, end - 1)
            prefetch_part(cells, users[soon], 2 * width)
            user, positive = uint32(users[x]), uint32(positives[x])
            pull_u = spread(pull_of(last[user], before, power_ratio, tail))
            for f in range(0, width, LANES):
                value = value_of(cells, user, f, width, pull_u)
                store(vectors, x, f, load(betas, beta, f) * value)
                store(row, values + x - begin, f, value)
            if packed:
                for k in range(n_negatives):
                    negative, at = uint32(negatives[x, k]), (x - begin) * n_negatives + k
                    margin = spread(float32(0))
                    for f in range(0, width, LANES):
                        away = load(current, negative, f) - load(current, positive, f)
                        store(row, at, f, away)
                        margin = margin + load(vectors, x, f) * away
                    slopes[x, k] = total(margin)  # r_uj - r_ui = beta . (p_u * (q_j - q_i))
            else:
                prefetch_part(cells, base + uint32(positives[soon]), 2 * width)
                i = uint32(base + positive)
                pull_i = spread(pull_of(last[i], before, power_ratio, tail))
                for k in range(n_negatives):
                    prefetch_part(cells, base + uint32(negatives[soon, k]), 2 * width)
                    j, at = uint32(base + uint32(negatives[x, k])), (x - begin) * n_negatives + k
                    pull_j = spread(pull_of(last[j], before, power_ratio, tail))
                    margin = spread(float32(0))
                    for f in range(0, width, LANES):
                        away = value_of(cells, j, f, width, pull_j) - value_of(cells, i, f, width, pull_i)
                        store(row, at, f, away)
                        margin = margin + load(vectors, x, f) * away
                    slopes[x, k] = total(margin)
        if learning.loss == SOFTMAX:
            loss += softmax_slopes(slopes, begin, stop)
        else:
            loss += bpr_slopes(flat, begin, stop, n_negatives)
        for x in range(begin, stop):
            for f in range(0, width, LANES):
                together = spread(float32(0))
                for k in range(n_negatives):
                    together = together + spread(slopes[x, k]) * load(row, (x - begin) * n_negatives + k, f)
                store(pulled, x, f, together)
                if learn_beta:
                    store(to_beta, share, f, load(to_beta, share, f) + together * load(row, values + x - begin, f))
    lost[share] = loss


@compiled(inline=True)
def owner(row: uint32, crew: int) -> int:
    """The member who settles a row; neighbours and frequent rows are spread over the crew."""
    return np.int64((np.uint64(uint32(row * GOLDEN)) * np.uint64(crew)) >> np.uint64(32))


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


@compiled()
def gather(task: int, crew: int, w: int, batches: Batches, n_users: int, pulls: Pulls, shards: Shards) -> None:
    """Add up what the positives of batch w pull at the rows that this member owns."""
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    vectors, slopes, pulled = pulls.users, pulls.slopes, pulls.pulled
    rows, times, gradients, places = shards.rows[task], shards.times[task], shards.gradients[task], shards.places[task]
    n_negatives, base, last = negatives.shape[1], uint32(n_users), uint32(0)
    share = ONE / float32(n_negatives)
    for x in range(batches.size[w]):
        row = uint32(users[x])
        if owner(row, crew) == task:
            slot, last = slot_of(row, ONE, places, rows, times, last)
            add_to(gradients, slot, ONE, pulled, x)
        together = float32(0)
        for k in range(n_negatives):
            row = uint32(base + uint32(negatives[x, k]))
            together += slopes[x, k]
            if owner(row, crew) == task:
                slot, last = slot_of(row, share, places, rows, times, last)
                add_to(gradients, slot, slopes[x, k], vectors, x)
        row = uint32(base + uint32(positives[x]))
        if owner(row, crew) == task:
            slot, last = slot_of(row, ONE, places, rows, times, last)
            add_to(gradients, slot, -together, vectors, x)
    shards.filled[task] = last


@compiled()
def move(task: int, w: int, now: int, batches: Batches, n_users: int, learning: Learning, beta_cells: Floats, table: Table,
         decay: Decay, pulls: Pulls, shards: Shards) -> None:  # fmt: skip
    """Adam step `now` of this member's rows, after what they have missed; the first member moves beta too, if it is learnt."""
    cells, last = table
    power_1, power_2, power_ratio, tail, rates = decay
    rows, times, gradients, betas = shards.rows[task], shards.times[task], shards.gradients[task], pulls.betas
    width, rate, zero, one, beta = gradients.shape[1], spread(float32(rates[now])), spread(float32(0)), spread(ONE), now & 1
    l2, base, end = learning.l2, uint32(n_users), shards.filled[task]
    for slot in range(end):
        prefetch_part(cells, rows[min(slot + AHEAD, end - 1)], 3 * width)
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
    if task == 0:
        for f in range(0, width, LANES):
            if learning.learn_beta:
                together = zero
                for share in range((batches.size[w] + SHARE - 1) // SHARE):
                    together = together + load(pulls.to_beta, share, f)
                adam(beta_cells, uint32(0), f, width, load(beta_cells, 0, f), together, spread(B1), spread(B2), rate)
            store(betas, (now + 1) & 1, f, load(beta_cells, 0, f))
