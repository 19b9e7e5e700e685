"""Selection by variance and by difficulty alone on ml-1m-paper, steadier than one chosen epoch per seed can tell.

    SRNS_DATA=../shared/data python benchmarks/strategies.py [--seeds 6] [--renumber N] [--out FILE]

Trains `--preset paper-ml-1m` with each strategy, measures validation and test after each of the epochs around the best
(14 to 36), chooses nothing, and prints their means per seed, over seeds, and the difference with its standard error. Fresh
candidates come from arcs of the circle of a user's unseen items, in the order of their ids; --renumber gives items other ids
at random, which tells whether that order matters.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

import srns
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import environment
from srns.trainer import Callback, EpochRecord, Trainer

PARTS, METRICS = ("valid", "test"), ("ndcg@1", "ndcg@3", "recall@3")
FIRST, LAST = 14, 36  # epochs
STRATEGIES = ("variance", "difficulty")


class Watcher(Callback):
    """Measures the epochs."""

    def __init__(self, split: srns.Split) -> None:
        self.split = split
        self.trainer: Trainer
        self.found: list[list[float]] = []

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch >= FIRST:
            model = self.trainer.engine.model
            parts = [srns.evaluate(model, self.split, on=part, protocol="paper", ks=(1, 3)) for part in PARTS]
            self.found.append([part[name] for part in parts for name in METRICS])


def renumbered(split: srns.Split, seed: int) -> srns.Split:
    """The same data with the ids of items in another order."""
    order = np.random.default_rng(seed).permutation(split.train.n_items)

    def other(part: Interactions | None) -> Interactions | None:
        if part is None:
            return None
        return Interactions.from_pairs(part.users, order[part.items], user_ids=part.user_ids, item_ids=part.item_ids)

    train = other(split.train)
    assert train is not None
    assert split.negatives is not None
    return replace(split, train=train, valid=other(split.valid), test=other(split.test), negatives=order[split.negatives])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--renumber", type=int, metavar="N", help="seed of another order of the items")
    parser.add_argument("--out", type=Path, help="write the means of each seed as JSON")
    options = parser.parse_args()
    split = srns.load("ml-1m-paper")
    assert isinstance(split, srns.Split)
    if options.renumber is not None:
        split = renumbered(split, options.renumber)
    names = [f"{part} {name}" for part in PARTS for name in METRICS]
    found: dict[str, np.ndarray] = {}
    for strategy in STRATEGIES:
        means = []
        for seed in range(options.seeds):
            values = {"strategy": strategy, "seed": seed, "epochs": LAST, "patience": 0}
            watcher = Watcher(split)
            watcher.trainer = Trainer(make_config(values, preset="paper-ml-1m"), split, callbacks=[watcher])
            watcher.trainer.run()
            means.append(np.mean(watcher.found, axis=0))
            print(
                f"{strategy} seed {seed}: " + "  ".join(f"{n} {v:.4f}" for n, v in zip(names, means[-1], strict=True)),
                flush=True,
            )
        found[strategy] = np.array(means)
    ahead = found["variance"] - found["difficulty"]
    for place, name in enumerate(names):
        shown = ", ".join(f"{strategy} {values[:, place].mean():.4f}" for strategy, values in found.items())
        error = ahead[:, place].std(ddof=1) / np.sqrt(len(ahead)) if len(ahead) > 1 else float("nan")
        print(f"{name}: {shown}; difference {ahead[:, place].mean():+.4f}, standard error {error:.4f}")
    if options.out is not None:
        kept = {strategy: values.tolist() for strategy, values in found.items()}
        record = {"metrics": names, "epochs": [FIRST, LAST], "renumber": options.renumber, "seeds": kept}
        options.out.write_text(json.dumps({**record, "environment": environment()}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
