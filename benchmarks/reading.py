"""How fast files become interactions: a CSV of a million rows beside bare polars, and a folder of Parquet with its peak memory.

python benchmarks/reading.py [--rows 10000000] [--folder DIR]

The Parquet folder is written to a temporary folder (or DIR) and deleted afterwards; it is read in a process of its own, so that
the peak memory is that of reading and nothing else.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from srns.readers import read

FILE_ROWS = 5_000_000


def rows(n: int, users: int, items: int, seed: int) -> pl.DataFrame:
    """`n` ratings with the long tail of real data: item popularity falls as its rank to the power of -0.8."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user_id": rng.integers(0, users, n),
            "item_id": (items * rng.random(n) ** 5).astype(np.int64),
            "rating": rng.integers(1, 6, n).astype(np.int8),
            "timestamp": rng.integers(8 * 10**8, 9 * 10**8, n),
        }
    )


def best_of(repeats: int, call: Callable[[], Any]) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def csv(folder: Path) -> None:
    path = folder / "million.csv"
    rows(1_000_000, 50_000, 20_000, seed=0).write_csv(path)
    bare = best_of(5, lambda: pl.read_csv(path))
    plain = best_of(5, lambda: read(path))
    core = best_of(5, lambda: read(path, min_weight=3, min_user=5, min_item=5))
    print(f"csv, 1,000,000 rows: polars alone {bare:.2f} s; read {plain:.2f} s ({plain / bare:.1f}x)")
    print(f"csv, 1,000,000 rows: read, weight >= 3 and 5-core {core:.2f} s ({core / bare:.1f}x)")


def parquet(folder: Path, n: int) -> None:
    source = folder / "parquet"
    source.mkdir()
    for number, start in enumerate(range(0, n, FILE_ROWS)):
        part = rows(min(FILE_ROWS, n - start), max(10, n // 50), max(10, n // 500), seed=number)
        part.write_parquet(source / f"part-{number:04}.parquet")
    subprocess.run([sys.executable, __file__, "--read", str(source)], check=True)


def read_and_report(source: str) -> None:
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    data = read(source)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"parquet folder: {data} in {seconds:.1f} s; peak {peak / 2**20:.2f} GiB, {idle / 2**20:.2f} GiB before reading")
    print(f"  {'; '.join(data.notes)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the Parquet folder (default 10 million)")
    parser.add_argument("--folder", default=None, help="where to write the temporary files")
    parser.add_argument("--read", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        return read_and_report(arguments.read)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        csv(Path(folder))
        parquet(Path(folder), arguments.rows)


if __name__ == "__main__":
    main()
