"""One epoch of GMF with uniform negatives by a crew of threads, the twin of `srns.samplers.uniform`."""

from __future__ import annotations

from typing import Any

import numpy as np

from srns.kernels.batches import Batches, Ints, Known, take_positives
from srns.kernels.compiler import compiled
from srns.kernels.crew import JOBS, LINE, Gate, add_one, wait_for_all
from srns.kernels.gmf import Decay, Doubles, Floats, Table, flush
from srns.kernels.random import below, bits, row_keys
from srns.kernels.step import SHARE, Learning, Pulls, Shards, finish, pull, refresh, score, shares_of
from srns.kernels.unseen import Pool, maybe_seen, resolve

uint32 = np.uint32


@compiled(allocates=True)
def draw_uniform(w: int, share: int, key: Any, pool: Pool, out: Batches) -> None:
    """Uniform negatives for each positive of one share of batch w."""
    indptr, seen, counts, maps, starts, masks = pool
    users, positives, negatives = out.users[w], out.positives[w], out.negatives[w]
    begin, end, n_negatives = share * SHARE, min((share + 1) * SHARE, out.size[w]), negatives.shape[1]
    suspects = np.empty(SHARE * n_negatives + 1, np.int32)
    doubtful = 0
    for x in range(begin, end):
        user = users[x]
        first, second = row_keys(key[0], key[1], user, positives[x])
        for k in range(n_negatives):
            negatives[x, k] = below(bits(first, second, k), counts[user])
            suspects[doubtful] = x * n_negatives + k
            doubtful += maybe_seen(uint32(negatives[x, k]), maps, starts[user], masks[user])
    for d in range(doubtful):
        x, k = divmod(suspects[d], n_negatives)
        user = users[x]
        number = uint32(negatives[x, k])
        negatives[x, k] = resolve(number, indptr[user], indptr[user + 1], seen, maps, starts[user], masks[user])


@compiled()
def uniform_epoch(task: int, crew: int, gate: Gate, users: Ints, items: Ints, shuffle: Any, pool: Pool, known: Known,
                  batches: Batches, learning: Learning, beta: Floats, table: Table, decay: Decay, pulls: Pulls, shards: Shards,
                  totals: Doubles, key: Any, current: Floats, nothing: Floats) -> None:  # fmt: skip
    """What one member does in an epoch; adds the summed loss and the number of label errors to totals[task].

    In the first half of a step the crew takes jobs in turn: one makes the next batch, the others draw and pull for a share of
    the positives each. In the second half each member moves its own rows and brings `current` up to date with them, where
    items are read from it. `nothing` is an empty table, of lengths for `move`.
    """
    window, batch_size, n_users = batches.users.shape[0], batches.users.shape[1], pool.indptr.shape[0] - 1
    steps = (users.shape[0] + batch_size - 1) // batch_size
    if task == 0:
        take_positives(0, 0, users, items, shuffle, batches)
    refresh(task, crew, 0, n_users, table, decay, current)
    wait_for_all(crew, gate)
    for step in range(steps):
        w, now, jobs = step % window, step + 1, JOBS + LINE * (step & 1)
        size = batches.size[w]
        shares = shares_of(size)
        job = add_one(gate, jobs)
        while job <= shares:
            if job > 0:
                draw_uniform(w, job - 1, key, pool, batches)
                score(w, job - 1, now, batches, n_users, current, table, decay, pulls)
                pull(w, job - 1, now, batches, n_users, current, learning, table, decay, pulls)
            elif now < steps:
                take_positives(now % window, now * batch_size, users, items, shuffle, batches)
            job = add_one(gate, jobs)
        wait_for_all(crew, gate)
        finish(
            task, crew, gate, step, w, batches, n_users, known, learning, beta, table, decay, pulls, shards, totals,
            current, nothing.reshape(-1),
        )  # fmt: skip
        refresh(task, crew, now, n_users, table, decay, current)
        wait_for_all(crew, gate)
    if task == 0:
        flush(steps, table, decay)
