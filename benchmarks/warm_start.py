"""The adversarial baselines of the paper as it trains them: from a model that was trained with uniform negatives.

    SRNS_DATA=../shared/data python benchmarks/warm_start.py [--samplers irgan,rns_as,advir] [--seeds 5] [--set patience=20]

For each seed, a run with uniform negatives (kept in --folder, and used again where it is there), then one of each sampler that
starts from it. The epoch is chosen on validation; test is looked at once per run. Prints each run, and means beside the
published values (table 3).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from srns import artifacts
from srns.config import make_config
from srns.runs import environment, train_run

METRICS = ("ndcg@1", "ndcg@3", "recall@3")
PUBLISHED = {
    "ml-1m-paper": {
        "uniform": (0.1744, 0.2846, 0.3663),
        "irgan": (0.1755, 0.2877, 0.3708),
        "rns_as": (0.1823, 0.2932, 0.3754),
        "advir": (0.1790, 0.2941, 0.3792),
        "srns": (0.1933, 0.3070, 0.3912),
    }
}


def run_of(options: argparse.Namespace, sampler: str, seed: int, values: dict[str, Any]) -> dict[str, Any]:
    """The finished run of a sampler and seed, trained now unless it is there."""
    folder = options.folder / f"{sampler}-{seed}"
    if not (folder / artifacts.MODEL).exists():
        config = make_config({**values, "sampler": sampler, "seed": seed}, preset=options.preset)
        train_run(options.dataset, config, out=folder, resume=True)
    run = artifacts.read_run(folder)
    valid = next((each["valid"] for each in run["history"] if each["epoch"] == run["best_epoch"]), run.get("start", {}))
    shown = "  ".join(f"{name} {run['metrics'][name]:.4f}" for name in METRICS)
    chosen = "  ".join(f"{valid[name]:.4f}" for name in METRICS if name in valid)
    epochs = f"epoch {run['best_epoch']} of {run['epochs']}, {run['seconds_per_epoch']:.2f} s each"
    print(f"{sampler} seed {seed}: {shown}  (valid {chosen}; {epochs})", flush=True)
    kept = ("config", "metrics", "best_epoch", "epochs", "seconds_per_epoch", "engine")
    return {"run": str(folder), "valid": valid, **{name: run[name] for name in kept}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--preset", default="paper-ml-1m")
    parser.add_argument("--samplers", default="irgan,rns_as,advir")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/warm-start"))
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="settings")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    values = dict(setting.split("=", 1) for setting in options.settings)
    runs: dict[str, list[dict[str, Any]]] = {"uniform": []}
    for seed in range(options.seeds):
        runs["uniform"].append(run_of(options, "uniform", seed, {}))
        for sampler in options.samplers.split(","):
            start = {**values, "init": runs["uniform"][-1]["run"]}
            runs.setdefault(sampler, []).append(run_of(options, sampler, seed, start))
    for sampler, each in runs.items():
        table = np.array([[run["metrics"][name] for name in METRICS] for run in each])
        spread = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.full(len(METRICS), np.nan)
        parts = [f"{name} {mean:.4f} +- {s:.4f}" for name, mean, s in zip(METRICS, table.mean(axis=0), spread, strict=True)]
        published = PUBLISHED.get(options.dataset, {}).get(sampler)
        beside = "" if published is None else "  published " + " ".join(f"{value:.4f}" for value in published)
        print(f"{sampler} mean of {len(each)}: {'  '.join(parts)}{beside}")
    if options.out is not None:
        options.out.write_text(json.dumps({"dataset": options.dataset, "environment": environment(), "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
