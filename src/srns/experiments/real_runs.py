"""The runs of `srns.experiments.real`, apart from what is said of them, so that changing that does not discard them."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from srns.evaluation import evaluate
from srns.presets import make_config
from srns.runs import train_run
from srns.storage import load_model

METRICS = ("ndcg@1", "ndcg@3", "recall@3")
PAIRED = ("ndcg@1", "ndcg@3")  # kept of every user, for intervals of differences


def train(dataset: str, preset: str | None, values: dict[str, Any], folder: Path, start: str | None = None) -> dict[str, Any]:
    """One run, in `folder`, where it goes on if it was interrupted: its validation over time, and its test metrics."""
    init = {"init": str(folder.parent / start)} if start else {}
    run = train_run(dataset, make_config({**values, **init}, preset=preset), out=folder, resume=True)
    seconds = [record["seconds"] for record in run["history"]]
    seconds[0] = min(seconds[0], float(np.median(seconds)))  # what compiled is no part of the method
    seconds = list(accumulate(seconds))
    valid = [(second, record["valid"]) for second, record in zip(seconds, run["history"], strict=True) if record["valid"]]
    _, model, split, _ = load_model(folder)
    users = evaluate(model, split, on="test", protocol=run["protocol"], ks=(1, 3)).per_user
    return {
        "run": folder.name,
        "test": run["metrics"],
        "popularity": run["metrics_popularity"],
        "users": {name: np.round(users[name], 4).tolist() for name in PAIRED},
        "best_epoch": run["best_epoch"],
        "seconds": seconds[-1],
        "start": run.get("start", {}),
        "curve": [[second, *(each.get(name) for name in METRICS)] for second, each in valid],
    }
