"""One epoch of GMF with Adam as a single compiled call; the twin of `srns.engines.plain`.

Parameters live in one table: row u is user u, row n_users + i is item i. While one thread takes the steps of a window of
batches, the others draw and sort the batches of the next window, so threads meet once per window and not three times per
batch (with a barrier in every batch, an epoch on a busy machine took ten times as long). Each piece of work is done by exactly
one thread in a fixed order: any number of threads gives the same bits.

Dense Adam moves every row in every step, by lr_t * m / sqrt(v) with decaying m and v even where the gradient is zero. For a
row last stepped at t0 the moves missed until t form a geometric series, as v is far above eps:

    sum_{s=t0+1..t} lr_s * m * b1^(s-t0) / sqrt(v * b2^(s-t0))  =  m / sqrt(v) * (tail[t0] - ratio^(t-t0) * tail[t])

with ratio = b1 / sqrt(b2), lr_s the bias-corrected learning rate and tail[t] = sum_{j>=1} ratio^j * lr_{t+j}. A row can thus
wait until it is next stepped, which is what makes an epoch cheap: on ml-1m a batch touches 2,270 of 9,561 rows.

The table holds each row as it was after its last step, as value, direction m / (sqrt(v) + eps) and root sqrt(v), instead of m
and v: its value at any later step is then value - pull * direction with one factor `pull` for the row, so that reading a row
costs a multiplication and no root and division; these are left to the row's own steps. A batch of 1,024 on ml-1m with F = 32:
drawing 40 us and sorting 12 us on one thread; on the other noting what its rows missed 5 us, gradients 41 us, Adam 53 us.

Numba optimises all that a function calls anew at each level of calls, and thrice where threads start, so the epoch is one
function: with one for the window and one for its threads in between, all this took 19 s to compile instead of 13 s.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from srns.config import BETA_1, BETA_2, EPSILON
from srns.interactions import Interactions
from srns.kernels.compiler import compiled
from srns.kernels.elementary import ONE, bpr_slopes, softmax_slopes
from srns.kernels.lanes import FLOATS_PER_LINE, LANES, Lanes, aligned_zeros, load, padded, prefetch, spread, sqrt, store, total
from srns.kernels.random import below, bits, permuted, row_keys
from srns.kernels.unseen import Pool, maybe_seen, search

float32 = np.float32
uint32 = np.uint32
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Counts = NDArray[np.uint32]  # also row numbers: Numba spares unsigned indices the test for negative ones

B1, B2, EPS = float32(BETA_1), float32(BETA_2), float32(EPSILON)
NEGLIGIBLE = 1e-20  # directions and roots forget what is below about 1e-27 of it, long before it turns subnormal and slow
WINDOW = 32  # most batches between two meetings of the threads; 8 is 3% faster on idle cores, on busy ones nearly half as fast
LOSSES = {"bpr": 0, "softmax": 1}
SOFTMAX = LOSSES["softmax"]
CHUNK = 32  # negatives whose margins are taken together; their rows stay in the first-level cache until the gradients
AHEAD = 4  # rows between asking for one and stepping it: without asking, the Adam update takes a quarter longer


class Table(NamedTuple):
    """Rows of parameters with their Adam state as of step `last` (rows,) of this epoch.

    `cells` (rows, 3 * width) holds value, direction and root of a row, each F floats padded with zeros to `width`.
    """

    cells: Floats
    last: Counts


class Decay(NamedTuple):
    """What catching up needs for one epoch of n steps: powers of b1, b2 and ratio (n + 1,), and tail and lr_t (n + 1,)."""

    power_1: Floats
    power_2: Floats
    power_ratio: Doubles
    tail: Doubles
    rate: Doubles


class Batches(NamedTuple):
    """W batches of B positives with K negatives each: who, what, what instead; and which rows of the table they touch.

    `rows` (W, R) lists the distinct rows of a batch in order of first occurrence, its n_users users from 0 on and its n_items
    items from B on; `times` (W, R) says how often each occurs, a negative counting 1 / K; `slots` (W, B, 2 + K) where user,
    positive and negatives stand in that list.
    """

    users: Ints
    positives: Ints
    negatives: Ints
    size: NDArray[np.int64]
    rows: Counts
    n_users: NDArray[np.int64]
    n_items: NDArray[np.int64]
    times: Floats
    slots: Counts


class Learning(NamedTuple):
    """What a step minimises, and whether it moves beta."""

    loss: int  # one of LOSSES
    l2: float32
    learn_beta: bool


class Known(NamedTuple):
    """Positives that are not in train but known, by user: a negative among them is a label error."""

    indptr: NDArray[np.int64]
    items: Ints


class Scratch(NamedTuple):
    """What one step needs by the slots of its batch: gradients (R + 1, width), of which the last row is beta's, and factors
    (3, R), which are pull and fading of the moments; and for C positives at a time: beta * p_u in `users` (C, width), q_j - q_i
    in `contrasts` (C * K, width) and its product with the former in `margins` (C, K)."""

    gradients: Floats
    factors: Floats
    users: Floats
    contrasts: Floats
    margins: Floats


def make_cells(values: Floats) -> Floats:
    """The cells of a table whose rows start at `values` (rows, F) and have not been stepped."""
    cells = aligned_zeros(len(values), 3 * padded(values.shape[1]))
    cells[:, : values.shape[1]] = values
    return cells


def parts_of(cells: Floats, dim: int) -> tuple[Floats, Floats, Floats]:
    """Views of the values, directions and roots in a table of `dim` factors, (rows, dim) each."""
    width = cells.shape[1] // 3
    return cells[:, :dim], cells[:, width : width + dim], cells[:, 2 * width : 2 * width + dim]


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
    power_1, power_2 = (np.where(power < NEGLIGIBLE, 0, power).astype(float32) for power in (BETA_1**k, BETA_2**k))
    return Decay(power_1, power_2, ratio**k, learning_rate * tail, learning_rate * correction)


def make_batches(batch_size: int, negatives: int, n_items: int, window: int = 2 * WINDOW) -> Batches:
    def zeros(*shape: int, dtype: Any = np.uint32) -> Any:
        return np.zeros((window, *shape), dtype)

    b, k, rows = batch_size, negatives, rows_of(batch_size, negatives, n_items)
    users, positives, drawn = (zeros(*shape, dtype=np.int32) for shape in ((b,), (b,), (b, k)))
    size, n_users, n_distinct = (zeros(dtype=np.int64) for _ in range(3))
    times = zeros(rows, dtype=np.float32)
    return Batches(users, positives, drawn, size, zeros(rows), n_users, n_distinct, times, zeros(b, 2 + k))


def rows_of(batch_size: int, negatives: int, n_items: int) -> int:
    """Room for the distinct rows of a batch (R), and one slot more, which `slot_of` may look at."""
    return padded(batch_size + min(batch_size * (1 + negatives), n_items) + 1)


def make_known(positives: Interactions | None) -> Known:
    return (
        Known(np.zeros(1, np.int64), np.zeros(0, np.int32)) if positives is None else Known(positives.indptr, positives.items)
    )


def make_scratch(batch_size: int, negatives: int, n_items: int, dim: int) -> Scratch:
    width, rows, chunk = padded(dim), rows_of(batch_size, negatives, n_items), max(1, CHUNK // negatives)
    users, contrasts = aligned_zeros(chunk, width), aligned_zeros(chunk * negatives, width)
    return Scratch(aligned_zeros(rows + 1, width), aligned_zeros(3, rows), users, contrasts, aligned_zeros(chunk, negatives))


@compiled()
def take_positives(w: int, start: int, users: Ints, items: Ints, shuffle: Any, out: Batches) -> None:
    """Make batch w of the shuffled positives from position `start` on."""
    size = min(out.users.shape[1], users.shape[0] - start)
    order = np.empty(size, np.uint32)
    out.size[w] = size
    batch_users, positives = out.users[w], out.positives[w]
    permuted(start, users.shape[0], shuffle[0], shuffle[1], order)
    for x in range(size):
        batch_users[x] = users[order[x]]
        positives[x] = items[order[x]]


@compiled()
def draw_uniform(w: int, key: Any, pool: Pool, out: Batches) -> None:
    """A uniform negative for each positive of batch w: twin of `Uniform`."""
    indptr, items, stand_ins, counts, words, starts, masks = pool
    users, positives, negatives = out.users[w], out.positives[w], out.negatives[w]
    n_negatives = negatives.shape[1]
    suspects = np.empty(users.shape[0] * n_negatives, np.int32)
    doubtful = 0
    for x in range(out.size[w]):
        user = users[x]
        first, second = row_keys(key[0], key[1], user, positives[x])
        for k in range(n_negatives):
            negatives[x, k] = below(bits(first, second, k), counts[user])
            suspects[doubtful] = x * n_negatives + k
            doubtful += maybe_seen(uint32(negatives[x, k]), words, starts[user], masks[user])
    for d in range(doubtful):
        x, k = divmod(suspects[d], n_negatives)
        user = users[x]
        negatives[x, k] = search(negatives[x, k], indptr[user], indptr[user + 1], items, stand_ins)


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


@compiled()
def group_batch(w: int, n_users: int, places: Counts, out: Batches) -> None:
    """List the distinct rows of batch w and where each positive finds its own among them."""
    rows, times, slots = out.rows[w], out.times[w], out.slots[w]
    users, positives, negatives = out.users[w], out.positives[w], out.negatives[w]
    base, first_item, n_negatives = uint32(n_users), uint32(users.shape[0]), negatives.shape[1]
    end_of_users, end_of_items = uint32(0), first_item
    share = ONE / float32(n_negatives)
    for x in range(out.size[w]):
        slots[x, 0], end_of_users = slot_of(uint32(users[x]), ONE, places, rows, times, end_of_users)
        slots[x, 1], end_of_items = slot_of(uint32(base + uint32(positives[x])), ONE, places, rows, times, end_of_items)
        for k in range(n_negatives):
            row = uint32(base + uint32(negatives[x, k]))
            slots[x, 2 + k], end_of_items = slot_of(row, share, places, rows, times, end_of_items)
    out.n_users[w] = end_of_users
    out.n_items[w] = end_of_items - first_item


# What runs once per row takes whole arrays as plain arguments: a view of a row or an unpacked tuple costs a reference count.


@compiled(inline=True)
def pull_of(since: uint32, now: int, power_ratio: Doubles, tail: Doubles) -> float32:
    """How far a row last stepped at `since` has moved along its direction by the end of step `now`."""
    return float32(tail[since] - power_ratio[uint32(uint32(now) - since)] * tail[now])


@compiled(inline=True)
def value_of(cells: Floats, row: int, f: int, width: int, pull: Lanes) -> Lanes:
    """The current value of a row that has moved by `pull` since its last step."""
    return load(cells, row, f) - pull * load(cells, row, width + f)


@compiled(inline=True)
def adam(cells: Floats, row: int, f: int, width: int, value: Lanes, gradient: Lanes, fade_1: Lanes, fade_2: Lanes,
         rate: Lanes) -> None:  # fmt: skip
    """Adam step of a row that is now at `value`; its moments first fade by the steps since its last."""
    epsilon = spread(EPS)
    root = load(cells, row, 2 * width + f)
    m = fade_1 * (load(cells, row, width + f) * (root + epsilon)) + spread(ONE - B1) * gradient
    root = sqrt(fade_2 * (root * root) + spread(ONE - B2) * (gradient * gradient))
    direction = m / (root + epsilon)
    store(cells, row, f, value - rate * direction)
    store(cells, row, width + f, direction)
    store(cells, row, 2 * width + f, root)


@compiled(inline=True)
def prefetch_row(cells: Floats, row: int) -> None:
    for f in range(0, cells.shape[1], FLOATS_PER_LINE):
        prefetch(cells, row, f)


@compiled()
def catch_up(now: int, begin: int, end: int, rows: Counts, last: Counts, decay: Decay, factors: Floats) -> None:
    """Note how far the rows in slots begin..end have moved and how much their moments have faded before step `now`."""
    power_1, power_2, power_ratio, tail, _ = decay
    pulls, fades_1, fades_2 = factors[0], factors[1], factors[2]
    for slot in range(begin, end):
        row = rows[slot]
        since = last[row]
        missed = uint32(uint32(now) - since)
        pulls[slot] = pull_of(since, now - 1, power_ratio, tail)
        fades_1[slot] = power_1[missed]
        fades_2[slot] = power_2[missed]
        last[row] = now


@compiled()
def gather_gradients(w: int, batches: Batches, loss: int, beta: Floats, cells: Floats, scratch: Scratch) -> float:
    """Add up what the positives and negatives of batch w pull at their rows; returns their summed loss.

    For users this is the sum of slope * (q_j - q_i), which serves both p_u and beta; for items the gradient of q.
    """
    rows, slots, size = batches.rows[w], batches.slots[w], batches.size[w]
    gradients, factors, users, contrasts, margins = scratch
    pulls, width, chunk, n_negatives = factors[0], gradients.shape[1], margins.shape[0], margins.shape[1]
    lost = 0.0
    for begin in range(0, size, chunk):
        count = min(chunk, size - begin)
        for x in range(count):
            u, i = slots[begin + x, 0], slots[begin + x, 1]
            pull_u, pull_i = spread(pulls[u]), spread(pulls[i])
            u, i = rows[u], rows[i]
            for f in range(0, width, LANES):
                store(users, x, f, load(beta, 0, f) * value_of(cells, u, f, width, pull_u))
            for k in range(n_negatives):
                j = slots[begin + x, 2 + k]
                pull_j = spread(pulls[j])
                j, at = rows[j], x * n_negatives + k
                margin = spread(float32(0))
                for f in range(0, width, LANES):
                    contrast = value_of(cells, j, f, width, pull_j) - value_of(cells, i, f, width, pull_i)
                    store(contrasts, at, f, contrast)
                    margin = margin + load(users, x, f) * contrast
                margins[x, k] = total(margin)  # r_uj - r_ui = beta . (p_u * (q_j - q_i))
        lost += softmax_slopes(margins, count) if loss == SOFTMAX else bpr_slopes(margins, count)
        for x in range(count):
            u, i = slots[begin + x, 0], slots[begin + x, 1]
            for k in range(n_negatives):
                j, at = slots[begin + x, 2 + k], x * n_negatives + k
                slope = spread(margins[x, k])
                for f in range(0, width, LANES):
                    store(gradients, u, f, load(gradients, u, f) + slope * load(contrasts, at, f))
                    to_item = slope * load(users, x, f)
                    store(gradients, i, f, load(gradients, i, f) - to_item)
                    store(gradients, j, f, load(gradients, j, f) + to_item)
    return lost


@compiled()
def step_batch(w: int, now: int, batches: Batches, learning: Learning, beta: Floats, table: Table, decay: Decay,
               scratch: Scratch) -> float:  # fmt: skip
    """Adam step `now` of this epoch, from batch w; returns its summed loss.

    `beta` is a table of one row. Gradients in `scratch` are zero between two steps.
    """
    cells, last = table
    l2 = learning.l2
    rows, times = batches.rows[w], batches.times[w]
    gradients, factors = scratch.gradients, scratch.factors
    pulls, fades_1, fades_2 = factors[0], factors[1], factors[2]
    width, for_beta, first_item = gradients.shape[1], gradients.shape[0] - 1, batches.users.shape[1]
    end_of_users, end_of_items = batches.n_users[w], first_item + batches.n_items[w]
    rate, zero = spread(float32(decay.rate[now])), spread(float32(0))

    catch_up(now, np.int64(0), end_of_users, rows, last, decay, factors)
    catch_up(now, first_item, end_of_items, rows, last, decay, factors)
    lost = gather_gradients(w, batches, learning.loss, beta, cells, scratch)
    for slot in range(end_of_users):
        prefetch_row(cells, rows[min(slot + AHEAD, end_of_users - 1)])
        row = rows[slot]
        pull, fade_1, fade_2 = spread(pulls[slot]), spread(fades_1[slot]), spread(fades_2[slot])
        shrink = spread(l2 * times[slot])  # each occurrence is regularised
        for f in range(0, width, LANES):
            value, gathered = value_of(cells, row, f, width, pull), load(gradients, slot, f)
            store(gradients, slot, f, zero)
            store(gradients, for_beta, f, load(gradients, for_beta, f) + gathered * value)
            adam(cells, row, f, width, value, load(beta, 0, f) * gathered + shrink * value, fade_1, fade_2, rate)
    for slot in range(first_item, end_of_items):
        prefetch_row(cells, rows[min(slot + AHEAD, end_of_items - 1)])
        row = rows[slot]
        pull, fade_1, fade_2 = spread(pulls[slot]), spread(fades_1[slot]), spread(fades_2[slot])
        shrink = spread(l2 * times[slot])
        for f in range(0, width, LANES):
            value, gathered = value_of(cells, row, f, width, pull), load(gradients, slot, f)
            store(gradients, slot, f, zero)
            adam(cells, row, f, width, value, gathered + shrink * value, fade_1, fade_2, rate)
    for f in range(0, width, LANES):
        if learning.learn_beta:
            adam(beta, uint32(0), f, width, load(beta, 0, f), load(gradients, for_beta, f), spread(B1), spread(B2), rate)
        store(gradients, for_beta, f, zero)
    return lost


@compiled()
def flush(now: int, table: Table, decay: Decay) -> None:
    """Bring every row and its moments to step `now`, so that an epoch ends where dense Adam would."""
    cells, last = table
    power_1, power_2, power_ratio, tail, _ = decay
    width = cells.shape[1] // 3
    epsilon, negligible = spread(EPS), spread(float32(NEGLIGIBLE))
    for row in range(cells.shape[0]):
        missed = uint32(uint32(now) - last[row])
        pull = spread(pull_of(last[row], now, power_ratio, tail))
        fade_1, fade_root = spread(power_1[missed]), spread(np.sqrt(power_2[missed]))
        last[row] = 0
        if missed > 0:
            for f in range(0, width, LANES):
                value = value_of(cells, uint32(row), f, width, pull)
                root = load(cells, row, 2 * width + f)
                m = fade_1 * (load(cells, row, width + f) * (root + epsilon))
                root = fade_root * root
                store(cells, row, f, value)
                store(cells, row, width + f, (m / (root + epsilon) + negligible) - negligible)
                store(cells, row, 2 * width + f, (root + negligible) - negligible)


@compiled()
def label_errors(w: int, known: Known, batches: Batches) -> int:
    """How many negatives of batch w are known positives of their users."""
    indptr, items = known
    found = 0
    if items.shape[0] > 0:
        for x in range(batches.size[w]):
            user = batches.users[w, x]
            for k in range(batches.negatives.shape[2]):
                begin, end = indptr[user], indptr[user + 1]
                while begin < end:
                    middle = (begin + end) >> 1
                    if items[middle] < batches.negatives[w, x, k]:
                        begin = middle + 1
                    else:
                        end = middle
                found += begin < indptr[user + 1] and items[begin] == batches.negatives[w, x, k]
    return found


@compiled(parallel=True)
def uniform_epoch(threads: int, users: Ints, items: Ints, shuffle: Any, pool: Pool, known: Known, key: Any,
                  learning: Learning, beta: Floats, table: Table, decay: Decay, batches: Batches, scratch: Scratch, places: Counts,
                  totals: Doubles) -> None:  # fmt: skip
    """A whole epoch with uniform negatives; adds its summed loss and the number of label errors to `totals`.

    The halves of `batches` take turns as windows: one task steps through one half, the others draw the other. Windows start
    small, as nobody can step while the first is drawn, and double, as drawing takes half as long as stepping.
    `places` (threads, rows of the table) is what each thread that draws needs to sort its batches, see `slot_of`.
    """
    batch_size, n_users = batches.users.shape[1], pool.indptr.shape[0] - 1
    steps = (users.shape[0] + batch_size - 1) // batch_size
    first, count, now, ahead = 0, 0, WINDOW, 0
    while first < steps:
        following = min(max(1, 2 * count), WINDOW, steps - first - count)
        for task in prange(threads):
            if task == 0:
                for k in range(count):
                    totals[0] += step_batch(now + k, first + k + 1, batches, learning, beta, table, decay, scratch)
                    totals[1] += label_errors(now + k, known, batches)
            if task > 0 or threads == 1:
                part, parts = max(task - 1, 0), max(threads - 1, 1)
                for k in range(part, following, parts):
                    start = (first + count + k) * batch_size
                    take_positives(ahead + k, start, users, items, shuffle, batches)
                    draw_uniform(ahead + k, key, pool, batches)
                    group_batch(ahead + k, n_users, places[part], batches)
        first, count, now, ahead = first + count, following, ahead, now
    flush(steps, table, decay)
