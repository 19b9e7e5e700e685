"""Does the cost of SRNS grow linearly? Epochs on simulated data of 1, 4 and 16 million interactions, and the memory they take.

    python benchmarks/scale.py [--millions 1 4 16] [--epochs 9] [--items 100000 400000]

Users and items grow with the data: four times the interactions are of four times the users and twice the items. Each size runs
in a process of its own. Prints seconds per million interactions of the fastest epoch after the history is full (limit: the
largest is 1.5 times the smallest), and the peak of resident memory. Then the same for a million interactions with many items.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time

import srns
from srns.config import make_config
from srns.engines import make_engine
from srns.runs import peak_rss_mb


def measure(millions: float, n_items: int, epochs: int) -> dict[str, float]:
    n_users = int(10_000 * millions)
    train = srns.simulate(n_users, n_items, int(1e6 * millions)).interactions
    engine = make_engine(make_config(preset="paper-ml-1m"), train)
    times = []
    for epoch in range(epochs):
        start = time.perf_counter()
        engine.run_epoch(epoch)
        times.append(time.perf_counter() - start)
    found = {
        "users": n_users,
        "items": n_items,
        "interactions": len(train),
        "seconds": min(times[5:]),
        "peak_mb": peak_rss_mb(),
    }
    return {**found, "seconds_per_million": 1e6 * found["seconds"] / len(train)}


def run(millions: float, n_items: int, epochs: int) -> float:
    """Measure in a process of its own, print a line and return the seconds per million interactions."""
    args = [sys.executable, __file__, "--one", "--millions", str(millions), "--items", str(n_items), "--epochs", str(epochs)]
    found = json.loads(subprocess.run(args, check=True, capture_output=True, text=True).stdout)
    print(
        f"{found['interactions']:>11,} interactions, {found['users']:>8,} users, {found['items']:>7,} items: "
        f"{found['seconds']:.2f} s per epoch, {found['seconds_per_million']:.3f} per million, peak {found['peak_mb']:,.0f} MB",
        flush=True,
    )
    return float(found["seconds_per_million"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 4, 16])
    parser.add_argument("--items", type=int, nargs="*", default=[100_000, 400_000])
    parser.add_argument("--epochs", type=int, default=9, help="at least 6")
    parser.add_argument("--one", action="store_true", help="measure a single size in this process and print JSON")
    options = parser.parse_args()
    epochs = max(6, options.epochs)
    if options.one:
        print(json.dumps(measure(options.millions[0], options.items[0], epochs)))
        return
    costs = [run(millions, int(5_000 * math.sqrt(millions)), epochs) for millions in options.millions]
    print(f"largest against smallest: {max(costs) / min(costs):.2f} (limit 1.5)")
    for n_items in options.items:
        run(1, n_items, epochs)


if __name__ == "__main__":
    main()
