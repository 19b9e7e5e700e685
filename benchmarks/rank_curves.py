"""GMF from one seed on 1, 2 and 3 ranks: negatives, loss curves and test metrics beside those of one rank.

    SRNS_DATA=../shared/data python benchmarks/rank_curves.py [--datasets ml-100k ml-1m-paper] [--epochs 10] [--out FILE]

The paper's settings on ML-1m, with uniform negatives and with SRNS. Every negative that is drawn is compared, and the memories
after the first epoch, slot by slot. How sensitive a setting is to rounding at all is told by one rank once more, from
parameters that are moved by a ten-millionth of themselves, the rounding of a float32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from engines import DATASETS, ROUNDING, memories_of, missing
from on_ranks import run_ranks

from srns.runs import environment

CASES: dict[str, dict[str, Any]] = {"uniform": {"sampler": "uniform"}, "srns": {}}
RUNS = {"1 rank": 1, "2 ranks": 2, "3 ranks": 3, "1 rank, moved start": 1}
METRICS = ("ndcg@1", "ndcg@3", "recall@3")
LOSS_BAR, TEST_BAR = 1e-4, 0.002


def worker(dataset: str, case: str, epochs: int, moved: bool, out: Path) -> None:
    """One rank: trains, and leaves what all ranks drew and found in `out`."""
    import srns
    from srns.engines.torch import TorchEngine
    from srns.presets import make_config
    from srns.ranks import join
    from srns.runs import prepare

    ranks = join()
    split = prepare(dataset, make_config(DATASETS[dataset]), ranks)
    train = split.train
    config = make_config({"engine": "torch", "threads": 1, **CASES[case]}, preset="paper-ml-1m")
    engine: Any = TorchEngine(config, train, ranks=ranks)
    if moved:
        rng = np.random.default_rng(0)
        start = engine.model.tensors().items()
        engine.start_from({name: each * (1 + ROUNDING * rng.standard_normal(each.shape, np.float32)) for name, each in start})
    pairs = train.users.astype(np.int64) * train.n_items + train.items
    drawn = np.full((epochs, len(train)), -1, np.int32)
    sample, current = engine.sampler.sample, 0

    def noted(users: Any, positives: Any, score: Any, step: int) -> Any:
        found = sample(users, positives, score, step)
        drawn[current, np.searchsorted(pairs, (users * train.n_items + positives).numpy())] = found.ids[:, 0].numpy()
        return found

    engine.sampler.sample = noted
    losses, seconds, memory = [], [], None
    for current in range(epochs):
        start_time = time.perf_counter()
        losses.append(engine.run_epoch(current))
        seconds.append(time.perf_counter() - start_time)
        memory = memories_of(engine) if memory is None else memory
    test = srns.evaluate(engine.model, split, protocol="paper", ks=(1, 3), ranks=ranks)
    every_drawn, every_memory = np.concatenate(ranks.gather(drawn), axis=1), np.concatenate(ranks.gather(memory))
    ranks.leave()
    if ranks.rank == 0:
        np.savez(out, drawn=every_drawn, memory=every_memory, losses=losses, test=[test[name] for name in METRICS])
        print(json.dumps({"seconds_per_epoch": float(np.median(seconds))}))


def compared(found: Any, one: Any) -> dict[str, Any]:
    """What a run drew and found beside what one rank did."""
    apart = np.abs(found["losses"] / one["losses"] - 1)
    others = (found["drawn"] != one["drawn"]).sum(axis=1)
    test = dict(zip(METRICS, found["test"].tolist(), strict=True))
    return {
        "losses": found["losses"].tolist(),
        "relative_difference": apart.tolist(),
        "negatives_per_epoch": found["drawn"].shape[1],
        "other_negatives": others.tolist(),
        "memory_slots": found["memory"].size,
        "other_slots_after_first_epoch": missing(found["memory"], one["memory"]),
        "test": test,
        "test_difference": float(np.abs(found["test"] - one["test"]).max()),
        # Epochs are counted from 1; None: the bar holds in all.
        "first_epoch_beyond_loss_bar": next((epoch + 1 for epoch in np.flatnonzero(apart > LOSS_BAR).tolist()), None),
        "first_epoch_with_other_negatives": next((epoch + 1 for epoch in np.flatnonzero(others).tolist()), None),
    }


def since(epoch: int | None) -> str:
    return "never" if epoch is None else f"from epoch {epoch} on"


def report(row: dict[str, Any]) -> None:
    others, n = row["other_negatives"], row["negatives_per_epoch"]
    test = " ".join(f"{name} {value:.4f}" for name, value in row["test"].items())
    print(
        f"  {row['run']}: loss {row['relative_difference'][0]:.1e} from one rank in the first epoch, "
        f"{max(row['relative_difference']):.1e} at most (beyond {LOSS_BAR:.0e} {since(row['first_epoch_beyond_loss_bar'])}); "
        f"other negatives {since(row['first_epoch_with_other_negatives'])}, {others[-1]:,} of {n:,} in the last; "
        f"{row['other_slots_after_first_epoch']} of {row['memory_slots']:,} slots of "
        f"memories differ after the first epoch; test {test}, {row['test_difference']:.4f} apart at most (bar {TEST_BAR}); "
        f"{row['seconds_per_epoch']:.1f} s per epoch at load {row['load']:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers; runs of other data in it are kept")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)  # what each rank runs
    options = parser.parse_args()
    if options.worker:
        dataset, case, epochs, moved, out = options.worker
        worker(dataset, case, int(epochs), bool(int(moved)), Path(out))
        return
    for dataset, case in itertools.product(options.datasets, CASES):
        print(f"{dataset}: {case}, {options.epochs} epochs", flush=True)
        rows: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder, "1 rank.npz")
            for run, size in RUNS.items():
                file, moved = Path(folder, f"{run}.npz"), int("moved" in run)
                printed = run_ranks(size, __file__, "--worker", dataset, case, str(options.epochs), str(moved), str(file))
                timed = {"load": os.getloadavg()[0], **json.loads(printed.strip().splitlines()[-1])}
                with np.load(file) as found, np.load(first) as one:
                    numbers = compared(found, one)
                rows.append({"dataset": dataset, "case": case, "run": run, "ranks": size, **numbers, **timed})
                report(rows[-1])
        if options.out is not None:
            keep(options.out, rows)


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put rows in the place of those of the same data and case."""
    before = json.loads(path.read_text()) if path.exists() else []
    old = [row for row in before if (row["dataset"], row["case"]) != (rows[0]["dataset"], rows[0]["case"])]
    made = {"environment": environment(), "preset": "paper-ml-1m", "seed": 0}
    rows = [row | made for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sorted([*old, *rows], key=lambda row: (row["dataset"], row["case"])), indent=1) + "\n")


if __name__ == "__main__":
    main()
