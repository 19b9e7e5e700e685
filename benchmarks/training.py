"""Epoch time of GMF with uniform and with SRNS negatives against `implicit`'s BPR, same data, same process, epochs in turn.

    SRNS_DATA=../shared/data python benchmarks/training.py [--dataset ml-1m-paper] [--epochs 20] [--out FILE]

Settings are those of the paper on ML-1m (F = 32, S1 = 8, S2 = 64, batches of 1,024), and the default recipe for comparison.
Prints the ratio of the fastest epochs (limits: 2 with uniform negatives, 8 with SRNS) and whether 1 and 2 threads give the
same bits.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy.sparse as sp
from implicit.cpu.bpr import BayesianPersonalizedRanking
from train_data import train_part

from srns.engines import make_engine
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import environment

DEFAULT = "SRNS, default recipe"
MODELS: dict[str, tuple[dict[str, Any], int | None]] = {
    "uniform, the paper's settings": ({"sampler": "uniform"}, 2),
    "SRNS, the paper's settings": ({}, 8),
    DEFAULT: ({}, None),
}
WARM = 6


def peer(train: Interactions, dim: int, threads: int) -> Callable[[int], list[float]]:
    """n epochs of implicit's BPR per call, by implicit's own clock; a second fit() continues from the factors of the first."""
    matrix = sp.csr_matrix((np.ones(len(train), np.float32), train.items.copy(), train.indptr.copy()))

    def run(epochs: int) -> list[float]:
        times: list[float] = []
        model.iterations = epochs
        model.fit(matrix, show_progress=False, callback=lambda _epoch, elapsed, *_: times.append(elapsed))
        return times

    model = BayesianPersonalizedRanking(
        factors=dim, learning_rate=0.01, regularization=0.01, num_threads=threads, verify_negative_samples=True
    )
    return run


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    train = train_part(options.dataset)
    print(train, f"{options.threads} threads, {numba.config.NUMBA_NUM_THREADS} cores")

    other = peer(train, 32, options.threads)
    other(1)
    rows: dict[str, dict[str, Any]] = {}
    for name, (values, limit) in MODELS.items():
        config = make_config({**values, "threads": options.threads}, preset=None if name == DEFAULT else "paper-ml-1m")
        engine = make_engine(config, train)
        first_epoch = seconds(functools.partial(engine.run_epoch, 0))
        print(f"{name}: first epoch, compilation or loading included: {first_epoch:.2f} s")
        for epoch in range(1, WARM):  # until five past epochs are there to take the variance over
            engine.run_epoch(epoch)
        ours: list[float] = []
        theirs: list[float] = []
        while len(ours) < options.epochs:  # in turn, so that a busy moment of the machine hits both
            first = WARM + len(ours)
            ours += [seconds(functools.partial(engine.run_epoch, epoch)) for epoch in range(first, first + 5)]
            theirs += other(5)
        fastest, usual = min(ours) / min(theirs), float(np.median(ours) / np.median(theirs))
        print(f"  srns      {min(ours):.4f} s fastest, {np.median(ours):.4f} s median")
        print(f"  implicit  {min(theirs):.4f} s fastest, {np.median(theirs):.4f} s median")
        print(f"  ratio     {fastest:.2f} fastest, {usual:.2f} median" + (f" (limit {limit})" if limit else ""))
        rows[name] = {"first_epoch": first_epoch, "srns": ours, "implicit": theirs, "fastest": fastest, "median": usual}
        rows[name]["limit"] = limit

    for name, (values, _) in MODELS.items():
        models = []
        for threads in (1, 2):
            config = make_config({**values, "threads": threads}, preset=None if name == DEFAULT else "paper-ml-1m")
            engine = make_engine(config, train)
            for epoch in range(3):
                engine.run_epoch(epoch)
            models.append(engine.state_dict())
        same = all(np.array_equal(models[0][part], models[1][part]) for part in models[0])
        rows[name]["same_bits"] = same
        print(f"{name}: 1 and 2 threads give the same bits: {same}")
    if options.out is not None:
        record = {"dataset": options.dataset, "threads": options.threads, "environment": environment(), "results": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
