"""The eight models that the paper's authors published, on their own split of MovieLens-1m, under the paper's protocol.

    SRNS_DATA=../shared/data python benchmarks/published_models.py [--beside 5 [--out FILE]]

needs ml-1m-paper.npz and ml-1m-paper-models.npz in that folder, and prints the table of docs/evaluation.md. With --beside, so
many seeds of `--preset paper-ml-1m` are trained, and every epoch is measured on test, of which nothing is chosen: how far was
the published SRNS model trained, and is its result one that models trained as far give here? --out keeps every epoch as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np

import srns
from srns.presets import make_config
from srns.runs import environment
from srns.trainer import Callback, EpochRecord, Trainer

METRICS = ("ndcg@1", "ndcg@3", "recall@3")
EPOCHS = 40  # beyond them models are trained further than the published one
ALIKE = 0.05  # how far apart lengths may be to call two models trained as far


def lengths(model: srns.GMF) -> np.ndarray:
    """Mean lengths of user and item rows, and the mean size of beta's numbers, all of which grow in training."""
    rows = [float(np.linalg.norm(part, axis=1).mean()) for part in (model.users, model.items)]
    return np.array([*rows, float(np.abs(model.beta).mean())])


def measured(model: srns.GMF, split: srns.Split) -> list[float]:
    found = srns.evaluate(model, split, on="test", protocol="paper", ks=(1, 3))
    return [found[name] for name in METRICS]


class Watcher(Callback):
    """Measures every epoch."""

    def __init__(self, split: srns.Split) -> None:
        self.split = split
        self.trainer: Trainer
        self.lengths: list[np.ndarray] = []
        self.metrics: list[list[float]] = []

    def on_epoch(self, record: EpochRecord) -> None:
        model = self.trainer.engine.model
        self.lengths.append(lengths(model))
        self.metrics.append(measured(model, self.split))


def beside(published: srns.GMF, split: srns.Split, seeds: int, out: Path | None) -> None:
    print("\nthe published SRNS model has rows of {:.2f} and {:.2f}, beta of {:.2f}".format(*lengths(published)))
    theirs, alike, kept = measured(published, split), [], []
    for seed in range(seeds):
        watcher = Watcher(split)
        config = make_config({"epochs": EPOCHS, "patience": EPOCHS, "seed": seed}, preset="paper-ml-1m")
        watcher.trainer = Trainer(config, split, callbacks=[watcher])
        watcher.trainer.run()
        near = np.all(np.abs(np.array(watcher.lengths) / lengths(published) - 1) < ALIKE, axis=1).nonzero()[0]
        kept.append({"lengths": np.array(watcher.lengths).tolist(), "metrics": watcher.metrics, "alike": (near + 1).tolist()})
        if not len(near):
            print(f"seed {seed}: as long within {ALIKE:.0%} after no epoch", flush=True)
            continue
        alike.append(np.array(watcher.metrics)[near])
        mean = "  ".join(f"{name} {value:.4f}" for name, value in zip(METRICS, alike[-1].mean(axis=0), strict=True))
        epochs = ", ".join(map(str, near + 1))
        print(f"seed {seed}: as long within {ALIKE:.0%} after epochs {epochs}; test {mean}", flush=True)
    every = np.concatenate(alike or [np.empty((0, len(METRICS)))])
    for k, name in enumerate(METRICS if len(alike) > 1 else ()):
        seed_means = [each[:, k].mean() for each in alike]  # epochs of one seed are alike; seeds are not
        print(
            f"{name:9} of these {len(every)} epochs: {every[:, k].mean():.4f}, standard deviation "
            f"{every[:, k].std(ddof=1):.4f}, of seed means {np.std(seed_means, ddof=1):.4f}; published {theirs[k]:.4f}, "
            f"which {np.mean(every[:, k] >= theirs[k]):.0%} of them reach"
        )
    if out is not None:
        record = {"metrics": METRICS, "published": {"lengths": lengths(published).tolist(), "metrics": theirs}}
        out.write_text(json.dumps({**record, "seeds": kept, "environment": environment()}) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    folder = Path(os.environ.get("SRNS_DATA", ""))
    models = folder / "ml-1m-paper-models.npz"
    if not models.exists():
        sys.exit("SRNS_DATA does not name a folder with ml-1m-paper-models.npz")
    split = srns.load("ml-1m-paper")
    assert isinstance(split, srns.Split)
    with np.load(models, allow_pickle=False) as arrays:
        for name in ("enmf", "uniform", "nncf", "aobpr", "irgan", "rns", "advir", "srns"):
            items = arrays[f"{name}_items"][: split.train.n_items]  # enmf has one unused row
            model = srns.GMF(arrays[f"{name}_users"], items, arrays[f"{name}_beta"])
            print("{:8} N@1 {:.4f}  N@3 {:.4f}  R@3 {:.4f}".format(name, *measured(model, split)))
    if options.beside:
        beside(model, split, options.beside, options.out)


if __name__ == "__main__":
    main()
