"""`srns demo`: the pipeline on a simulated world, where it is known what each user would have liked."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console

from srns.config import make_config
from srns.display import Progress, comparison_table, plain_table
from srns.evaluation import evaluate
from srns.recommender import Recommender
from srns.simulate import simulate
from srns.splits import make_split

KS = (1, 5, 10, 20)


def run_demo(out: Console | None, err: Console) -> dict[str, Any]:
    """Simulate, train, measure, recommend; print to `out` unless it is None; returns what was found."""
    world = simulate()
    split = make_split(world.interactions, "leave-one-out")
    config = make_config({"ks": KS}, preset="quick")
    recommender = Recommender(config)
    with Progress(err) as progress:
        recommender.fit(split, callbacks=[progress])
    popularity = split.train.item_counts.astype(np.float32)
    results = {
        "popularity": evaluate(lambda users, items: popularity[items], split, ks=KS),
        "srns": evaluate(recommender.model_, split, ks=KS),
    }
    users = [world.interactions.user_ids.label(user) for user in (0, 1, 2)]
    ids, _ = recommender.recommend(users, k=5)
    liked = world.would_like(np.arange(3)[:, None], world.interactions.item_ids.indices(ids.ravel()).reshape(ids.shape))
    everyone = np.arange(split.train.n_users)
    chance = float(
        np.mean(
            [
                world.would_like(np.full(200, u), np.random.default_rng(0).integers(0, split.train.n_items, 200))
                for u in everyone[:100]
            ]
        )
    )
    if out is not None:
        out.print(f"A simulated world: {world.interactions}\n", highlight=False)
        shown = [f"{metric}@{k}" for metric in ("ndcg", "recall", "coverage") for k in (10, 20)]
        out.print(comparison_table("Test: one held-out item per user among all items", results, shown))
        rows = [
            [str(user), *(f"{item} {'yes' if yes else 'no'}" for item, yes in zip(row, likes, strict=True))]
            for user, row, likes in zip(users, ids, liked, strict=True)
        ]
        title = "Recommendations, and whether the user would have liked them (only a simulation knows)"
        out.print(plain_table(title, ["user", *(f"{rank}." for rank in range(1, 6))], rows))
        out.print(f"Of items picked at random, users would like {chance:.0%}. Next: srns train YOUR.csv", highlight=False)
    return {
        "metrics": dict(results["srns"]),
        "popularity": dict(results["popularity"]),
        "recommendations": {str(user): row.tolist() for user, row in zip(users, ids, strict=True)},
        "would_like": liked.tolist(),
    }
