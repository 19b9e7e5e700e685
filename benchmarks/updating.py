"""How much of a full retrain does an update give, and in how much of its time?

    SRNS_DATA=../shared/data python benchmarks/updating.py --out docs/recommending/updating.json
    SRNS_DATA=../shared/data python benchmarks/updating.py --datasets ml-100k --epochs 2 3 --rates .004 .008

A model learns from the first 90% of interactions; the last 10% are new. `srns.update` and a training from nothing then learn
from the same interactions, and both are measured on the same test items, which neither has learnt from. ml-100k is cut at a
moment in time, after which most users are new. The other files know no common clock, only the order within a user: there the
last tenth of each user's history is new. With several epochs or rates, the choice is to be made by the validation column.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import srns
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import environment

VALUES = {"ml-100k": {"min_weight": 4.0, "min_user": 5}, "beauty": {}, "sports-outdoors": {}}
METRICS = ("ndcg@10", "recall@10")
SHARE = 0.9


class Row(NamedTuple):
    """An update beside the retrain: metrics of valid and test, update first, and seconds of both, by the clock and of processor
    time, which tells more where others use the machine; and of the epochs alone, since an update is validated once and a
    training after each epoch, to choose among them."""

    valid: tuple[float, float]
    test: dict[str, tuple[float, float]]
    seconds: tuple[float, float]
    processor: tuple[float, float]
    epochs: tuple[float, float]


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    return time.perf_counter() - start[0], time.process_time() - start[1]


def alone(part: Interactions) -> Interactions:
    return Interactions.from_pairs(part.user_ids.take(part.users), part.item_ids.take(part.items), time=part.time)


def in_two(name: str, users: int) -> tuple[Interactions, Interactions]:
    """The first interactions and the last, each with no user or item that does not occur in it, of so many users (0: all)."""
    data = srns.load(name, **VALUES[name])
    if 0 < users < data.n_users:
        some = np.random.default_rng(0).permutation(data.n_users) < users
        data = alone(data.select(some[data.users]))
    when = data.time if name == "ml-100k" else (data.time + 0.5) / data.user_counts[data.users]
    first = np.zeros(len(data), bool)
    first[np.lexsort((data.items, data.users, when))[: int(SHARE * len(data))]] = True
    return alone(data.select(first)), alone(data.select(~first))


def compare(name: str, users: int, values: dict[str, int], variants: list[tuple[int, float]]) -> dict[tuple[int, float], Row]:
    first, last = in_two(name, users)
    model = srns.Recommender(**values).fit(srns.make_split(first, "leave-one-out"))
    found, whole, retrain = {}, None, (0.0, 0.0)
    for variant in variants:
        start = now()
        asked = {name: value for name, value in zip(("epochs", "learning_rate"), variant, strict=True) if value}
        newer = srns.update(model, last, split="leave-one-out", **asked)
        took = since(start)
        if whole is None:
            start = now()
            whole = srns.Trainer(make_config(values), newer.split_).run()
            retrain = since(start)
        both = [
            {on: srns.evaluate(each, newer.split_, on=on, ks=(10,)) for on in ("valid", "test")}
            for each in (newer.model_, whole.model)
        ]
        valid = both[0]["valid"]["ndcg@10"], both[1]["valid"]["ndcg@10"]
        test = {metric: (both[0]["test"][metric], both[1]["test"][metric]) for metric in METRICS}
        epochs = tuple(sum(record.seconds for record in each.history) for each in (newer.training_, whole))
        found[variant] = Row(valid, test, (took[0], retrain[0]), (took[1], retrain[1]), epochs)
        used = f"{newer.config.epochs} epochs at {newer.config.learning_rate:.4f}"
        print(f"  {name} seed {values['seed']}, {used}: {shown([found[variant]])}; {newer.updated_['new']}", flush=True)
    return found


def shown(rows: list[Row]) -> str:
    valid = np.mean([row.valid for row in rows], axis=0)
    parts = [f"valid ndcg@10 {valid[0]:.4f} / {valid[1]:.4f} = {valid[0] / valid[1]:.1%}"]
    for metric in METRICS:
        test = np.mean([row.test[metric] for row in rows], axis=0)
        parts.append(f"test {metric} {test[0]:.4f} / {test[1]:.4f} = {test[0] / test[1]:.1%}")
    for kind in ("seconds", "processor", "epochs"):
        both = np.sum([getattr(row, kind) for row in rows], axis=0)
        named = {"seconds": "seconds", "processor": "of processor time", "epochs": "of epochs alone"}[kind]
        parts.append(f"{named} {both[0]:.1f} / {both[1]:.1f} = {both[0] / both[1]:.1%}")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(VALUES), choices=list(VALUES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--users", type=int, default=0, help="take only so many users, at random; 0: all")
    parser.add_argument("--threads", type=int, default=0, help="of both; 1 where others use the machine")
    parser.add_argument("--epochs", type=int, nargs="+", default=[0], help="of the update; 0: its default")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0], help="step sizes of the update; 0: its default")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    variants = list(itertools.product(options.epochs, options.rates))
    for name in options.datasets:
        values = [{"seed": seed, "threads": options.threads} for seed in range(options.seeds)]
        by_seed = [compare(name, options.users, each, variants) for each in values]
        for epochs, rate in variants:
            rows = [found[epochs, rate]._asdict() for found in by_seed]
            asked = {
                "epochs": epochs or "default",
                "rate": rate or "default",
                "users": options.users or "all",
                "seeds": options.seeds,
            }
            results.append({"dataset": name, "read with": VALUES[name], **asked, "update, retrain, by seed": rows})
            print(
                f"{name}, {epochs} epochs at {rate:g}, update / retrain: {shown([found[epochs, rate] for found in by_seed])}",
                flush=True,
            )
        if options.out is not None:
            options.out.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
