"""How long `srns recommend --all-users --out recs.parquet` takes beside the bare blocked matrix multiply, and in what memory.

    python benchmarks/recommending.py                       # 200,000 users x 50,000 items, F = 64, k = 10
    python benchmarks/recommending.py --users 1000000 --items 100000 --out docs/recommending/all_users.json
    python benchmarks/recommending.py --users 1000000 --items 100000 --alone --out docs/recommending/all_users_memory.json

A saved run of random factors, in which each user has ten items, is loaded, and `write_all_users` does what the command line
does: score, leave out what was seen, take the best k, give back the caller's ids, write parts, join them to one file.

After each block of users the bare multiply is done for the same users, with the same threads, into an array of its own, and
timed apart: so a busy machine is as busy for one as for the other. All this is done in a process of its own, for a quarter of
the users first. With --alone there is no multiply beside it, which takes memory of its own: the peak beyond what the loaded run
takes must not grow with users (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numba
import numpy as np
import polars as pl
from threadpoolctl import threadpool_info

from srns.config import RunConfig
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.lists import write_all_users
from srns.recommender import Recommender
from srns.runs import environment
from srns.scorers import GMF
from srns.splits import Split
from srns.storage import save_model

SEEN = 10  # items that each user has had


def save_run(folder: Path, n_users: int, n_items: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((n, dim), np.float32) for n in (n_users, n_items))
    seen = (np.arange(n_users)[:, None] * 7 + np.arange(SEEN) * (n_items // SEEN)) % n_items
    train = Interactions.from_pairs(
        np.repeat(np.arange(n_users), SEEN),
        seen.ravel(),
        user_ids=IdMap.dense(n_users, "user"),
        item_ids=IdMap.dense(n_items, "item"),
    )
    run = {"status": "finished", "config": RunConfig(dim=dim).model_dump(mode="json")}
    save_model(folder, GMF(users, items, np.ones(dim, np.float32)), Split("random", train, None, None), run)


class Bare:
    """The matrix multiply alone, in turns with the frames that it lets through; `wall` and `cpu` are its seconds."""

    def __init__(self, recommender: Recommender) -> None:
        self.users, self.items, self.block = recommender.user_factors, recommender.item_factors, recommender.block
        self.scores = np.ones((self.block, len(self.items)), np.float32)  # memory that is there, not only promised
        self.wall = self.cpu = 0.0

    def __call__(self, frames: Iterable[pl.DataFrame], *, done: int) -> Iterator[pl.DataFrame]:
        for number, frame in enumerate(frames):
            wall, cpu = time.perf_counter(), time.process_time()
            rows = self.users[number * self.block : (number + 1) * self.block]
            np.matmul(rows, self.items.T, out=self.scores[: len(rows)])
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu
            yield frame


def memory_mb(which: str) -> float:
    """Of this process, now (VmRSS) or at most (VmHWM) since the peak was last forgotten."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(which)) / 1024


def write(folder: Path, k: int, alone: bool) -> None:
    """What the process of its own does."""
    recommender = Recommender.load(folder)
    next(recommender.recommend_frames(k=k))  # compiled, or read from its cache
    bare = None if alone else Bare(recommender)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    before, wall, cpu = memory_mb("VmRSS"), time.perf_counter(), time.process_time()
    beside = {} if bare is None else {"track": bare}
    rows = write_all_users(recommender, folder, folder / "recs.parquet", k, **beside)
    peak = memory_mb("VmHWM")  # before anything else is asked of the model: its factors are made when they are asked for
    multiply = (0.0, 0.0) if bare is None else (bare.wall, bare.cpu)
    wall, cpu = time.perf_counter() - wall - multiply[0], time.process_time() - cpu - multiply[1]
    found = {
        "users": recommender.n_recommended,
        "rows": rows,
        "block": recommender.block,
        "threads": {pool["internal_api"]: pool["num_threads"] for pool in threadpool_info()}
        | {"numba": numba.get_num_threads()},
        "seconds": {"written": wall, "multiply": multiply[0]},
        "processor_seconds": {"written": cpu, "multiply": multiply[1]},
        "ratio": wall / multiply[0] if bare else None,
        "processor_ratio": cpu / multiply[1] if bare else None,
        "loaded_mb": before,
        "more_mb": peak - before,
    }
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("users", 200_000), ("items", 50_000), ("dim", 64), ("k", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--alone", action="store_true", help="without the multiply beside it, for its memory")
    parser.add_argument("--write", type=Path, help="the process of its own")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    asked = parser.parse_args()
    if asked.write:
        write(asked.write, asked.k, asked.alone)
        return
    rows = []
    for users in (asked.users // 4, asked.users):
        with tempfile.TemporaryDirectory() as temporary:
            save_run(Path(temporary), users, asked.items, asked.dim)
            command = [sys.executable, __file__, "--write", temporary, "--k", str(asked.k)] + ["--alone"] * asked.alone
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        rows.append(row | {"items": asked.items, "dim": asked.dim, "k": asked.k, "load": os.getloadavg()[0]})
        print(
            f"{users:,} users x {asked.items:,} items, F={asked.dim}, k={asked.k}: {row['seconds']['written']:.1f} s to "
            f"{row['rows']:,} rows of Parquet, "
            + (
                ""
                if asked.alone
                else f"{row['seconds']['multiply']:.1f} s for the matrix multiply alone: ratio {row['ratio']:.2f}, of "
                f"processor time {row['processor_ratio']:.2f} (limit 2); "
            )
            + f"{row['more_mb']:.0f} MB beyond the {row['loaded_mb']:.0f} MB before; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        if asked.out is not None:
            asked.out.write_text(json.dumps({"environment": environment(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
