"""The runs of `srns.experiments.noise`, apart from what is said of them, so that changing that does not discard them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.datasets import load
from srns.engines import Engine
from srns.evaluation import Evaluation, evaluate
from srns.interactions import Interactions
from srns.presets import make_config
from srns.samplers import SRNS, Noise, Truth
from srns.splits import Split
from srns.trainer import Callback, EpochRecord, Trainer

LAST, EVERY, EARLY = 50, 5, 20  # the last epochs are all measured, and averaged; the first too; between them, one in so many
SHARE = 3  # of short runs, the last third
BY_CODE = {"criterion": "stale_scores", "update_after": "positive"}  # how the authors' code selects, and renews memories


def last_of(epochs: int) -> int:
    """How many of the last epochs are averaged."""
    return min(LAST, max(1, epochs // SHARE))


class _Tester(Callback):
    """Measures on test as training goes on: nothing is chosen here, so nothing can leak."""

    def __init__(self, split: Split, epochs: int) -> None:
        self.split, self.first = split, epochs - last_of(epochs)
        self.engine: Engine | None = None
        self.epochs: list[int] = []
        self.found: list[Evaluation] = []

    def on_epoch(self, record: EpochRecord) -> None:
        wanted = record.epoch <= EARLY or record.epoch > self.first or record.epoch % EVERY == 0
        if self.engine is not None and wanted:
            self.epochs.append(record.epoch)
            self.found.append(evaluate(self.engine.model, self.split, on="test", protocol="full", ks=(3,)))


def train(
    dataset: str, preset: str, values: dict[str, Any], epochs: int, extreme: float | None = None, tuning: bool = False
) -> dict[str, Any]:
    """One run: curves of test metrics (points,), their means over the last epochs, by user too, and the label error ratio.

    Under `extreme` noise that share of test is fed in.
    """
    split = load(f"{dataset}-tuning" if tuning else dataset)
    assert isinstance(split, Split)
    truth = None
    if extreme is not None:
        fed = extended(split, extreme)
        truth = Truth(split.test, Noise(fed, excluded=fed))
    by_code = BY_CODE if values.get("sampler", SRNS.name) == SRNS.name else {}
    config = make_config({**by_code, **values, "epochs": epochs, "valid_share": 0.0, "threads": 1}, preset=preset)
    tester = _Tester(split, epochs)
    trainer = Trainer(config, split, callbacks=[tester], truth=truth)
    tester.engine = trainer.engine
    history = trainer.run().history
    curves = {"ndcg@3": [each["ndcg@3"] for each in tester.found], "recall@3": [_recall(each, split) for each in tester.found]}
    last = [each for epoch, each in zip(tester.epochs, tester.found, strict=True) if epoch > epochs - last_of(epochs)]
    return {
        "epochs": tester.epochs,
        "curves": curves,
        "last": {name: float(np.mean(values[-len(last) :])) for name, values in curves.items()},
        "users": np.mean([each.per_user["ndcg@3"] for each in last], axis=0).tolist(),
        "label_error_ratio": float(np.mean([record.sampler.get("label_error_ratio", 0.0) for record in history])),
    }


def popularity(dataset: str) -> dict[str, Any]:
    """What ranking by popularity gives on test: a height to see those of curves by."""
    split = load(dataset)
    assert isinstance(split, Split)
    trained = Trainer(make_config({"scorer": "popularity", "valid_share": 0.0}), split).run()
    return {"ndcg@3": evaluate(trained.model, split, on="test", protocol="full", ks=(3,))["ndcg@3"]}


def _recall(found: Evaluation, split: Split) -> float:
    """Recall@3 as in the authors' code: of at most 3 items, since no list of 3 can hold more."""
    assert split.test is not None
    return float(np.mean(found.per_user["precision@3"] * 3 / np.minimum(3, split.test.user_counts[found.users])))


def extended(split: Split, share: float) -> Interactions:
    """The false negatives of sigma 1, and random other records of test up to that share of it, the same in every run."""
    test, hidden = split.test, split.hidden[1.0]
    assert test is not None
    among = np.isin(_pairs(test), _pairs(hidden))
    others = np.random.default_rng(0).permutation(np.flatnonzero(~among))
    among[others[: max(0, round(share * len(test)) - among.sum())]] = True
    return test.select(among)


def _pairs(data: Interactions) -> NDArray[np.int64]:
    """One number for each interaction."""
    return data.users.astype(np.int64) * data.n_items + data.items
