"""Uniform against SRNS negatives with each scorer, as in figure 4(g) of the paper: several seeds, paired intervals.

    SRNS_DATA=../shared/data python benchmarks/scorers.py [--scorers mlp lightgcn] [--seeds 5] [--jobs 2] [--out results.json]

Settings are those of the paper on ML-1m (F = 32, S1 = 8, S2 = 64, tau = 10, alpha = 5, BPR with one negative) but for SETTINGS,
which were chosen on validation data with uniform negatives; both samplers get the same. Runs side by side take one thread each.
A run that is in --out already is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

METRICS = ("ndcg@1", "ndcg@3", "recall@3")
SETTINGS: dict[str, dict[str, Any]] = {
    "gmf": {"engine": "fused", "epochs": 100, "patience": 20},
    "mlp": {"hidden_layers": 1, "epochs": 40, "init_std": 0.3, "learning_rate": 0.01, "l2": 1e-4, "batch_size": 4096},
    "lightgcn": {"propagation_layers": 2, "epochs": 24, "init_std": 0.1, "learning_rate": 0.01, "l2": 1e-4, "batch_size": 4096},
}


def train(scorer: str, sampler: str, seed: int, dataset: str, more: dict[str, Any]) -> dict[str, Any]:
    """One run: what `srns train` does, without a folder, and with the metrics of each user."""
    import srns
    from srns.runs import environment

    values = {"scorer": scorer, "sampler": sampler, "seed": seed, "threads": 1, **SETTINGS[scorer], **more}
    config = srns.make_config(values, preset="paper-ml-1m")
    split = srns.load(dataset)
    start = time.perf_counter()
    training = srns.Trainer(config, split).run()
    found = srns.evaluate(training.model, split, on="test", protocol="paper", ks=(1, 3))
    best = max((record.valid for record in training.history if record.valid), key=lambda valid: valid[config.metric])
    return {
        "scorer": scorer,
        "sampler": sampler,
        "seed": seed,
        "settings": {**SETTINGS[scorer], **more},
        "test": {name: found[name] for name in METRICS},
        "valid": {name: best[name] for name in METRICS},
        "best_epoch": training.best_epoch,
        "epochs": len(training.history),
        "seconds_per_epoch": training.seconds_per_epoch,
        "seconds": time.perf_counter() - start,
        "environment": environment(),
        "per_user": found.per_user["ndcg@3"].tolist(),
    }


def interval(runs: list[dict[str, Any]], scorer: str) -> Any:
    """SRNS minus uniform in NDCG@3, over users, each user's mean over seeds."""
    from srns.evaluation import Evaluation, paired_bootstrap

    def of(sampler: str) -> Evaluation:
        rows = np.array([run["per_user"] for run in runs if run["scorer"] == scorer and run["sampler"] == sampler])
        return Evaluation(
            {}, per_user={"ndcg@3": rows.mean(axis=0)}, users=np.arange(rows.shape[1]), protocol="paper", on="test"
        )

    return paired_bootstrap(of("srns"), of("uniform"), "ndcg@3")


def report(runs: list[dict[str, Any]], scorers: list[str]) -> None:
    for scorer in scorers:
        for sampler in ("uniform", "srns"):
            mine = [run for run in runs if run["scorer"] == scorer and run["sampler"] == sampler]
            if not mine:
                continue
            tests = np.array([[run["test"][name] for name in METRICS] for run in mine])
            means = " ".join(
                f"{name} {mean:.4f} +- {sd:.4f}" for name, mean, sd in zip(METRICS, tests.mean(0), tests.std(0), strict=True)
            )
            epochs, seconds = [run["best_epoch"] for run in mine], np.median([run["seconds_per_epoch"] for run in mine])
            print(f"{scorer} {sampler}: {means} ({len(mine)} seeds, best epochs {epochs}, {seconds:.1f} s per epoch)")
        if {run["sampler"] for run in runs if run["scorer"] == scorer} == {"uniform", "srns"}:
            found = interval(runs, scorer)
            print(f"{scorer}: srns - uniform in ndcg@3 {found.difference:+.4f} ({found.low:+.4f} to {found.high:+.4f}, 95%)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scorers", nargs="+", default=["mlp", "lightgcn"], choices=SETTINGS)
    parser.add_argument("--samplers", nargs="+", default=["uniform", "srns"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("scorers.jsonl"))
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="FIELD=VALUE", help="other settings, to look at on validation data"
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # what a job runs
    options = parser.parse_args()
    more = dict(setting.split("=", 1) for setting in options.set)
    if options.one:
        scorer, sampler, seed = options.one
        print(json.dumps(train(scorer, sampler, int(seed), options.dataset, more)))
        return
    runs = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(run["scorer"], run["sampler"], run["seed"]) for run in runs}
    wanted = [
        (scorer, sampler, seed) for seed in range(options.seeds) for scorer in options.scorers for sampler in options.samplers
    ]

    def job(one: tuple[str, str, int]) -> None:
        command = [sys.executable, __file__, "--dataset", options.dataset, "--one", *map(str, one), "--set", *options.set]
        run = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        with options.out.open("a") as file:
            file.write(json.dumps(run) + "\n")
        print(*one, run["valid"], "best epoch", run["best_epoch"], f"{run['seconds']:.0f} s", flush=True)
        runs.append(run)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(job, [one for one in wanted if one not in done]))
    report(runs, options.scorers)


if __name__ == "__main__":
    main()
