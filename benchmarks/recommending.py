"""How long `srns recommend --all-users --out recs.parquet` takes beside the bare blocked matrix multiply, and in what memory.

    python benchmarks/recommending.py                       # 200,000 users x 50,000 items, F = 64, k = 10
    python benchmarks/recommending.py --users 1000000 --items 100000

A saved run of random factors, in which each user has ten items, is loaded and used as the command line does: score, leave
out what was seen, take the best k, give back the caller's ids, write the file. The bare loop multiplies the same factors in the
same blocks with the same BLAS threads into one array, and does nothing with the result. Both run for some of the users in
turns, so that a busy machine is busy for both; then the file for all of them is written in a process of its own, and again for
fewer users, for the peak of memory beyond what the loaded run takes (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from srns.config import RunConfig
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.lists import write_all_users
from srns.recommender import Recommender
from srns.scorers import GMF
from srns.splits import Split
from srns.storage import save_model

SEEN = 10  # items that each user has had
ROUNDS = 5


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


def bare(recommender: Recommender, n_users: int) -> float:
    """Seconds of the matrix multiply alone."""
    users, items, block = recommender.user_factors, recommender.item_factors, recommender.block
    scores = np.empty((block, len(items)), np.float32)
    begin = time.perf_counter()
    for start in range(0, n_users, block):
        rows = users[start : min(n_users, start + block)]
        np.matmul(rows, items.T, out=scores[: len(rows)])
    return time.perf_counter() - begin


def whole(recommender: Recommender, n_users: int, k: int) -> float:
    """Seconds of the same users' recommendations, as frames."""
    begin = time.perf_counter()
    for _ in islice(recommender.recommend_frames(k=k), -(-n_users // recommender.block)):
        pass
    return time.perf_counter() - begin


def memory_mb(which: str) -> float:
    """Of this process, now (VmRSS) or at most (VmHWM) since the peak was last forgotten."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(which)) / 1024


def write(folder: Path, k: int) -> None:
    """What the process of its own does."""
    recommender = Recommender.load(folder)
    whole(recommender, 1, k)  # compiled, or read from its cache
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    before, begin = memory_mb("VmRSS"), time.perf_counter()
    rows = write_all_users(recommender, folder, folder / "recs.parquet", k)
    print(
        json.dumps({"rows": rows, "seconds": time.perf_counter() - begin, "loaded_mb": before, "peak_mb": memory_mb("VmHWM")})
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("users", 200_000), ("items", 50_000), ("dim", 64), ("k", 10), ("timed-users", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    if asked.write:
        write(asked.write, asked.k)
        return
    print(
        f"{asked.users:,} users x {asked.items:,} items, F={asked.dim}, k={asked.k}; {os.cpu_count()} cores, "
        f"{os.environ.get('OPENBLAS_NUM_THREADS', 'all')} BLAS threads, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        save_run(folder, asked.users, asked.items, asked.dim)
        recommender = Recommender.load(folder)
        n = min(asked.timed_users, asked.users) // recommender.block * recommender.block or recommender.block
        whole(recommender, 1, asked.k)
        best = {"bare": np.inf, "whole": np.inf}
        for _ in range(ROUNDS):
            best["bare"] = min(best["bare"], bare(recommender, n))
            best["whole"] = min(best["whole"], whole(recommender, n, asked.k))
        print(f"{best['bare']:.2f} s  matrix multiply alone, {n:,} users in blocks of {recommender.block}")
        print(f"{best['whole']:.2f} s  recommendations; ratio {best['whole'] / best['bare']:.2f} (limit 2)")
        del recommender
        for users in (asked.users // 4, asked.users):
            if users != asked.users:
                folder = Path(temporary) / "fewer"
                save_run(folder, users, asked.items, asked.dim)
            else:
                folder = Path(temporary) / "run"
            command = [sys.executable, __file__, "--write", str(folder), "--k", str(asked.k)]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            beyond = found["peak_mb"] - found["loaded_mb"]
            print(
                f"{found['seconds']:.1f} s  to {found['rows']:,} rows of Parquet for {users:,} users; peak "
                f"{found['peak_mb']:.0f} MB, "
                f"{beyond:.0f} MB more than before the first of them"
            )


if __name__ == "__main__":
    main()
