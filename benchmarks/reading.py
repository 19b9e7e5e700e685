"""How fast files become interactions: a CSV of a million rows beside bare polars, and a folder of Parquet with its peak memory.

    python benchmarks/reading.py [--rows 10000000] [--folder DIR] [--out FILE]
    python benchmarks/reading.py --database sqlite --rows 5000000       # or duckdb, postgresql: its peak beside that of Parquet

Data are written to a temporary folder (or DIR) and deleted afterwards; they are read in a process of its own, so that the peak
memory is that of reading and nothing else. With --database it is what reading takes beyond the process with all its packages
(Linux), for the same rows in a table and in a Parquet file, beside the bytes of the interactions that come of them. PostgreSQL
is a server that is started for this, as for the tests.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from recommending import memory_mb

from srns.interactions import Interactions
from srns.readers import read
from srns.runs import environment

FILE_ROWS = 5_000_000
TABLE = "(user_id bigint, item_id bigint, rating integer, timestamp bigint)"


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


def csv(folder: Path) -> dict[str, Any]:
    path = folder / "million.csv"
    rows(1_000_000, 50_000, 20_000, seed=0).write_csv(path)
    bare = best_of(5, lambda: pl.read_csv(path))
    plain = best_of(5, lambda: read(path))
    core = best_of(5, lambda: read(path, min_weight=3, min_user=5, min_item=5))
    print(f"csv, 1,000,000 rows: polars alone {bare:.2f} s; read {plain:.2f} s ({plain / bare:.1f}x)")
    print(f"csv, 1,000,000 rows: read, weight >= 3 and 5-core {core:.2f} s ({core / bare:.1f}x)")
    return {"rows": 1_000_000, "polars_seconds": bare, "seconds": plain, "core_seconds": core}


def parquet(folder: Path, n: int) -> dict[str, Any]:
    source = folder / "parquet"
    source.mkdir()
    for number, start in enumerate(range(0, n, FILE_ROWS)):
        part = rows(min(FILE_ROWS, n - start), max(10, n // 50), max(10, n // 500), seed=number)
        part.write_parquet(source / f"part-{number:04}.parquet")
    done = subprocess.run([sys.executable, __file__, "--read", str(source)], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    print(
        f"parquet folder: {found['data']} in {found['seconds']:.1f} s; peak {found['peak_gib']:.2f} GiB, "
        f"{found['idle_gib']:.2f} GiB before reading\n  {'; '.join(found['notes'])}"
    )
    return {"rows": n, **found}


def read_and_report(source: str) -> None:
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    data = read(source)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gib = {"peak_gib": peak / 2**20, "idle_gib": idle / 2**20}
    print(json.dumps({"data": str(data), "seconds": seconds, **gib, "notes": list(data.notes)}))


@contextmanager
def filled(kind: str, folder: Path, frame: pl.DataFrame) -> Iterator[str]:
    """The URL of a database with `frame` as its table clicks."""
    file = folder / f"clicks.{kind}"
    if kind == "sqlite":
        with sqlite3.connect(file) as database:
            database.execute(f"CREATE TABLE clicks {TABLE}")
            database.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", frame.iter_rows())
    elif kind == "duckdb":
        import duckdb

        with duckdb.connect(str(file)) as database:
            database.register("frame", frame.to_arrow())
            database.execute("CREATE TABLE clicks AS SELECT * FROM frame")
    else:
        import psycopg

        sys.path.append(str(Path(__file__).parent.parent / "tests"))
        from postgres_server import programs, server

        found = programs()
        if isinstance(found, str):
            sys.exit(found)
        with server(found) as running:
            with psycopg.connect(running.url()) as database, database.cursor() as cursor:
                cursor.execute(f"CREATE TABLE clicks {TABLE}")
                with cursor.copy("COPY clicks FROM STDIN (FORMAT csv)") as copy:
                    for part in frame.iter_slices(100_000):
                        copy.write(part.write_csv(include_header=False))
            yield running.url()
        return
    yield f"{kind}:///{file}"


def databases(kind: str, folder: Path, n: int) -> dict[str, Any]:
    measured = {}
    frame = rows(n, max(10, n // 50), max(10, n // 500), seed=0)
    file = folder / "clicks.parquet"
    frame.write_parquet(file)
    with filled(kind, folder, frame) as url:
        del frame
        for name, source in ((kind, url), ("parquet", str(file))):
            done = subprocess.run([sys.executable, __file__, "--peak", source], check=True, stdout=subprocess.PIPE)
            found = measured[name] = json.loads(done.stdout)
            print(
                f"{name}, {n:,} rows: {found['more_mb']:.0f} MB at the most beyond the {found['before_mb']:.0f} MB before, for "
                f"interactions of {found['result_mb']:.0f} MB: {found['more_mb'] / found['result_mb']:.1f}x; "
                f"{found['seconds']:.1f} s",
                flush=True,
            )
    return {"rows": n, **measured}


def read_and_measure(source: str) -> None:
    asked = {"table": "clicks"} if "://" in source else {}
    if asked:
        read_little(source)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of importing
    before, start = memory_mb("VmRSS"), time.perf_counter()
    data = read(source, **asked)
    found = {
        "before_mb": before,
        "more_mb": memory_mb("VmHWM") - before,
        "seconds": time.perf_counter() - start,
        "result_mb": size_mb(data),
    }
    print(json.dumps(found))


def read_little(url: str) -> None:
    """So that what the driver is and holds is there before."""
    read(url, query="SELECT user_id, item_id FROM clicks LIMIT 10")


def size_mb(data: Interactions) -> float:
    arrays = (data.indptr, data.items, data.weight, data.time)
    ids = data.user_ids.labels.estimated_size() + data.item_ids.labels.estimated_size()
    return (sum(each.nbytes for each in arrays if each is not None) + ids) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the Parquet folder (default 10 million)")
    parser.add_argument("--database", choices=("sqlite", "duckdb", "postgresql"), help="measure the memory of reading one")
    parser.add_argument("--folder", default=None, help="where to write the temporary files")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    parser.add_argument("--read", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--peak", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        return read_and_report(arguments.read)
    if arguments.peak:
        return read_and_measure(arguments.peak)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.database:
            results = {"database": databases(arguments.database, Path(folder), arguments.rows)}
        else:
            results = {"csv": csv(Path(folder)), "parquet": parquet(Path(folder), arguments.rows)}
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
