"""GMF from one seed on the fused and on the torch engine: negatives, loss curves and test metrics beside each other.

    SRNS_DATA=../shared/data python benchmarks/engines.py [--datasets ml-100k ml-1m-paper] [--epochs 10] [--out FILE]

Three settings: the paper's on ML-1m with uniform negatives, the default recipe, which is SRNS, and SRNS as in the paper. Which
negatives were drawn shows in the loss of the first epoch and, with SRNS, in the memories that it leaves: these are compared
item by item. How sensitive a setting is to rounding at all is told by a third run, or by more (`--moves`): the fused engine
again, from parameters that are moved by a ten-millionth of themselves, the rounding of a float32.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import srns
from srns.engines import make_engine
from srns.presets import make_config
from srns.runs import environment, prepare

CASES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "uniform, the paper's settings": ("paper-ml-1m", {"sampler": "uniform"}),
    "SRNS, default recipe": (None, {}),
    "SRNS, the paper's settings": ("paper-ml-1m", {}),
}
DATASETS: dict[str, dict[str, Any]] = {"ml-100k": {"min_weight": 4.0, "min_user": 5}, "ml-1m-paper": {}}
ROUNDING = 1e-7
LIMIT = 1e-3
METRICS = ("ndcg@1", "ndcg@3", "recall@3")


def memories_of(engine: Any) -> Any:
    """Which items each user's memory holds."""
    return engine.memories()["memory"].astype(np.int64) if engine.memories() else np.zeros((0, 0))


def missing(memory: Any, other: Any) -> int:
    """How many items of a memory (U, S1) are not in the other of the same user."""
    return int((~(memory[:, :, None] == other[:, None, :]).any(axis=2)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--moves", type=int, default=1, help="how many starts are moved")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    runs = {"fused": None, "torch": None, **{f"fused, moved start {move}": move for move in range(options.moves)}}
    rows = []
    for dataset, case in itertools.product(options.datasets, options.cases):
        preset, values = CASES[case]
        split = prepare(dataset, make_config(DATASETS[dataset]))
        losses, tests, memories, seconds = {}, {}, {}, {}
        for run, move in runs.items():
            engine: Any = make_engine(make_config({"engine": run.partition(",")[0], **values}, preset=preset), split.train)
            if move is not None:
                rng = np.random.default_rng(move)
                moved = {
                    name: (tensor * (1 + ROUNDING * rng.standard_normal(tensor.shape))).astype(np.float32)
                    for name, tensor in engine.model.tensors().items()
                }
                engine.start_from(moved)
            losses[run], seconds[run] = [], []
            for epoch in range(options.epochs):
                start = time.perf_counter()
                losses[run].append(engine.run_epoch(epoch))
                seconds[run].append(time.perf_counter() - start)
                if epoch == 0:
                    memories[run] = memories_of(engine)
            tests[run] = srns.evaluate(engine.model, split, protocol="paper", ks=(1, 3))
        print(f"{dataset}: {case}")
        for run in runs:
            apart = np.abs(np.array(losses[run]) / np.array(losses["fused"]) - 1)
            found = " ".join(f"{metric} {tests[run][metric]:.4f}" for metric in METRICS)
            other = missing(memories[run], memories["fused"])
            print(
                f"  {run}: loss {apart[0]:.1e} from fused in the first epoch, {apart.max():.1e} at most in {options.epochs} "
                f"(limit {LIMIT:.0e}); {other:,} of {memories[run].size:,} slots of memories differ after the first; "
                f"test {found}; {np.median(seconds[run]):.2f} s per epoch",
                flush=True,
            )
            slots = {"slots": memories[run].size, "other_slots": other}
            metrics = {name: tests[run][name] for name in METRICS}
            row = {"dataset": dataset, "case": case, "run": run, "losses": losses[run], "apart": apart.tolist()}
            rows.append({**row, **slots, "test": metrics, "seconds": seconds[run]})
    if options.out is not None:
        record = {"epochs": options.epochs, "rounding": ROUNDING, "environment": environment(), "results": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
