"""What a training step takes on 1, 2 and 3 ranks of one machine, in time and bytes, and a model of it (docs/distributed.md).

    python benchmarks/ranks.py [--batches 512 1024 2048 4096 8192] [--most 3] [--rounds 2] [--out docs/distributed/steps.json]

SRNS with the paper's settings on ML-1m, on a simulated world; each rank has one thread. On a machine with fewer cores than
ranks they take turns. Times are medians over the steps of all rounds, of the first rank; what else the machine had to do at the
time is told by its load, and by the time that the computing spent on a core. On Linux the bytes are also read off the network
interface, where they come with those that keep ranks in touch.

The model: computing takes a rank a + b B / N on a core, and a step turns (a + b B / N) + (N - 1) latency + bytes / bandwidth,
turns = N / cores where that is above 1. Its four numbers are fitted to the rows of 1 and 2 ranks, by least squares of relative
errors, a and b to time on a core, which other work on the machine hardly changes; then they are tried on the other rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from on_ranks import run_ranks

from srns.runs import environment

SETTINGS = {"memory_size": 8, "expansion_size": 64, "negatives": 1, "loss": "bpr", "dim": 32, "temperature": 10.0, "threads": 1}
WARM = 3  # steps before those that are timed
POSITIVES, FEWEST, MOST = 60_000, 15, 60  # timed per round and batch size: positives, but not fewer and not more steps
Row = dict[str, Any]


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
    """One rank: for each batch size a number of steps, timed."""
    import srns
    from srns.ranks import join

    ranks = join()
    data = ranks.share_of(srns.simulate(options.users, options.items, options.interactions, seed=0).interactions)
    rows = [timed(batch, data, ranks) for batch in options.batches]
    ranks.leave()
    if ranks.rank == 0:
        print(json.dumps(rows))


def timed(batch_size: int, data: Any, ranks: Any) -> Row:
    import torch

    from srns.distributed import GradientSum
    from srns.engines.torch import TorchEngine
    from srns.presets import make_config

    class TimedSum(GradientSum):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.seconds: list[float] = []
            self.on_core: list[float] = []

        def __call__(self, whole: Sequence[Any], tables: Sequence[Any], touched: Any, most: int) -> None:
            start, start_on_core = time.perf_counter(), time.thread_time()
            super().__call__(whole, tables, touched, most)
            self.seconds.append(time.perf_counter() - start)
            self.on_core.append(time.thread_time() - start_on_core)

    config = make_config({**SETTINGS, "engine": "torch", "batch_size": batch_size})
    engine = TorchEngine(config, data, ranks=ranks)
    for epoch in range(6):  # five past epochs to take the variance over
        with torch.no_grad():
            engine.sampler.begin_epoch(epoch, engine.module.view(data.n_items))
    steps = max(FEWEST, min(MOST, POSITIVES // batch_size))
    batches = list(itertools.islice(engine._batches(5), WARM + steps))
    for step, batch in enumerate(batches[:WARM]):
        engine._step(step, batch)
    sums = engine._sum = TimedSum(ranks)
    ranks.gather(None)
    seconds, on_core, expected, before = [], [], 0.0, loopback_bytes()
    for step, batch in enumerate(batches[WARM:], WARM):
        start, start_on_core = time.perf_counter(), time.thread_time()
        engine._step(step, batch)
        seconds.append(time.perf_counter() - start)
        on_core.append(time.thread_time() - start_on_core)
        expected += expected_bytes(ranks.size, data.n_items, batch.most)
    ranks.gather(None)
    return {
        "ranks": ranks.size,
        "batch": batch_size,
        "seconds": seconds,
        "exchanges": sums.seconds,
        "on_core": (np.array(on_core) - sums.on_core).tolist(),
        "bytes": sums.bytes / steps,
        "expected_bytes": expected / steps,
        "interface_bytes": (loopback_bytes() - before) / ranks.size / steps,
        "load": os.getloadavg()[0],
    }


def joined(rounds: list[Row]) -> Row:
    """One row out of those of all rounds."""
    steps, exchanges = (np.concatenate([row[name] for row in rounds]) for name in ("seconds", "exchanges"))
    return {
        "ranks": rounds[0]["ranks"],
        "batch": rounds[0]["batch"],
        "steps": len(steps),
        "step_ms": 1e3 * float(np.median(steps)),
        "compute_ms": 1e3 * float(np.median(steps - exchanges)),
        "cpu_ms": 1e3 * float(np.median(np.concatenate([row["on_core"] for row in rounds]))),
        "exchange_ms": 1e3 * float(np.median(exchanges)),
        **{name: float(np.mean([row[name] for row in rounds])) for name in ("bytes", "expected_bytes", "interface_bytes")},
        "loads": [row["load"] for row in rounds],
    }


def relative_fit(terms: Any, measured: Any) -> Any:
    """The factors of terms (rows, factors) whose sums are closest to what was measured (rows,), in relative error."""
    return np.linalg.lstsq(terms / measured[:, None], np.ones(len(measured)), rcond=None)[0]


def fitted(rows: list[Row]) -> dict[str, float]:
    """The four numbers of the model, in milliseconds, from rows of 1 and 2 ranks."""
    known = [row for row in rows if row["ranks"] <= 2]
    shares = np.array([[1.0, row["batch"] / row["ranks"]] for row in known])
    a, b = relative_fit(shares, np.array([row["cpu_ms"] for row in known]))
    two = [row for row in known if row["ranks"] == 2]
    travels = np.array([[1.0, row["bytes"]] for row in two])
    latency, per_byte = relative_fit(travels, np.array([row["exchange_ms"] for row in two]))
    return {"a_ms": a, "b_us": 1e3 * b, "latency_ms": latency, "ms_per_MB": 1e6 * per_byte}


def judge(row: Row, model: dict[str, float], cores: int) -> None:
    """Put what the model says into a row, and by how much that is more than was measured."""
    ranks = row["ranks"]
    on_core = model["a_ms"] + model["b_us"] / 1e3 * row["batch"] / ranks
    exchange = (ranks - 1) * model["latency_ms"] + model["ms_per_MB"] * row["bytes"] / 1e6
    step = max(1.0, ranks / cores) * on_core + exchange
    row["predicted_cpu_ms"], row["predicted_step_ms"], row["fitted_to"] = on_core, step, ranks <= 2
    row["cpu_error"], row["step_error"] = on_core / row["cpu_ms"] - 1, step / row["step_ms"] - 1


def report(rows: list[Row], model: dict[str, float]) -> None:
    for row in rows:
        received = ", ".join(f"{row[name] / 1e3:.0f}" for name in ("bytes", "expected_bytes", "interface_bytes"))
        print(
            f"{row['ranks']} ranks, batches of {row['batch']:,}: computing {row['cpu_ms']:.1f} ms on a core, the model says "
            f"{row['predicted_cpu_ms']:.1f} ({row['cpu_error']:+.0%}); step {row['step_ms']:.1f} ms, of which exchange "
            f"{row['exchange_ms']:.1f}, the model says {row['predicted_step_ms']:.1f} ({row['step_error']:+.0%}); kB received "
            f"per rank, expected, at the interface: {received}; load {' '.join(f'{load:.1f}' for load in row['loads'])}"
        )
    print("fitted to 1 and 2 ranks: " + ", ".join(f"{name} {value:.3g}" for name, value in model.items()))
    for name, part in (("1 and 2 ranks, fitted to", True), ("more ranks, not fitted to", False)):
        for kind in ("cpu", "step"):
            errors = [abs(row[f"{kind}_error"]) for row in rows if row["fitted_to"] is part]
            if errors:
                print(f"{name}: {kind} off by {np.mean(errors):.0%} on average, {max(errors):.0%} at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # So few users that one rank, too, has the table of unseen items (`srns.samplers.unseen`): with more it searches, which is
    # slower, and several ranks would be faster by more than their number.
    for name, default in (("users", 12_000), ("items", 5_000), ("interactions", 600_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--most", type=int, default=3, help="ranks at most")
    parser.add_argument("--rounds", type=int, default=2, help="how often 1, 2, ... ranks take turns")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    cores, found = os.cpu_count() or 1, []
    print(f"{cores} cores; {options.items:,} items, dim {SETTINGS['dim']}", flush=True)
    names = ("users", "items", "interactions")
    arguments = [word for name in names for word in (f"--{name}", str(getattr(options, name)))]
    for _, size in itertools.product(range(options.rounds), range(1, options.most + 1)):
        printed = run_ranks(size, __file__, "--worker", *arguments, "--batches", *map(str, options.batches))
        found += json.loads(printed.strip().splitlines()[-1])
    sizes = itertools.product(range(1, options.most + 1), options.batches)
    rows = [joined([row for row in found if (row["ranks"], row["batch"]) == size]) for size in sizes]
    model = fitted(rows)
    for row in rows:
        judge(row, model, cores)
    report(rows, model)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        note = {
            "environment": environment(),
            "cores": cores,
            "settings": SETTINGS,
            **{name: getattr(options, name) for name in names},
        }
        options.out.write_text(json.dumps({**note, "model": model, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
