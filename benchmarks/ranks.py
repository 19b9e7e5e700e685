"""What a training step takes on 1, 2 and 3 ranks of one machine, in time and bytes, against the model of docs/distributed.md.

    python benchmarks/ranks.py [--users 20000] [--items 5000] [--interactions 1000000] [--batch 1024] [--steps 150]

SRNS with the paper's settings on ML-1m; each rank has one thread. On a machine with fewer cores than ranks they take turns, so
that three ranks compute no faster than two; what travels is the same. Times are medians over steps, of the first rank. On Linux
the bytes are also read off the network interface, where they come with those that keep ranks in touch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SETTINGS = {"memory_size": 8, "expansion_size": 64, "negatives": 1, "loss": "bpr", "dim": 32, "temperature": 10.0, "threads": 1}


def expected_bytes(ranks: int, items: int, most: int) -> float:
    """What a rank receives in a step of GMF: the rows that ranks touched, or tables in a ring, whichever is less."""
    dim, touched = SETTINGS["dim"], min(most * (1 + SETTINGS["negatives"]), items)  # type: ignore[operator, call-overload]
    return 4 * min((ranks - 1) * touched * (dim + 1), 2 * (ranks - 1) / ranks * items * dim)  # type: ignore[operator]


def loopback_bytes() -> int:
    """What has come in over the loopback interface, for all processes of this machine; 0 where nobody counts."""
    counts = Path("/proc/net/dev")
    lines = counts.read_text().splitlines() if counts.exists() else []
    return next((int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), 0)


def worker(options: argparse.Namespace) -> None:
    """One rank: a number of steps, timed."""
    import torch

    import srns
    from srns.distributed import GradientSum
    from srns.engines.torch import TorchEngine
    from srns.presets import make_config
    from srns.ranks import join

    class TimedSum(GradientSum):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.seconds: list[float] = []

        def __call__(self, whole: Sequence[Any], tables: Sequence[Any], touched: Any, most: int) -> None:
            start = time.perf_counter()
            super().__call__(whole, tables, touched, most)
            self.seconds.append(time.perf_counter() - start)

    ranks = join()
    data = srns.simulate(options.users, options.items, options.interactions, seed=0).interactions
    config = make_config({**SETTINGS, "engine": "torch", "batch_size": options.batch})
    engine = TorchEngine(config, ranks.share_of(data), ranks=ranks)
    sums = engine._sum = TimedSum(ranks)
    for epoch in range(6):  # five past epochs to take the variance over
        with torch.no_grad():
            engine.sampler.begin_epoch(epoch, engine.module.view(options.items))
    ranks.gather(None)
    seconds, expected, before = [], 0.0, loopback_bytes()
    for step, batch in enumerate(itertools.islice(engine._batches(5), options.steps)):
        start = time.perf_counter()
        engine._step(step, batch)
        seconds.append(time.perf_counter() - start)
        expected += expected_bytes(ranks.size, engine.train.n_items, batch.most)
    ranks.gather(None)
    found = {
        "interface": (loopback_bytes() - before) / ranks.size / len(seconds),
        "ranks": ranks.size,
        "step": float(np.median(seconds)),
        "exchange": float(np.median(sums.seconds)),
        "bytes": sums.bytes / len(seconds),
        "expected": expected / len(seconds),
    }
    ranks.leave()
    if ranks.rank == 0:
        print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("users", 20_000), ("items", 5_000), ("interactions", 1_000_000), ("batch", 1024), ("steps", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--most", type=int, default=3, help="ranks at most")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    print(
        f"{os.cpu_count()} cores; batches of {options.batch:,} positives in all, {options.items:,} items, dim {SETTINGS['dim']}"
    )
    for size in range(1, options.most + 1):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
        command = [sys.executable, *launcher, __file__, "--worker", *(word for word in sys.argv[1:] if word != "--worker")]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
        print(
            f"{size} ranks: step {found['step'] * 1e3:.1f} ms, of which exchange {found['exchange'] * 1e3:.1f} ms; "
            f"received per rank and step {found['bytes'] / 1e3:.0f} kB, expected {found['expected'] / 1e3:.0f} kB, "
            f"counted at the interface {found['interface'] / 1e3:.0f} kB"
        )


if __name__ == "__main__":
    main()
