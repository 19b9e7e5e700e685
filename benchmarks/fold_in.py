"""How good are vectors of users who were not there in training? Against the same users trained in.

    SRNS_DATA=../shared/data python benchmarks/fold_in.py [--datasets ml-100k beauty] [--share 0.2] [--seeds 3]

A share of the users is left out of training altogether. Their vectors are folded in from the items they had, and test items
are ranked among all others. The bar is 90% of the Recall@10 that the same users get from a model that was trained with them.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

import srns
from srns.evaluation import evaluate
from srns.foldin import FoldIn
from srns.interactions import Interactions
from srns.presets import make_config
from srns.runs import prepare
from srns.scorers import GMF

VALUES = {"ml-100k": {"min_weight": 4.0, "min_user": 5}, "beauty": {}}


def compare(name: str, share: float, seed: int) -> tuple[float, float, float]:
    """Recall@10 of left-out users folded in and of the same users trained in; milliseconds for a vector."""
    config = make_config({**VALUES[name], "seed": seed})
    split = prepare(name, config)
    left_out = np.random.default_rng(seed).random(split.train.n_users) < share

    def of(part: Interactions | None, who: np.ndarray) -> Interactions | None:
        return None if part is None else part.select(who[part.users])

    rest = replace(split, **{part: of(getattr(split, part), ~left_out) for part in ("train", "valid", "test")})
    whole = srns.Trainer(config, split).run().model
    model = srns.Trainer(config, rest).run().model
    fold = FoldIn.of(model.item_factors, config.l2_for(len(rest.train), int((rest.train.user_counts > 0).sum())))
    users = np.zeros_like(model.users)
    start = time.perf_counter()
    for user in np.flatnonzero(left_out):
        users[user] = fold.vector(split.train.items_of(user))
    milliseconds = 1000 * (time.perf_counter() - start) / left_out.sum()
    folded = GMF(users, model.item_factors, np.ones(model.dim, np.float32))
    judged = replace(split, test=of(split.test, left_out))
    recalls = [evaluate(each, judged, on="test", protocol="full", ks=(10,))["recall@10"] for each in (folded, whole)]
    return recalls[0], recalls[1], milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(VALUES), choices=list(VALUES))
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for name in options.datasets:
        found = np.array([compare(name, options.share, seed) for seed in range(options.seeds)])
        folded, trained, milliseconds = found.mean(axis=0)
        print(
            f"{name}: Recall@10 {folded:.4f} folded in, {trained:.4f} trained in: {folded / trained:.1%} (bar 90%); "
            f"by seed {', '.join(f'{a / b:.1%}' for a, b, _ in found)}; {milliseconds:.2f} ms for a vector",
            flush=True,
        )


if __name__ == "__main__":
    main()
