"""The runs of `srns.experiments.figure1`, apart from what it makes of them, so that changing that does not discard them."""

from __future__ import annotations

from typing import Any

import numpy as np

from srns.errors import DataError
from srns.interactions import Interactions
from srns.negatives import Watch, ccdf, draw_population, draw_rows, p_pos
from srns.presets import make_config
from srns.runs import load_as
from srns.splits import Split, split_random
from srns.trainer import EpochRecord, Trainer

EVERY = 5  # epochs between two looks
ROWS, PAIRS = 10_000, 200_000  # positives looked at, and pairs of the distribution
MOMENTS = (0.025, 0.125, 0.25, 0.5, 1.0)  # of training, at which the distribution is taken
AT = np.linspace(0.0, 1.0, 101)  # P_pos at which the distribution is taken


class _Distribution(Watch):
    """Also takes the distribution of P_pos over all pairs, at a few epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.population = draw_population(self.train, PAIRS, self.seed)
        self.moments: list[int] = []
        self.shares: dict[int, list[float]] = {}

    def on_epoch(self, record: EpochRecord) -> None:
        super().on_epoch(record)
        if record.epoch in self.moments:
            users, positives, items = self.population
            self.shares[record.epoch] = ccdf(p_pos(self.past[-1], users, positives, items[:, None])[:, 0], AT).tolist()


def look(dataset: str, preset: str, seed: int, epochs: int, reading: dict[str, Any] | None = None) -> dict[str, Any]:
    """One training: what `srns.negatives.Watch` found at each epoch, and the distributions."""
    train, hidden = parts(dataset, reading)
    values = {"sampler": "uniform", "seed": seed, "epochs": epochs, "valid_share": 0.0, "threads": 1}
    trainer = Trainer(make_config(values, preset=preset), Split(dataset, train, None, None))
    watch = _Distribution(train, hidden, draw_rows(train, hidden, ROWS, seed), seed, EVERY)
    watch.moments = sorted({max(1, round(share * epochs)) for share in MOMENTS})
    watch.engine, trainer.callbacks = trainer.engine, [watch]
    trainer.run()
    return {"looks": watch.found, "shares": [[epoch, values] for epoch, values in watch.shares.items()]}


def parts(dataset: str, reading: dict[str, Any] | None = None) -> tuple[Interactions, Interactions]:
    """What trains, and the positives that are hidden from it: the test part, or a fifth where the data have none."""
    data = load_as(dataset, make_config(reading or {}))
    split = split_random(data, ratio=(0.8, 0.0, 0.2)) if isinstance(data, Interactions) else data
    if split.test is None or not len(split.test):
        raise DataError(f"{dataset}: no positives can be hidden; expected a test part, or users with several interactions")
    return split.train, split.test
