"""One epoch of GMF with negatives by popularity, by AOBPR or by a rule among uniform candidates, by a crew of threads: the twin
of `srns.samplers.popularity`, `.aobpr`, `.dns`, `.bns` and `.ahns`.

Each positive is served by one member from what the last step left behind, as in `srns.kernels.srns`, whose parts these are.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.kernels.batches import Batches, Ints, Known, take_positives
from srns.kernels.compiler import compiled
from srns.kernels.crew import JOBS, LINE, Gate, add_one, wait_for_all
from srns.kernels.elementary import ONE, WORD_SHIFT, gumbel_of_lanes, logistic, softplus_of_lanes
from srns.kernels.gmf import Counts, Decay, Doubles, Floats, Table, flush, pull_of, value_of
from srns.kernels.lanes import (
    LANES,
    aligned_zeros,
    count_from,
    larger,
    load,
    padded,
    spread,
    store,
    to_floats,
    where,
    whole_lines,
)
from srns.kernels.memory import LOWEST, NOT_ALLOWED, RANDOM_SHIFT, Items, find, score_of, scores_of, take_best
from srns.kernels.random import below, bits, draws, row_keys
from srns.kernels.step import SHARE, Learning, Pulls, Shards, finish, pull, refresh, score, shares_of
from srns.kernels.unseen import Pool, is_seen, maybe_seen, resolve
from srns.samplers.ahns import SMALLEST
from srns.samplers.aobpr import FACTOR_BITS, TRIES
from srns.samplers.observations import BINS

float32 = np.float32
int32 = np.int32
uint32 = np.uint32
Longs = NDArray[np.int64]
KINDS = {"popularity": 0, "aobpr": 1, "dns": 2, "dns_mn": 3, "softmax": 4, "bns": 5, "ahns": 6}
POPULARITY, AOBPR, DNS, DNS_MN, SOFTMAX, BNS, AHNS = KINDS.values()
FACTOR_SHIFT, FACTOR_UNIT = uint32(32 - FACTOR_BITS), 2.0**-FACTOR_BITS
LEAST, TWO, N_BINS = float32(SMALLEST), float32(2), float32(BINS)


class Rules(NamedTuple):
    """What the sampler does in this epoch."""

    kind: int  # one of KINDS
    candidates: int  # N
    drawn: int  # P, the candidates and those that are drawn to compare them with
    top: int  # M of dns_mn
    factor: float32  # 1 / temperature of softmax, 1 + lambda of bns, beta of ahns
    offset: float32  # alpha of ahns, 2 rho of softmax
    power: int  # -p - 2 of ahns: how often to multiply
    interval: int  # steps from one sort of aobpr to the next
    key: Counts  # (2,)


class Lookups(NamedTuple):
    """What some kinds look things up in, else empty: `srns.samplers.popularity.Lengths`; the thresholds of ranks of AOBPR
    (I - 1,), its orders (F, I) and spreads (F,) of factors; the prior of BNS (I,)."""

    ends: Longs
    before: Longs
    taken: Longs
    unseen: Longs
    thresholds: Longs
    orders: Ints
    spreads: Doubles
    prior: Floats


class Desk(NamedTuple):
    """What T threads work with, each row from a cache line on: P candidates' `ids`, `scores` and `worth`, filled up to lanes,
    and the numbers 0, 1, ... as `listed`; the places chosen `first` of two times, and `last`; beta * p_u in the first row of
    `vector` (T, 2, width); what factors weigh together in `weights` (T, F); and a histogram of P_pos in `counters` (T, BINS or
    more)."""

    ids: Ints
    scores: Floats
    worth: Floats
    listed: Ints
    first: Ints
    last: Ints
    vector: Floats
    weights: Doubles
    counters: Longs


def make_desk(threads: int, drawn: int, negatives: int, top: int, dim: int) -> Desk:
    width = whole_lines(padded(drawn) + LANES)
    ids, listed = (aligned_zeros(threads, width).view(np.int32) for _ in range(2))
    ids[:] = -1
    listed[:] = np.arange(width)
    scores, worth = (aligned_zeros(threads, width) for _ in range(2))
    first, last = (aligned_zeros(threads, whole_lines(n)).view(np.int32) for n in (max(top, negatives), negatives))
    weights = aligned_zeros(threads, whole_lines(2 * dim)).view(np.float64)
    counters = aligned_zeros(threads, whole_lines(2 * BINS)).view(np.int64)
    return Desk(ids, scores, worth, listed, first, last, aligned_zeros(threads, 2, padded(dim)), weights, counters)


@compiled(inline=True)
def at_most(values: Any, begin: int, end: int, wanted: Any) -> int:
    """How many of the ascending values[begin:end] are at most `wanted`."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if values[middle] <= wanted:
            low = middle + 1
        else:
            high = middle
    return low - begin


@compiled(inline=True)
def popular(user: int, word: uint32, pool: Pool, lookups: Lookups) -> int:
    """`srns.samplers.popularity.PopularItems`."""
    begin, end = pool.indptr[user], pool.indptr[user + 1]
    t = below(word, lookups.unseen[user])
    behind = at_most(lookups.before, begin, end, t)
    t += lookups.taken[begin + behind] - lookups.taken[begin]
    return at_most(lookups.ends, 0, lookups.ends.shape[0], t) - 1


@compiled(inline=True)
def weigh_factors(dim: int, vector: Floats, spreads: Doubles, weights: Doubles) -> None:
    """What the factors up to each weigh for the user at hand."""
    together = 0.0
    for f in range(dim):
        together += abs(np.float64(vector[0, f])) * spreads[f]
        weights[f] = together


@compiled(inline=True)
def oversampled(user: int, k: int, first: uint32, second: uint32, pool: Pool, lookups: Lookups, vector: Floats,
                weights: Doubles) -> int:  # fmt: skip
    """`srns.samplers.aobpr.AOBPRState`: the k-th negative of a row."""
    n_items, dim, start = lookups.orders.shape[1], lookups.orders.shape[0], k * (2 * TRIES + 1)
    begin, end, at, mask = pool.indptr[user], pool.indptr[user + 1], pool.starts[user], pool.masks[user]
    for t in range(TRIES):
        rank = at_most(lookups.thresholds, 0, n_items - 1, np.int64(bits(first, second, start + t)))
        share = np.float64(bits(first, second, start + TRIES + t) >> FACTOR_SHIFT) * FACTOR_UNIT
        f = at_most(weights, 0, dim - 1, share * weights[dim - 1])
        item = lookups.orders[f, n_items - 1 - rank if vector[0, f] > float32(0) else rank]
        if not is_seen(uint32(item), begin, end, pool.seen, pool.maps, at, mask):
            return np.int64(item)
    number = uint32(below(bits(first, second, start + 2 * TRIES), pool.counts[user]))
    if maybe_seen(number, pool.maps, at, mask):
        return resolve(number, begin, end, pool.seen, pool.maps, at, mask)
    return np.int64(number)


@compiled(entry=False, allocates=True)
def sort_factors(task: int, crew: int, current: Floats, orders: Ints, spreads: Doubles) -> None:
    """Sort the items by this member's share of the factors."""
    n_items = current.shape[0]
    for f in range(task, orders.shape[0], crew):
        column = current[:, f].copy()
        order = np.argsort(column, kind="mergesort")
        mean, square = 0.0, 0.0
        for item in range(n_items):
            orders[f, item] = order[item]
            mean += np.float64(column[item])
        mean /= n_items
        for item in range(n_items):
            square += (np.float64(column[item]) - mean) ** 2
        spreads[f] = np.sqrt(square / n_items)


@compiled(inline=True)
def risk_of(c: int, to_this: float32, there: int, drawn: int, factor: float32, ids: Ints, scores: Floats,
            prior: Floats) -> float32:  # fmt: skip
    """What candidate c risks by `srns.samplers.bns`, `there` of those drawn being items."""
    mine, count = scores[c], 0
    for other in range(drawn):
        count += ids[other] >= 0 and scores[other] <= mine
    share = float32(count) / float32(there + 1)
    known = prior[max(ids[c], int32(0))]
    unbias = (ONE - share) * (ONE - known) / (ONE - share - known + TWO * share * known)
    return float32(logistic(mine - to_this) * (ONE - factor * unbias))


@compiled(inline=True)
def distance_of(mine: float32, to_this: float32, rules: Rules) -> float32:
    """How far a score is from the one that suits the positive's, by `srns.samplers.ahns`."""
    base = to_this + rules.offset
    base = base if base > LEAST else LEAST
    power = base
    for _ in range(rules.power):
        power = power * base
    return abs(mine - rules.factor / power)


@compiled(inline=True)
def standardise(n: int, to_this: float32, double_hardness: float32, ids: Ints, scores: Floats, worth: Floats) -> None:
    """`srns.samplers.dns.SoftmaxState._standard_losses` of n candidates, into `worth`."""
    for c in range(0, n, LANES):
        store(worth, 0, c, softplus_of_lanes(load(scores, 0, c) - spread(to_this)))
    mean, there, square = 0.0, 0, 0.0
    for c in range(n):
        if ids[c] >= 0:
            mean += np.float64(worth[c])
            there += 1
    mean /= there
    for c in range(n):
        if ids[c] >= 0:
            square += (np.float64(worth[c]) - mean) ** 2
    variance, inverse = square / max(there - 1, 1), 0.0
    if variance > 0:
        inverse = math.sqrt(np.float64(double_hardness) / variance)
    for c in range(0, n, LANES):
        store(worth, 0, c, (load(worth, 0, c) - spread(float32(mean))) * spread(float32(inverse)))


@compiled(inline=True)
def pick_candidates(task: int, user: int, positive: int, first: uint32, second: uint32, rules: Rules, pool: Pool, prior: Floats,
                    items: Items, desk: Desk, n_negatives: int) -> float32:  # fmt: skip
    """Draw and score candidates and write the places of negatives to `last`; returns the score of the positive."""
    ids, scores, worth, vector = desk.ids[task], desk.scores[task], desk.worth[task], desk.vector[task]
    chosen, best, kind, n, drawn = desk.last[task], desk.first[task], rules.kind, rules.candidates, rules.drawn
    nobody, lowest, none, factor = spread(int32(-1)), spread(LOWEST), spread(NOT_ALLOWED), spread(rules.factor)
    find(user, drawn, 0, drawn, first, second, pool, desk.listed[task], ids)
    to_this, filled, there = score_of(positive, vector, items), 0, 0
    for c in range(0, drawn, LANES):
        store(scores, 0, c, scores_of(load(ids, 0, c), vector, items))
    for c in range(drawn):
        there += ids[c] >= 0
        filled += c < n and ids[c] >= 0
    if kind == SOFTMAX and rules.offset > 0:
        standardise(n, to_this, rules.offset, ids, scores, worth)
    else:
        for c in range(0, n, LANES):
            value = load(scores, 0, c)
            if kind == SOFTMAX:
                value = value * factor
            store(worth, 0, c, value)
    if kind == SOFTMAX:
        for c in range(0, n, LANES):
            noise = gumbel_of_lanes(draws(first, second, count_from(c + drawn + 1)) >> spread(WORD_SHIFT))
            store(worth, 0, c, load(worth, 0, c) + noise)
    if kind == BNS:
        for c in range(n):
            worth[c] = -risk_of(c, to_this, there, drawn, rules.factor, ids, scores, prior)
    elif kind == AHNS:
        for c in range(n):
            worth[c] = -distance_of(scores[c], to_this, rules)
    for c in range(0, n, LANES):
        present = (load(ids, 0, c) > nobody) & (spread(int32(n)) > count_from(c))
        store(worth, 0, c, where(present, larger(load(worth, 0, c), lowest), none))
    if kind != DNS_MN:
        take_best(n, min(n_negatives, filled), worth, chosen)
    else:
        top = min(rules.top, filled)
        take_best(n, top, worth, best)
        for m in range(0, rules.top, LANES):
            chance = to_floats(draws(first, second, count_from(m + drawn + 1)) >> spread(RANDOM_SHIFT))
            store(worth, 0, m, where(spread(int32(top)) > count_from(m), chance, none))
        take_best(rules.top, min(n_negatives, filled), worth, chosen)
        for k in range(min(n_negatives, filled)):
            chosen[k] = best[chosen[k]]
    for k in range(filled, n_negatives):
        chosen[k] = chosen[k - filled]
    return to_this


@compiled(entry=False)
def serve(task: int, w: int, share: int, step: int, batches: Batches, rules: Rules, pool: Pool, lookups: Lookups,
          current: Floats, table: Table, decay: Decay, pulls: Pulls, desk: Desk) -> None:  # fmt: skip
    """Negatives for one share of batch w, the positives of step `step` (counted from 0)."""
    users, positives, negatives = batches.users[w], batches.positives[w], batches.negatives[w]
    items, vector, weights, counters = (
        Items(current, table, decay, pool.counts.shape[0], step),
        desk.vector[task],
        desk.weights[task],
        desk.counters[task],
    )
    ids, scores, chosen, width, beta = desk.ids[task], desk.scores[task], desk.last[task], desk.vector.shape[2], (step + 1) & 1
    for x in range(share * SHARE, min((share + 1) * SHARE, batches.size[w])):
        user, positive = np.int64(users[x]), np.int64(positives[x])
        first, second = row_keys(rules.key[0], rules.key[1], user, positive)
        if rules.kind == POPULARITY:
            for k in range(negatives.shape[1]):
                negatives[x, k] = popular(user, bits(first, second, k), pool, lookups)
            continue
        moved = spread(pull_of(table.last[uint32(user)], step, decay.power_ratio, decay.tail))
        for f in range(0, width, LANES):
            store(vector, 0, f, load(pulls.betas, beta, f) * value_of(table.cells, uint32(user), f, width, moved))
        if rules.kind == AOBPR:
            weigh_factors(lookups.orders.shape[0], vector, lookups.spreads, weights)
            for k in range(negatives.shape[1]):
                negatives[x, k] = oversampled(user, k, first, second, pool, lookups, vector, weights)
            continue
        to_this = pick_candidates(
            task, user, positive, first, second, rules, pool, lookups.prior, items, desk, negatives.shape[1]
        )
        for k in range(negatives.shape[1]):
            negatives[x, k] = ids[chosen[k]]
            counters[min(np.int64(logistic(scores[chosen[k]] - to_this) * N_BINS), BINS - 1)] += 1


@compiled()
def candidates_epoch(task: int, crew: int, gate: Gate, users: Ints, items: Ints, shuffle: Any, pool: Pool, known: Known,
                     batches: Batches, learning: Learning, beta: Floats, table: Table, decay: Decay, pulls: Pulls,
                     shards: Shards, totals: Doubles, rules: Rules, lookups: Lookups, current: Floats, nothing: Floats,
                     desk: Desk) -> None:  # fmt: skip
    """What one member does in an epoch; adds the summed loss and the number of label errors to totals[task].

    In the first half of a step the crew takes jobs in turn: one makes the next batch, the others draw and pull for a share of
    the positives each. In the second half each member moves its own rows and brings `current` up to date with them, where
    items are scored from it; AOBPR sorts from it, and needs it no more often than that.
    """
    window, batch_size, n_users = batches.users.shape[0], batches.users.shape[1], pool.counts.shape[0]
    steps = (users.shape[0] + batch_size - 1) // batch_size
    sorting = rules.kind == AOBPR
    learnt = nothing if sorting else current
    if task == 0:
        take_positives(0, 0, users, items, shuffle, batches)
    refresh(task, crew, 0, n_users, table, decay, current)
    wait_for_all(crew, gate)
    for step in range(steps):
        w, now, jobs = step % window, step + 1, JOBS + LINE * (step & 1)
        shares = shares_of(batches.size[w])
        if sorting and step % rules.interval == 0:
            sort_factors(task, crew, current, lookups.orders, lookups.spreads)
            wait_for_all(crew, gate)
        job = add_one(gate, jobs)
        while job <= shares:
            if job > 0:
                serve(task, w, job - 1, step, batches, rules, pool, lookups, learnt, table, decay, pulls, desk)
                score(w, job - 1, now, batches, n_users, learnt, table, decay, pulls)
                pull(w, job - 1, now, batches, n_users, learnt, learning, table, decay, pulls)
            elif now < steps:
                take_positives(now % window, now * batch_size, users, items, shuffle, batches)
            job = add_one(gate, jobs)
        wait_for_all(crew, gate)
        finish(
            task, crew, gate, step, w, batches, n_users, known, learning, beta, table, decay, pulls, shards, totals,
            current, nothing.reshape(-1),
        )  # fmt: skip
        if not sorting or now % rules.interval == 0:
            refresh(task, crew, now, n_users, table, decay, current)
        wait_for_all(crew, gate)
    if task == 0:
        flush(steps, table, decay)
