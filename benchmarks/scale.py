"""Does the cost of SRNS grow linearly? Epochs on simulated data of 1, 4 and 16 million interactions, and the memory they take.

    python benchmarks/scale.py [--millions 1 4 16] [--rounds 4] [--items 20000 100000 400000] [--out FILE]

First users grow with the data, on the same 5,000 items; then users and items do: four times the interactions are of four times
the users and twice the items. Each size has a process of its own, and they take turns, since the speed of a shared machine
changes from minute to minute. Prints for each the median over rounds of seconds per million interactions, once the history is
full, the median of how many times as much as the first size in the same round that is (limit: 1.5), and the peak of resident
memory, which includes compilation if kernels had to be compiled. Then the same for a million interactions with many items.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import srns
from srns.engines import make_engine
from srns.presets import make_config
from srns.runs import environment, peak_rss_mb

ITEMS = 5_000  # of the smallest size
TURN = 8e6  # interactions that a turn goes over, or one epoch if that has more


class Size(NamedTuple):
    millions: float
    n_items: int

    def __str__(self) -> str:
        return f"{1e6 * self.millions:>11,.0f} interactions, {self.n_users:>8,} users, {self.n_items:>7,} items"

    @property
    def n_users(self) -> int:
        return int(10_000 * self.millions)


def serve(size: Size) -> None:
    """Fill the history, then for each line of input train for a turn and print what it took."""
    train = srns.simulate(size.n_users, size.n_items, int(1e6 * size.millions)).interactions
    config = make_config(preset="paper-ml-1m")
    engine, epoch, epochs = make_engine(config, train), 0, config.history_epochs + 1
    while True:
        start = time.perf_counter()
        for _ in range(epochs):
            engine.run_epoch(epoch)
            epoch += 1
        seconds = (time.perf_counter() - start) / epochs
        print(json.dumps({"seconds": seconds, "per_million": 1e6 * seconds / len(train), "peak_mb": peak_rss_mb()}), flush=True)
        if not sys.stdin.readline():
            return
        epochs = max(1, round(TURN / len(train)))


def take_turns(sizes: list[Size], rounds: int) -> list[dict[str, Any]]:
    """Measure in turns, print a line for each size and return what it took, and as what multiple of the first."""
    workers = []
    for size in sizes:
        arguments = [sys.executable, __file__, "--one", "--millions", str(size.millions), "--items", str(size.n_items)]
        workers.append(subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        workers[-1].stdout.readline()  # one after another: two at once would compile the same
    turns: list[list[dict[str, float]]] = []
    for _ in range(rounds):
        turns.append([])
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
            turns[-1].append(json.loads(worker.stdout.readline()))
    rows = []
    for k, (size, worker) in enumerate(zip(sizes, workers, strict=True)):
        worker.stdin.close()
        worker.wait()
        ratio = statistics.median(turn[k]["per_million"] / turn[0]["per_million"] for turn in turns)
        per_million, seconds = (statistics.median(turn[k][what] for turn in turns) for what in ("per_million", "seconds"))
        print(
            f"{size}: {seconds:.2f} s per epoch, {per_million:.3f} per million, {ratio:.2f} times the first, "
            f"peak {turns[-1][k]['peak_mb']:,.0f} MB",
            flush=True,
        )
        rows.append({"interactions": int(1e6 * size.millions), "users": size.n_users, "items": size.n_items, "ratio": ratio})
        rows[-1]["turns"] = [turn[k] for turn in turns]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 4, 16])
    parser.add_argument("--items", type=int, nargs="*", default=[20_000, 100_000, 400_000])
    parser.add_argument("--rounds", type=int, default=4, choices=range(1, 100), metavar="N")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    parser.add_argument("--one", action="store_true", help="a single size in this process, a turn for each line of input")
    options = parser.parse_args()
    if options.one:
        serve(Size(options.millions[0], options.items[0]))
        return
    results = {}
    for items_grow in (False, True):
        sizes = [Size(millions, int(ITEMS * math.sqrt(millions)) if items_grow else ITEMS) for millions in options.millions]
        rows = results["users and items grow" if items_grow else "users grow"] = take_turns(sizes, options.rounds)
        ratios = [row["ratio"] for row in rows]
        print(f"largest against smallest: {max(ratios) / min(ratios):.2f} (limit 1.5)", flush=True)
    if options.items:
        sizes = [Size(1, ITEMS), *(Size(1, n_items) for n_items in options.items)]
        results["items grow"] = take_turns(sizes, options.rounds)
    if options.out is not None:
        options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
