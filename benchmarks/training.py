"""Epoch time of GMF with uniform negatives against `implicit`'s BPR, same data, same process, epochs taken in turn.

    SRNS_DATA=../shared/data python benchmarks/training.py [--dataset ml-1m-paper] [--epochs 20]

Prints the ratio of the fastest epochs (limit: 2) and whether 1 and 2 threads give the same bits.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import numba
import numpy as np
import scipy.sparse as sp
from implicit.cpu.bpr import BayesianPersonalizedRanking

import srns
from srns.config import make_config
from srns.engines import FusedEngine
from srns.interactions import Interactions


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
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    try:
        loaded = srns.load(options.dataset)
        train = loaded if isinstance(loaded, Interactions) else loaded.train
    except srns.DataError:
        print(f"no data set {options.dataset!r} here (SRNS_DATA?): simulating one of the size of ml-1m")
        train = srns.simulate(6028, 3533, 563_186).interactions
    print(train, f"dim {options.dim}, {options.threads} threads, {numba.config.NUMBA_NUM_THREADS} cores")

    engine = FusedEngine(make_config({"dim": options.dim, "threads": options.threads}), train)
    other = peer(train, options.dim, options.threads)
    print(f"first epoch, compilation or loading included: {seconds(lambda: engine.run_epoch(0)):.2f} s")
    other(1)
    ours: list[float] = []
    theirs: list[float] = []
    while len(ours) < options.epochs:  # in turn, so that a busy moment of the machine hits both
        ours += [seconds(functools.partial(engine.run_epoch, epoch)) for epoch in range(len(ours) + 1, len(ours) + 6)]
        theirs += other(5)
    print(f"srns      {min(ours):.4f} s fastest, {np.median(ours):.4f} s median")
    print(f"implicit  {min(theirs):.4f} s fastest, {np.median(theirs):.4f} s median")
    print(f"ratio     {min(ours) / min(theirs):.2f} fastest, {np.median(ours) / np.median(theirs):.2f} median (limit 2)")

    models = []
    for threads in (1, 2):
        engine = FusedEngine(make_config({"dim": options.dim, "threads": threads}), train)
        for epoch in range(3):
            engine.run_epoch(epoch)
        models.append(engine.model.tensors())
    same = all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    print(f"1 and 2 threads give the same bits: {same}")


if __name__ == "__main__":
    main()
