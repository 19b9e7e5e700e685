"""Every method on the same data: the paper's table 3 with its own hyper-parameters, and the whole field at its best.

    SRNS_DATA=../shared/data python benchmarks/field.py paper [--methods aobpr enmf ...] [--seeds 5] [--jobs 2]
    SRNS_DATA=../shared/data python benchmarks/field.py best [--datasets ml-1m-paper ...] [--methods ...] [--seeds 5]

`paper` takes the values of the preset (its tables 5 and 6). `best` tries the settings of BEST with seed 0, takes those with the
highest validation NDCG@10 under full ranking, and runs these with the other seeds. Test data are looked at by the runs whose
numbers are reported, and choose nothing. Adversarial methods start from a model trained with uniform negatives from the same
seed. Each run is a line of --out (docs/field/runs.jsonl), and one that is there is not run again; metrics of users, which the
intervals are made of, lie beside it in --users, which is not part of the repository. `--report` writes the tables from there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

DATASETS = ("ml-1m-paper", "beauty", "sports-outdoors", "pinterest")
PAPER = ("enmf", "uniform", "nncf", "aobpr", "irgan", "rns_as", "advir", "srns")
PUBLISHED = {  # table 3, Movielens-1m
    "enmf": (0.1846, 0.3021, 0.3882), "uniform": (0.1744, 0.2846, 0.3663), "nncf": (0.0829, 0.1478, 0.1971),
    "aobpr": (0.1802, 0.2905, 0.3728), "irgan": (0.1755, 0.2877, 0.3708), "rns_as": (0.1823, 0.2932, 0.3754),
    "advir": (0.1790, 0.2941, 0.3792), "srns": (0.1933, 0.3070, 0.3912),
}  # fmt: skip
ADVERSARIAL = ("irgan", "rns_as", "advir")
# Ends the presets leave open: adversarial training changes little after its first epochs, which take long; NNCF overfits early.
SHORTER = {"irgan": {"epochs": 3}, "rns_as": {"epochs": 10}, "advir": {"epochs": 10}, "nncf": {"patience": 8}}
CLASSICAL = ("popularity", "ease", "als")
PAPER_METRICS, FULL_METRICS = ("ndcg@1", "ndcg@3", "recall@3"), ("ndcg@10", "recall@10", "ndcg@20", "recall@20")


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """All combinations."""
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


# Adversarial methods go on from a model that is trained to its end, in small steps.
SHORT: dict[str, list[Any]] = {"loss": ["bpr"], "learning_rate": [0.0005], "epochs": [3]}
# What `best` tries; all else is the default recipe, which was found with srns.
BEST: dict[str, list[dict[str, Any]]] = {
    "popularity": [{}],
    "ease": grid(l2=[50, 200, 1000]),
    "als": grid(dim=[64, 128], l2=[1, 30], confidence=[10, 40]),
    "uniform": grid(negatives=[16, 64]),
    "popularity_sampled": grid(negatives=[16], power=[0.5, 0.75]),
    "srns": grid(temperature=[1.0, 2.0, 4.0]),
    "aobpr": grid(negatives=[4], rank_scale=[200.0, 1000.0]),
    "dns": grid(candidates=[8, 32], negatives=[4]),
    "dns_mn": [{"candidates": 32, "top": 16, "negatives": 8}, {"candidates": 64, "top": 16, "negatives": 8}],
    "softmax": grid(candidates=[64], negatives=[16], temperature=[1.0, 2.0]),
    "bns": grid(candidates=[8], negatives=[1], risk_weight=[1.0, 5.0], l2=["auto", 0.02]),
    "ahns": grid(candidates=[16], negatives=[4], hardness_scale=[0.5, 2.0]),
    "enmf": [{"learning_rate": 0.01, "l2": 1e-4, "negative_weight": c, "learn_beta": True} for c in (0.05, 0.3)],
    "nncf": grid(shared_negatives=[256], l2=["auto", 0.02]),
    "adasir": grid(l2=["auto", 0.02]),
    "mixgcf": grid(candidates=[16], l2=["auto", 0.02]),
    "in_batch": grid(log_q=[True], batch_size=[256], l2=["auto", 0.02]),
    "rns_as": grid(**SHORT, l2=["auto", 0.02]),
    "advir": grid(**SHORT, perturbation=[0.01], l2=["auto", 0.02]),
    "dens": grid(dim=[64], epochs=[10], warmup_epochs=[10], l2=["auto", 0.02]),
    "irgan": grid(**SHORT),
}


def config_of(method: str, recipe: str, setting: dict[str, Any], seed: int) -> Any:
    import srns

    values: dict[str, Any] = {"seed": seed, "threads": 1, **setting}
    if method in CLASSICAL:
        values["scorer"] = method
    else:
        values["sampler"] = {"popularity_sampled": "popularity"}.get(method, method)
    return srns.make_config(values, preset="paper-ml-1m" if recipe == "paper" else None)


def train(dataset: str, method: str, recipe: str, setting: dict[str, Any], seed: int, users: Path) -> dict[str, Any]:
    """One run, its validation metrics and, under both protocols, its test metrics."""
    import srns
    from srns.runs import environment, prepare

    config = config_of(method, recipe, setting, seed)
    split = prepare(dataset, config)
    start = time.perf_counter()
    init = None
    if method in ADVERSARIAL:
        init = srns.Trainer(config_of("uniform", recipe, {}, seed), split).run().model
    training = srns.Trainer(config, split, init=init).run()
    best = max((r.valid for r in training.history if r.valid), key=lambda valid: valid[config.metric])
    found = {"full": srns.evaluate(training.model, split, on="test", protocol="full", ks=(10, 20))}
    if np.all(np.diff(split.test.indptr) <= 1):  # the paper's protocol has one item per user
        found["paper"] = srns.evaluate(training.model, split, on="test", protocol="paper", ks=(1, 3))
    key = run_key(dataset, method, recipe, setting, seed)
    users.mkdir(parents=True, exist_ok=True)
    np.savez(users / f"{key}.npz", **{"full": found["full"].per_user["ndcg@10"],
             **({"paper": found["paper"].per_user["ndcg@3"]} if "paper" in found else {})})  # fmt: skip
    valid_full = srns.evaluate(training.model, split, on="valid", protocol="full", ks=(10,))["ndcg@10"]
    return {
        "key": key,
        "dataset": dataset,
        "method": method,
        "recipe": recipe,
        "setting": setting,
        "seed": seed,
        "valid": {**best, "full ndcg@10": valid_full},
        "test": {name: {k: float(v) for k, v in each.items()} for name, each in found.items()},
        "best_epoch": training.best_epoch,
        "epochs": len(training.history),
        "seconds_per_epoch": training.seconds_per_epoch,
        "seconds": time.perf_counter() - start,
        "config": config.model_dump(mode="json", exclude_defaults=True),
        "environment": environment(),
        "commit": subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout[:-1],
    }


def run_key(dataset: str, method: str, recipe: str, setting: dict[str, Any], seed: int) -> str:
    named = "_".join(f"{name}={value}" for name, value in sorted(setting.items()))
    return f"{dataset}-{recipe}-{method}-{named or 'default'}-{seed}"


class Store:
    """The runs that are there, and the means to make more of them, several at once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        text = options.out.read_text().splitlines() if options.out.exists() else []
        self.runs = {run["key"]: run for run in map(json.loads, text)}

    def make(self, wanted: list[tuple[str, str, str, dict[str, Any], int]]) -> None:
        todo = [one for one in wanted if run_key(*one) not in self.runs]
        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(self._make_one, todo))

    def _make_one(self, one: tuple[str, str, str, dict[str, Any], int]) -> None:
        command = [
            sys.executable,
            "-W",
            "ignore",
            __file__,
            one[2],
            "--one",
            json.dumps(one),
            "--users",
            str(self.options.users),
        ]
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # one thread each, as there are several at once
        process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **alone})
        if process.returncode:
            print("failed:", run_key(*one), process.stderr.strip().splitlines()[-1:], flush=True)
            return
        run = json.loads(process.stdout.splitlines()[-1])
        self.runs[run["key"]] = run
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        with self.options.out.open("a") as file:
            file.write(json.dumps(run) + "\n")
        shown = run["test"].get("paper", run["test"]["full"])
        numbers = " ".join(f"{value:.4f}" for name, value in shown.items() if name in (*PAPER_METRICS, *FULL_METRICS[:2]))
        chosen = f"valid {run['valid']['full ndcg@10']:.4f}, epoch {run['best_epoch']} of {run['epochs']}"
        print(f"{run['key']}: {numbers} ({chosen}, {run['seconds']:.0f} s)", flush=True)

    def of(self, dataset: str, method: str, recipe: str) -> list[dict[str, Any]]:
        """The runs of one method; where several settings were tried, those of the best by validation with seed 0."""
        mine = [r for r in self.runs.values() if (r["dataset"], r["method"], r["recipe"]) == (dataset, method, recipe)]
        first = [run for run in mine if run["seed"] == 0]
        if not first:
            return []
        best = max(first, key=lambda run: run["valid"].get("full ndcg@10", 0))["setting"]
        return sorted((run for run in mine if run["setting"] == best), key=lambda run: run["seed"])


def interval(runs: list[dict[str, Any]], others: list[dict[str, Any]], part: str, users: Path) -> str:
    """The difference of two methods over users, each user's mean over the seeds that both have; and its 95% interval."""
    from srns.evaluation import Evaluation, paired_bootstrap

    seeds = sorted({run["seed"] for run in runs} & {run["seed"] for run in others})

    def of(mine: list[dict[str, Any]]) -> Evaluation:
        rows = [np.load(users / f"{run['key']}.npz")[part] for run in mine if run["seed"] in seeds]
        mean = np.mean(rows, axis=0)
        return Evaluation({}, per_user={"metric": mean}, users=np.arange(len(mean)), protocol="full", on="test")

    try:
        found = paired_bootstrap(of(runs), of(others), "metric", resamples=2000)
    except OSError:
        return ""
    return f"{found.difference:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def row(runs: list[dict[str, Any]], part: str, metrics: tuple[str, ...]) -> list[str]:
    """Means over seeds, with their standard errors where there are several."""
    values = np.array([[run["test"][part][name] for name in metrics] for run in runs])
    means = [f"{mean:.4f}"[1:] for mean in values.mean(axis=0)]
    if len(runs) == 1:
        return means
    errors = values.std(axis=0, ddof=1) / np.sqrt(len(runs))
    return [f"{mean} ± {error:.4f}".replace("0.", ".") for mean, error in zip(means, errors, strict=True)]


def report(store: Store) -> str:
    """Both tables in Markdown."""
    lines = ["## The paper's table 3: ML-1m, its split, its protocol, its hyper-parameters", ""]
    lines += [
        "| method | N@1 | N@3 | R@3 | published | furthest behind | best epochs of the seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in PAPER:
        runs = store.of("ml-1m-paper", method, "paper")
        if runs:
            means = row(runs, "paper", PAPER_METRICS)
            behind = min(float(mean.split()[0]) - there for mean, there in zip(means, PUBLISHED[method], strict=True))
            published = " ".join(f"{value:.4f}"[1:] for value in PUBLISHED[method])
            epochs = ", ".join(str(run["best_epoch"]) for run in runs)
            lines.append(f"| {method} | {' | '.join(means)} | {published} | {behind:+.4f} | {epochs} |")
    for dataset in DATASETS:
        rows = []
        srns = store.of(dataset, "srns", "best")
        for method in BEST:
            runs = store.of(dataset, method, "best")
            if not runs:
                continue
            paper = row(runs, "paper", PAPER_METRICS) if "paper" in runs[0]["test"] else [""] * 3
            setting = " ".join(f"{name}={value}" for name, value in runs[0]["setting"].items()) or "default"
            full, short = (
                interval(runs, srns, part, store.options.users) if srns and method != "srns" and part in runs[0]["test"] else ""
                for part in ("full", "paper")
            )
            cells = [method, setting, *row(runs, "full", FULL_METRICS), full, *paper, short, str(len(runs))]
            rows.append(
                (
                    float(cells[2].split()[0]),
                    "| " + " | ".join([*cells, f"{np.median([r['seconds'] for r in runs]):.0f}"]) + " |",
                )
            )
        if rows:
            head = ["method", "chosen on validation", *(f"{m[0].upper()}@{m.split('@')[1]}" for m in FULL_METRICS)]
            head += [
                "N@10 less that of srns (95%)",
                "N@1, 1 + 100",
                "N@3",
                "R@3",
                "N@3 less that of srns (95%)",
                "seeds",
                "seconds",
            ]
            lines += ["", f"## {dataset}, test", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
            lines += [line for _, line in sorted(rows, reverse=True)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=["paper", "best"])
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/field/runs.jsonl"))
    parser.add_argument("--users", type=Path, default=Path("runs/field"), help="metrics of each user, for the intervals")
    parser.add_argument("--report", type=Path, help="write the tables to this file, and run nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # what a job runs
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(*json.loads(options.one), users=options.users)))
        return
    store = Store(options)
    if options.report:
        options.report.write_text(report(store))
        return
    if options.recipe == "paper":
        methods = options.methods or PAPER
        wanted = [(m, SHORTER.get(m, {}), seed) for seed in range(options.seeds) for m in methods]
        store.make([("ml-1m-paper", m, "paper", setting, seed) for m, setting, seed in wanted])
    for dataset in options.datasets if options.recipe == "best" else ():
        methods = options.methods or list(BEST)
        store.make([(dataset, method, "best", setting, 0) for method in methods for setting in BEST[method]])
        chosen = {method: store.of(dataset, method, "best") for method in methods}
        once = ("popularity", "ease")  # nothing random about them
        more = [m for m, runs in chosen.items() if runs and m not in once]
        store.make([(dataset, m, "best", chosen[m][0]["setting"], seed) for seed in range(1, options.seeds) for m in more])
    print(report(store))


if __name__ == "__main__":
    main()
