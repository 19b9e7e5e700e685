"""One epoch of GMF with the BPR loss and Adam as a single compiled call; the twin of `srns.engines.plain`.

Parameters live in one table: row u is user u, row n_users + i is item i. While one thread takes the steps of a window of
batches, the others draw and sort the batches of the next window, so threads meet once per window and not three times per
batch (with a barrier in every batch, an epoch on a busy machine took ten times as long). Each piece of work is done by exactly
one thread in a fixed order: any number of threads gives the same bits.

Dense Adam moves every row in every step, by lr_t * m / sqrt(v) with decaying m and v even where the gradient is zero. For a
row last stepped at t0 the moves missed until t form a geometric series, as v is far above eps:

    sum_{s=t0+1..t} lr_s * m * b1^(s-t0) / sqrt(v * b2^(s-t0))  =  m / sqrt(v) * (tail[t0] - ratio^(t-t0) * tail[t])

with ratio = b1 / sqrt(b2), lr_s the bias-corrected learning rate and tail[t] = sum_{j>=1} ratio^j * lr_{t+j}. A row can thus
wait until it is next read, which is what makes an epoch cheap: on ml-1m a batch touches 2,270 of 9,561 rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from srns.kernels.compiler import compiled
from srns.kernels.elementary import ONE, exp_nonpositive
from srns.kernels.random import below, bits, mix, nth_unseen, permuted, row_keys

float32, uint32 = np.float32, np.uint32
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
B1, B2, EPS = float32(BETA_1), float32(BETA_2), float32(EPSILON)
WINDOW = 8  # batches between two meetings of the threads; larger windows push the parameters out of the cache


class Table(NamedTuple):
    """Parameters and Adam moments: (n_users + n_items, F) each; `last` (rows,) is the step of this epoch a row was last moved at."""

    values: Floats
    first: Floats
    second: Floats
    last: NDArray[np.int64]


class Decay(NamedTuple):
    """What catching up needs for one epoch of n steps: powers of b1, b2 and ratio (n + 1,), and tail and lr_t (n + 1,)."""

    power_1: Floats
    power_2: Floats
    power_ratio: NDArray[np.float64]
    tail: NDArray[np.float64]
    rate: NDArray[np.float64]


class Batches(NamedTuple):
    """A window of W batches of B triples: who, what, what instead; and which rows of the table they touch.

    `rows` (W, 3B) lists the distinct rows of a batch in order of first occurrence, `n_rows` (W,) how many there are, `times`
    (W, 3B) how often each occurs; `slots` (W, B, 3) say where user, positive and negative of a triple stand in that list.
    """

    users: Ints
    positives: Ints
    negatives: Ints
    size: NDArray[np.int64]
    rows: Ints
    n_rows: NDArray[np.int64]
    times: Ints
    slots: Ints


def make_decay(steps_done: int, steps: int, learning_rate: float) -> Decay:
    """The tables of an epoch of `steps` steps that starts after `steps_done`."""
    ratio = BETA_1 / math.sqrt(BETA_2)
    k = np.arange(steps + 1, dtype=np.float64)
    t = steps_done + k
    correction = np.sqrt(1 - BETA_2 ** np.maximum(t, 1)) / (1 - BETA_1 ** np.maximum(t, 1))
    ahead = steps_done + steps + np.arange(1, 501, dtype=np.float64)  # ratio^500 < 1e-22
    tail = np.empty(steps + 1)
    tail[-1] = np.sum(ratio ** np.arange(1, 501) * np.sqrt(1 - BETA_2**ahead) / (1 - BETA_1**ahead))
    for step in range(steps - 1, -1, -1):
        tail[step] = ratio * (correction[step + 1] + tail[step + 1])
    return Decay(
        (BETA_1**k).astype(float32), (BETA_2**k).astype(float32), ratio**k, learning_rate * tail, learning_rate * correction
    )


def make_batches(batch_size: int) -> Batches:
    def zeros(*shape: int) -> Ints:
        return np.zeros((WINDOW, *shape), np.int32)

    b = batch_size
    counts = (np.zeros(WINDOW, np.int64) for _ in range(2))
    return Batches(zeros(b), zeros(b), zeros(b), next(counts), zeros(3 * b), next(counts), zeros(3 * b), zeros(b, 3))


@compiled()
def fill_batch(
    w: int, start: int, users: Ints, items: Ints, indptr: Any, n_items: int, shuffle: Any, key: Any, out: Batches
) -> None:
    """Take the shuffled positives from position `start` and draw a uniform negative for each: twin of `Uniform`."""
    half, round_keys = shuffle
    n = users.shape[0]
    out.size[w] = min(out.users.shape[1], n - start)
    for x in range(out.size[w]):
        row = permuted(start + x, n, half, round_keys)
        user = users[row]
        first, second = row_keys(key[0], key[1], user, items[row])
        begin, end = indptr[user], indptr[user + 1]
        rank = below(bits(first, second, 0), n_items - (end - begin))
        out.users[w, x] = user
        out.positives[w, x] = items[row]
        out.negatives[w, x] = nth_unseen(items, begin, end, rank)


@compiled(inline=True)
def slot_of(row: int, buckets: Ints, rows: Ints, count: int) -> int:
    """Where `row` stands among the first `count` of `rows`, or `count` after putting it there; a small open hash table."""
    mask = buckets.shape[0] - 1
    bucket = np.int64(mix(uint32(row))) & mask
    while True:
        slot = buckets[bucket]
        if slot < 0:
            buckets[bucket] = count
            rows[count] = row
            return count
        if rows[slot] == row:
            return slot  # type: ignore[no-any-return]
        bucket = (bucket + 1) & mask


@compiled()
def group_batch(w: int, n_users: int, out: Batches) -> None:
    """List the distinct rows of batch w and where each triple finds its own among them."""
    size = out.size[w]
    capacity = 8
    while capacity < 6 * size:
        capacity *= 2
    buckets = np.full(capacity, -1, np.int32)
    rows, times = out.rows[w], out.times[w]
    n_rows = 0
    for x in range(size):
        for part in range(3):
            if part == 0:
                row = out.users[w, x]
            elif part == 1:
                row = n_users + out.positives[w, x]
            else:
                row = n_users + out.negatives[w, x]
            slot = slot_of(row, buckets, rows, n_rows)
            if slot == n_rows:
                n_rows += 1
                times[slot] = 0
            times[slot] += 1
            out.slots[w, x, part] = slot
    out.n_rows[w] = n_rows


# The loops below take whole tables as plain arguments and write one array each: a view of a row or an unpacked tuple costs a
# reference count per row, and past eight pairs of arrays that might overlap LLVM gives up on vectorising (measured on the
# gradients of a batch: 98 us against 29 us).


@compiled(inline=True)
def catch_up(row: int, now: int, values: Floats, first: Floats, second: Floats, last: NDArray[np.int64],
             power_ratio: NDArray[np.float64], tail: NDArray[np.float64]) -> None:  # fmt: skip
    """Move a row by the Adam steps it missed up to `now`; its moments follow when it is next stepped."""
    since = last[row]
    pull = float32(tail[since] - power_ratio[now - since] * tail[now])
    for f in range(values.shape[1]):
        values[row, f] -= pull * first[row, f] / (np.sqrt(second[row, f]) + EPS)


@compiled(inline=True)
def adam(values: Floats, first: Floats, second: Floats, row: int, gradients: Floats, slot: int, shrink: float32, fade_1: float32,
         fade_2: float32, rate: float32) -> None:  # fmt: skip
    """Adam step of one row by gradients[slot] + shrink * value; its moments first fade by the steps since its last."""
    for f in range(values.shape[1]):
        gradient = gradients[slot, f] + shrink * values[row, f]
        m = fade_1 * first[row, f] + (ONE - B1) * gradient
        v = fade_2 * second[row, f] + (ONE - B2) * gradient * gradient
        first[row, f] = m
        second[row, f] = v
        values[row, f] -= rate * m / (np.sqrt(v) + EPS)


@compiled(reorder_sums=True, inline=True)
def margin(values: Floats, u: int, i: int, j: int, beta: Floats) -> float32:
    """r_ui - r_uj = beta . (p_u * (q_i - q_j))."""
    s = float32(0)
    for f in range(values.shape[1]):
        s += values[u, f] * (values[i, f] - values[j, f]) * beta[0, f]
    return s


@compiled(inline=True)
def add_gradients(values: Floats, u: int, i: int, j: int, slope: float32, beta: Floats, gradients: Floats, at_u: int, at_i: int,
                  at_j: int) -> None:  # fmt: skip
    """Add what one triple pulls at its three rows."""
    for f in range(values.shape[1]):
        gradients[at_u, f] += slope * beta[0, f] * (values[i, f] - values[j, f])
    for f in range(values.shape[1]):
        pull = slope * beta[0, f] * values[u, f]
        gradients[at_i, f] += pull
        gradients[at_j, f] -= pull


@compiled()
def step_batch(w: int, now: int, batches: Batches, n_users: int, l2: float32, beta: Floats, table: Table, decay: Decay,
               gradients: Floats, margins: Floats) -> float:  # fmt: skip
    """Adam step `now` of this epoch, from batch w; returns its summed loss log(1 + exp(r_uj - r_ui)).

    `beta` is (3, F): value and moments; `gradients` (3B + 1, F), of which the last row is beta's, and `margins` (B,) are scratch.
    """
    users, positives, negatives, sizes, all_rows, n_rows, times, slots = batches
    values, first, second, last = table
    power_1, power_2, power_ratio, tail, rates = decay
    rate = float32(rates[now])
    for_beta = gradients.shape[0] - 1
    gradients[: n_rows[w]] = 0
    gradients[for_beta] = 0
    for slot in range(n_rows[w]):
        row = all_rows[w, slot]
        if last[row] < now - 1:
            catch_up(row, now - 1, values, first, second, last, power_ratio, tail)
    for x in range(sizes[w]):
        margins[x] = margin(values, users[w, x], n_users + positives[w, x], n_users + negatives[w, x], beta)
    loss = slopes_of(margins, sizes[w])
    for x in range(sizes[w]):
        u, i, j = users[w, x], n_users + positives[w, x], n_users + negatives[w, x]
        add_gradients(values, u, i, j, margins[x], beta, gradients, slots[w, x, 0], slots[w, x, 1], slots[w, x, 2])
    for slot in range(n_rows[w]):
        row = all_rows[w, slot]
        if row < n_users:  # dloss/dbeta = sum of slope * p_u * (q_i - q_j): what the user's row has gathered, times p_u / beta
            for f in range(values.shape[1]):
                gradients[for_beta, f] += gradients[slot, f] * values[row, f]
        shrink = l2 * float32(times[w, slot])  # each occurrence is regularised
        missed = now - last[row]
        adam(values, first, second, row, gradients, slot, shrink, power_1[missed], power_2[missed], rate)
        last[row] = now
    for f in range(values.shape[1]):
        gradients[for_beta, f] = gradients[for_beta, f] / beta[0, f] if beta[0, f] != 0 else float32(0)
    adam(beta[0:1], beta[1:2], beta[2:3], 0, gradients, for_beta, float32(0), B1, B2, rate)
    return loss


@compiled()
def slopes_of(margins: Floats, size: int) -> float:
    """Replace margins s by dloss/ds = -sigmoid(-s); returns the summed loss log(1 + exp(-s)).

    log(1 + exp(-s)) = max(-s, 0) + log(1 + exp(-|s|)), and the logs of 64 triples are one log of a product of factors in (1, 2].
    """
    loss = 0.0
    for begin in range(0, size, 64):
        end = min(size, begin + 64)
        product = 1.0
        for x in range(begin, end):
            s = margins[x]
            small = exp_nonpositive(-abs(s))
            inverse = ONE / (ONE + small)
            margins[x] = -small * inverse if s > 0 else -inverse
            product *= 1.0 + small
            loss += max(-s, float32(0))
        loss += math.log(product)
    return loss


@compiled()
def flush(now: int, table: Table, decay: Decay) -> None:
    """Bring every row and its moments to step `now`, so that an epoch ends where dense Adam would."""
    values, first, second, last = table
    power_1, power_2, power_ratio, tail, _ = decay
    for row in range(values.shape[0]):
        missed = now - last[row]
        if missed > 0:
            catch_up(row, now, values, first, second, last, power_ratio, tail)
            for f in range(values.shape[1]):
                first[row, f] *= power_1[missed]
            for f in range(values.shape[1]):
                second[row, f] *= power_2[missed]
        last[row] = 0


@compiled()
def fill_window(first: int, part: int, parts: int, users: Ints, items: Ints, indptr: Any, n_items: int, shuffle: Any, key: Any,
                out: Batches) -> None:  # fmt: skip
    """Draw and sort every `parts`-th batch of the window that starts at batch `first`."""
    batch_size = out.users.shape[1]
    steps = (users.shape[0] + batch_size - 1) // batch_size
    for w in range(part, min(WINDOW, steps - first), parts):
        fill_batch(w, (first + w) * batch_size, users, items, indptr, n_items, shuffle, key, out)
        group_batch(w, indptr.shape[0] - 1, out)


@compiled()
def step_window(first: int, steps: int, batches: Batches, n_users: int, l2: float32, beta: Floats, table: Table, decay: Decay,
                gradients: Floats, margins: Floats) -> float:  # fmt: skip
    """Take the steps of the window that starts at batch `first`."""
    loss = 0.0
    for w in range(min(WINDOW, steps - first)):
        loss += step_batch(w, first + w + 1, batches, n_users, l2, beta, table, decay, gradients, margins)
    return loss


@compiled(parallel=True)
def step_and_fill(first: int, steps: int, threads: int, users: Ints, items: Ints, indptr: Any, n_items: int, shuffle: Any, key: Any,
                  l2: float32, beta: Floats, table: Table, decay: Decay, now: Batches, ahead: Batches, gradients: Floats,
                  margins: Floats, losses: NDArray[np.float64]) -> None:  # fmt: skip
    """One task a thread: the first takes the steps of this window, the others draw the next."""
    for task in prange(threads):
        if task == 0 and first >= 0:
            losses[0] += step_window(first, steps, now, indptr.shape[0] - 1, l2, beta, table, decay, gradients, margins)
        if task > 0 or threads == 1:
            following = first + WINDOW if first >= 0 else 0
            fill_window(following, max(task - 1, 0), max(threads - 1, 1), users, items, indptr, n_items, shuffle, key, ahead)


@compiled()
def uniform_epoch(threads: int, users: Ints, items: Ints, indptr: Any, n_items: int, shuffle: Any, key: Any, l2: float32,
                  beta: Floats, table: Table, decay: Decay, one: Batches, other: Batches, gradients: Floats, margins: Floats) -> float:  # fmt: skip
    """A whole epoch with uniform negatives; returns the summed loss. `one` and `other` take turns as windows."""
    batch_size = one.users.shape[1]
    steps = (users.shape[0] + batch_size - 1) // batch_size
    losses = np.zeros(1)
    now, ahead = other, one
    for first in range(-WINDOW, steps, WINDOW):  # before the first window there is only one to draw
        step_and_fill(first, steps, threads, users, items, indptr, n_items, shuffle, key, l2, beta, table, decay, now, ahead,
                      gradients, margins, losses)  # fmt: skip
        now, ahead = ahead, now
    flush(steps, table, decay)
    return losses[0]  # type: ignore[no-any-return]
