"""Time of a step of the adversarial samplers against that of their bare arithmetic, in one run.

    SRNS_DATA=../shared/data python benchmarks/adversarial.py [--dataset ml-1m-paper] [--steps 30]

The arithmetic of IRGAN is three products of (B, F), (F, |I|) and the exponentials of (B, |I|); that of samplers with candidates
the gathering of (B, N, F), three products with it, and the sum of its rows by item; and for all of them dense Adam over the
generator's factors. Prints processor time per step of `sample` and `feedback`, of the arithmetic, and their ratio (limit: 3).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from train_data import train_part

from srns.adam import descend, sum_rows
from srns.interactions import Interactions
from srns.presets import make_config
from srns.samplers import SAMPLERS
from srns.scorers import GMF

BATCH, LIMIT = 1024, 3
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def sampler_step(name: str, train: Interactions, model: GMF) -> Callable[[Batch], None]:
    sampler = make_config({"sampler": name}, preset="paper-ml-1m").make_sampler()
    state = sampler.start(train, seed=0)
    state.begin_epoch(0, model)

    def step(batch: Batch) -> None:
        ids = state.sample(*batch, model, 0).ids
        state.feedback(batch[0], ids, np.linspace(0, 1, len(ids), dtype=np.float32)[:, None])

    return step


def arithmetic(name: str, train: Interactions, model: GMF) -> Callable[[Batch], None]:
    tables = [np.array(model.users), np.array(model.items)]
    moments = [[np.ones_like(table) for table in tables] for _ in range(2)]
    size = getattr(SAMPLERS[name](), "candidates", 0)  # type: ignore[call-arg]
    candidates = np.random.default_rng(0).integers(0, train.n_items, (BATCH, size))

    def step(batch: Batch) -> None:
        vectors, items = tables[0][batch[0]], tables[1]
        slopes: list[Any]
        if size:
            factors = items[candidates[: len(vectors)]]
            weights = np.exp(np.einsum("bf,bnf->bn", vectors, factors))
            to_items = (weights[:, :, None] * vectors[:, None]).reshape(-1, vectors.shape[1])
            slopes = [
                sum_rows(np.einsum("bn,bnf->bf", weights, factors), batch[0], len(tables[0])),
                sum_rows(to_items, candidates[: len(vectors)].ravel(), len(items)),
            ]
        else:
            weights = np.exp(vectors @ items.T)
            slopes = [sum_rows(weights @ items, batch[0], len(tables[0])), weights.T @ vectors]
        for table, slope, first, second in zip(tables, slopes, *moments, strict=True):
            descend(table, slope, first, second, 1e-9)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    train = train_part(options.dataset)
    model = GMF.init(train.n_users, train.n_items, 32, std=0.1, learn_beta=True, seed=0)
    order = np.random.default_rng(0).permutation(len(train))
    for name in ("irgan", "rns_as", "advir"):
        steps = {"sampler": sampler_step(name, train, model), "arithmetic": arithmetic(name, train, model)}
        times: dict[str, list[float]] = {kind: [] for kind in steps}
        for number in range(options.steps + 2):
            batch = order[number * BATCH % (len(order) - BATCH) :][:BATCH]
            pair = train.users[batch].astype(np.int64), train.items[batch].astype(np.int64)
            for kind, step in steps.items():  # in turn, so that a busy moment of the machine hits both
                start = time.process_time()
                step(pair)
                times[kind].append(time.process_time() - start)
        ours, bare = (1e3 * float(np.median(times[kind][2:])) for kind in ("sampler", "arithmetic"))
        print(f"{name}: sampler {ours:.2f} ms, its arithmetic {bare:.2f} ms per step: ratio {ours / bare:.2f} (limit {LIMIT})")


if __name__ == "__main__":
    main()
