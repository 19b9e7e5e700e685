"""The runs of `srns.experiments.field`, apart from what it makes of them, so that changing that does not discard them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from srns.evaluation import evaluate
from srns.presets import make_config
from srns.runs import prepare
from srns.storage import save_model
from srns.trainer import Trainer

FULL, PAPER = ("ndcg@10", "recall@10", "ndcg@20", "recall@20"), ("ndcg@1", "ndcg@3", "recall@3")
COMPARED = {"full": "ndcg@10", "paper": "ndcg@3"}  # the metric of each protocol that is kept of every user


def train(dataset: str, values: dict[str, Any], folder: Path, start: str | None = None, saved: bool = False) -> dict[str, Any]:
    """One run, from the model of the run called `start` if there is one: validation NDCG@10 under full ranking, and test
    metrics under both protocols, two of them of every user. Its model is `saved` where others start from it."""
    config = make_config({**values, **({"init": str(folder.parent / start)} if start else {})})
    split = prepare(dataset, config)
    training = Trainer(config, split).run()
    model = training.model
    assert split.test is not None
    valid = evaluate(model, split, on="valid", protocol="full", ks=(10,))
    test = {"full": evaluate(model, split, on="test", protocol="full", ks=(10, 20))}
    if np.all(np.diff(split.test.indptr) <= 1):  # the paper's protocol is for one item per user
        test["paper"] = evaluate(model, split, on="test", protocol="paper", ks=(1, 3))
    if saved:
        save_model(folder, model, split, {"status": "finished", "config": config.model_dump(mode="json")})
    return {
        "valid": valid["ndcg@10"],
        "test": {name: each[name] for each in test.values() for name in (*FULL, *PAPER) if name in each},
        "users": {part: np.round(each.per_user[COMPARED[part]], 4).tolist() for part, each in test.items()},
        "best_epoch": training.best_epoch,
        "epochs": len(training.history),
        "seconds": training.seconds_per_epoch * len(training.history),
    }
