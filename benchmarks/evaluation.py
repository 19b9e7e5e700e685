"""How long full ranking takes beside the bare work: blocked matrix multiply plus argpartition in NumPy.

    SRNS_DATA=... python benchmarks/evaluation.py [--out FILE]

Both run in this process with the same BLAS threads, in turns, on random factors over the ml-1m-paper split, or over a random
split of that size where $SRNS_DATA is missing. The bare loop computes no metric, masks nothing, and gets its best block size.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.evaluation import evaluate
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.runs import environment
from srns.splits import Split

N_USERS, N_ITEMS, DIM, K = 6_028, 3_533, 32, 20
BLOCKS = (64, 256, 1024, 4096)


def load_split() -> Split:
    """The ml-1m-paper split, or one of the same size with random pairs."""
    path = Path(os.environ.get("SRNS_DATA", ".")) / "ml-1m-paper.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as data:
            pairs = {name: data[name] for name in ("train", "val", "test")}
    else:
        rng = np.random.default_rng(0)
        chosen = rng.permuted(np.tile(np.arange(N_ITEMS), (N_USERS, 1)), axis=1)[:, :95]
        columns = {"train": slice(2, None), "val": slice(0, 1), "test": slice(1, 2)}
        pairs = {
            name: np.stack(np.broadcast_arrays(np.arange(N_USERS)[:, None], chosen[:, part]), -1).reshape(-1, 2)
            for name, part in columns.items()
        }
    users, items = IdMap.dense(N_USERS, "user"), IdMap.dense(N_ITEMS, "item")
    train, valid, test = (
        Interactions.from_pairs(rows[:, 0], rows[:, 1], user_ids=users, item_ids=items) for rows in pairs.values()
    )
    return Split(path.name if path.exists() else "random", train, valid, test)


def with_negatives(split: Split) -> Split:
    return replace(split, negatives=np.random.default_rng(2).integers(N_ITEMS, size=(N_USERS, 100)))


class Factors:
    """A scorer of random factors, with `score_all` as GMF has it."""

    def __init__(self, n_users: int, n_items: int, dim: int) -> None:
        rng = np.random.default_rng(1)
        self.users = rng.standard_normal((n_users, dim), np.float32)
        self.items = rng.standard_normal((n_items, dim), np.float32)

    def __call__(self, users: NDArray[Any], items: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.einsum("bf,bkf->bk", self.users[users], self.items[items]))

    def score_all(self, users: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.users[users] @ self.items.T)


def bare(factors: Factors, block: int) -> None:
    for begin in range(0, len(factors.users), block):
        scores = factors.users[begin : begin + block] @ factors.items.T
        np.argpartition(scores, -K, axis=1)[:, -K:]


def best_times(runs: dict[str, Callable[[], object]], rounds: int = 20) -> dict[str, float]:
    """Seconds of each run, best of some rounds; in turns, so that a busy machine is busy for all of them."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    split, factors = load_split(), Factors(N_USERS, N_ITEMS, DIM)
    print(f"data: {split.name}, {N_USERS:,} x {N_ITEMS:,}, F={DIM}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    begin = time.perf_counter()
    evaluate(factors, split)
    print(f"{time.perf_counter() - begin:.3f} s  evaluate(full), first call: compilation or its cache")
    runs: dict[str, Callable[[], object]] = {f"bare, block {block}": partial(bare, factors, block) for block in BLOCKS}
    runs["evaluate(full), all metrics"] = partial(evaluate, factors, split)
    runs["evaluate(paper), negatives given"] = partial(evaluate, factors, with_negatives(split), protocol="paper")
    best = best_times(runs)
    for name, seconds in best.items():
        print(f"{seconds:.3f} s  {name}")
    full, base = best["evaluate(full), all metrics"], min(best[f"bare, block {block}"] for block in BLOCKS)
    print(f"ratio of evaluate(full) to matmul + argpartition: {full / base:.2f} (limit 3)")
    if options.out is not None:
        record = {
            "data": split.name,
            "dim": DIM,
            "environment": environment(),
            "seconds": best,
            "ratio": full / base,
            "limit": 3,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
