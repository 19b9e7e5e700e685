"""`srns demo`: the pipeline on a simulated world, where it is known what each user would have liked."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Console

from srns.display import Progress, comparison_table, plain_table
from srns.evaluation import evaluate
from srns.recommender import Recommender
from srns.simulation import World, simulate
from srns.splits import make_split

SHOWN_USERS, SHOWN_ITEMS = 3, 5


def run_demo(out: Console | None, err: Console) -> dict[str, Any]:
    """Simulate, train, measure, recommend; print to `out` unless it is None; returns what was found."""
    world = simulate()
    split = make_split(world.interactions, "leave-one-out")
    recommender = Recommender()
    with Progress(err) as progress:
        recommender.fit(split, callbacks=[progress])
    popularity = split.train.item_counts.astype(np.float32)
    results = {
        "popularity": evaluate(lambda users, items: popularity[items], split),
        "srns": evaluate(recommender.model_, split),
    }
    ids, _ = recommender.recommend(world.interactions.user_ids.labels, k=SHOWN_ITEMS)
    liked = _liked(world, ids)
    by_chance = world.would_like(np.arange(len(ids))[:, None], np.arange(world.interactions.n_items))
    users = world.interactions.user_ids.labels[:SHOWN_USERS].to_list()
    if out is not None:
        out.print(f"A simulated world: {world.interactions}", highlight=False, soft_wrap=True)
        shown = [f"{metric}@{k}" for metric in ("ndcg", "recall", "coverage") for k in (10, 20)]
        out.print(comparison_table("Test: one held-out item per user, ranked among all", results, shown))
        rows = [
            [user, *(f"{item} {'♥' if likes else ' '}" for item, likes in zip(items, hearts, strict=True))]
            for user, items, hearts in zip(users, ids.tolist(), liked.tolist(), strict=False)
        ]
        out.print(plain_table("Recommendations (♥: the user would like it)", ["user", *"12345"], rows))
        out.print(
            f"Users would like {liked.mean():.0%} of what is recommended to them, and {by_chance.mean():.0%} of items picked "
            "blindly; only a simulation knows. Next: srns train YOUR.csv",
            highlight=False,
        )
    return {
        "metrics": dict(results["srns"]),
        "popularity": dict(results["popularity"]),
        "recommendations": dict(zip(users, ids.tolist(), strict=False)),
        "liked": float(liked.mean()),
        "liked_by_chance": float(by_chance.mean()),
    }


def _liked(world: World, labels: Any) -> Any:
    """Whether user u would like each item in row u: labels (n_users, k) -> (n_users, k)."""
    items = world.interactions.item_ids.indices(labels.ravel()).reshape(labels.shape)
    return world.would_like(np.arange(len(items))[:, None], items)
