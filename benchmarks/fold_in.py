"""How good are recommendations for users who were not there in training? Against the same users trained in.

    SRNS_DATA=../shared/data python benchmarks/fold_in.py --out docs/recommending/fold_in.json

Users are divided into fifths. A fifth is left out of training altogether, and each of its users is then asked for by the items
of their train part, with `Recommender.recommend_for`; the same users are asked for by name of a model that was trained with
them. What they had in train and valid is recommended by neither, and Recall@10 is of their test items. As many fifths are left
out in turn as --folds says; intervals are of the ratio of mean recalls, by bootstrap over users.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from srns.presets import make_config
from srns.recommender import Recommender
from srns.runs import environment, prepare

K, FIFTHS, RESAMPLES = 10, 5, 2_000
# How the data are read and divided, and how many fifths are left out in turn: all where users are few.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "ml-100k": ("ml-100k", {"min_weight": 4.0, "min_user": 5}, FIFTHS),
    "ml-100k, random split": ("ml-100k", {"min_weight": 4.0, "min_user": 5, "split": "random"}, FIFTHS),
    "beauty": ("beauty", {}, 1),
}


def compare(case: str, folds: int | None, seed: int) -> dict[str, Any]:
    """Recall@10 of left-out users folded in and of the same users trained in."""
    name, values, usual = CASES[case]
    split = prepare(name, make_config({**values, "seed": seed}))
    train, valid, test = split.train, split.valid, split.test
    assert valid is not None
    assert test is not None
    fold_of = np.random.default_rng(seed).permutation(np.arange(train.n_users) % FIFTHS)
    whole = Recommender(seed=seed).fit(train, valid)
    recalls, seconds = [], 0.0
    for fold in range(folds or usual):
        out = fold_of == fold
        rest = Recommender(seed=seed).fit(train.select(~out[train.users]), valid.select(~out[valid.users]))
        asked = [int(user) for user in np.flatnonzero(out & (train.user_counts > 0) & (test.user_counts > 0))]
        rest.fold_in(train.item_ids.take(train.items_of(asked[0])))  # what is done once
        for user in asked:
            wanted = set(test.item_ids.take(test.items_of(user)))
            had, also = (train.item_ids.take(part.items_of(user)) for part in (train, valid))
            begin = time.process_time()
            folded, _ = rest.recommend_for(had, K, exclude=also)
            seconds += time.process_time() - begin
            trained, _ = whole.recommend(train.user_ids.label(user), K)
            recalls.append([len(wanted & set(each)) / len(wanted) for each in (folded, trained)])
    found = np.array(recalls)
    rng = np.random.default_rng(0)
    means = np.array([found[rng.integers(0, len(found), len(found))].mean(axis=0) for _ in range(RESAMPLES)])
    low, high = np.quantile(means[:, 0] / means[:, 1], [0.025, 0.975])
    folded_in, trained_in = found.mean(axis=0)
    return {
        "data": case,
        "seed": seed,
        "settings": values,
        "users": len(found),
        "folds": folds or usual,
        "recall@10": {"folded_in": folded_in, "trained_in": trained_in},
        "ratio": folded_in / trained_in,
        "interval": [low, high],
        "milliseconds": 1000 * seconds / len(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--folds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        rows.append(row := compare(case, options.folds, options.seed))
        print(
            f"{case}: Recall@10 of {row['users']:,} users {row['recall@10']['folded_in']:.4f} folded in, "
            f"{row['recall@10']['trained_in']:.4f} trained in: {row['ratio']:.1%} ({row['interval'][0]:.1%} to "
            f"{row['interval'][1]:.1%}; bar 90%); {row['milliseconds']:.1f} ms of processor time for a list",
            flush=True,
        )
        if options.out is not None:
            options.out.write_text(json.dumps({"environment": environment(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
