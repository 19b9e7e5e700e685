"""Test accuracy over seeds, as docs/results.md has it.

    SRNS_DATA=../shared/data python benchmarks/accuracy.py [--dataset ml-1m-paper] [--seeds 5] [--preset NAME] [--set dim=64]

The epoch is chosen on validation; test is looked at once per seed. Prints each seed, and the mean with its standard error.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from srns.presets import make_config
from srns.runs import environment, train_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--preset")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="settings")
    parser.add_argument("--metrics", default="ndcg@1,ndcg@3,recall@3")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    metrics = options.metrics.split(",")
    values = dict(setting.split("=", 1) for setting in options.settings)
    runs = []
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            config = make_config({**values, "seed": seed}, preset=options.preset)
            run = train_run(options.dataset, config, out=Path(folder) / "run")
        run["valid"] = next((each["valid"] for each in run["history"] if each["epoch"] == run["best_epoch"]), {})
        kept = ("config", "metrics", "valid", "best_epoch", "epochs", "seconds_per_epoch", "protocol")
        runs.append({name: run[name] for name in kept})
        shown = "  ".join(f"{name} {run['metrics'][name]:.4f}" for name in metrics)
        chosen = f"valid {config.metric} {run['valid'].get(config.metric, float('nan')):.4f}"
        epoch = f"epoch {run['best_epoch']} of {run['epochs']}, {run['seconds_per_epoch']:.3f} s each"
        print(f"seed {seed}: {shown}  ({chosen}, {epoch})", flush=True)
    table = np.array([[run["metrics"][name] for name in metrics] for run in runs])
    spread = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.full(len(metrics), np.nan)
    print(
        "mean:   "
        + "  ".join(f"{name} {m:.4f} +- {s:.4f}" for name, m, s in zip(metrics, table.mean(axis=0), spread, strict=True))
    )
    if options.out is not None:
        options.out.write_text(json.dumps({"dataset": options.dataset, "environment": environment(), "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
