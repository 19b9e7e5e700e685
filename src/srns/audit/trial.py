"""One training of an audit: what was drawn, what the model became, and what negatives looked like to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.audit.hiding import Answers, Parts, hide, observed, read_answers
from srns.evaluation import evaluate
from srns.interactions import Interactions
from srns.negatives import Watch, draw_rows
from srns.presets import make_config
from srns.samplers import Truth
from srns.splits import Split
from srns.trainer import EpochRecord, Trainer

GROUPS = 200  # of users, and of answers, drawn at random: sums over them are kept, and resampled for intervals
ROWS = 4_000  # positives beside which negatives are looked at

Floats = NDArray[np.float64]


class _Counter(Watch):
    """Also adds up how often each known pair was drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.drawn: list[Floats] = []

    def on_epoch(self, record: EpochRecord) -> None:
        super().on_epoch(record)
        assert self.engine is not None
        self.drawn.append(self.engine.known_draws())


def trial(dataset: str, values: dict[str, Any], share: float, seed: int, answers: str | None, digest: str) -> dict[str, Any]:
    """Train with the fields `values` on what is not hidden; sums over groups of users are (GROUPS,).

    `digest` is that of the file of answers, so that other answers are another trial.
    """
    config = make_config({**values, "seed": seed, "threads": 1})
    data = observed(dataset, config)
    parts = hide(data, share, seed)
    told = None if answers is None else read_answers(Path(answers), data, config)
    known = _known(parts, told)
    split = Split("audit", parts.train, parts.choosing, parts.judging)
    trainer = Trainer(config, split, truth=Truth(known))
    rows = draw_rows(parts.train, parts.hidden, ROWS, seed)
    counter = _Counter(parts.train, parts.hidden, rows, seed)
    counter.engine, trainer.callbacks = trainer.engine, [counter]
    training = trainer.run()
    found = evaluate(training.model, split, on="test", protocol="full", ks=config.ks)
    group = groups(data.n_users)
    per_epoch = np.stack(counter.drawn)  # (epochs, known)
    return {
        **_drawn(parts, known, told, per_epoch, group),
        "metric": _sums(group, found.users, found.per_user[config.metric]),
        "judged": _sums(group, found.users, np.ones(len(found.users))),
        "looks": counter.found,
        "best_epoch": training.best_epoch,
        "seconds_per_epoch": training.seconds_per_epoch,
        "notes": [*data.notes, *training.notes, *(() if told is None else told.notes)],
        "facts": {
            "users": data.n_users,
            "items": data.n_items,
            "positives": len(data),
            "hidden": len(parts.hidden),
            "answers": 0 if told is None else len(told.users),
            "metric": config.metric,
        },
    }


def groups(n: int) -> NDArray[np.int64]:
    """(n,) the group of each of n users, or answers: the same in every trial on the same data."""
    return np.random.default_rng(0).permutation(n) % min(GROUPS, n)


def _known(parts: Parts, told: Answers | None) -> Interactions:
    hidden = parts.hidden
    if told is None:
        return hidden
    asked = Interactions.from_pairs(told.users, told.items, user_ids=hidden.user_ids, item_ids=hidden.item_ids)
    return hidden.union(asked)


def _drawn(
    parts: Parts, known: Interactions, told: Answers | None, per_epoch: Floats, group: NDArray[np.int64]
) -> dict[str, Any]:
    """How often hidden positives were drawn, beside how often chance would; and how often pairs with answers were, beside those
    that are liked. All in draws per epoch, in units of positives."""
    train, mean = parts.train, per_epoch.mean(axis=0)
    is_hidden = parts.hidden.contains(known.users, known.items)
    unseen = np.maximum(train.n_items - train.user_counts, 1)
    chance = (train.user_counts / unseen)[known.users[is_hidden]]
    everyone = np.arange(train.n_users)
    found = {
        "positives": _sums(group, everyone, train.user_counts),
        "drawn": _sums(group, known.users[is_hidden], mean[is_hidden]),
        "chance": _sums(group, known.users[is_hidden], chance),
        "by_epoch": (per_epoch[:, is_hidden].sum(axis=1) / len(train)).tolist(),
    }
    if told is not None:
        # Answers are drawn again one by one for intervals, not by user: the question is about the users that are there.
        mine, answer = mean[known.places(told.users, told.items)], np.arange(len(told.users))
        found["asked"] = _sums(groups(len(answer)), answer, mine)
        found["asked_liked"] = _sums(groups(len(answer)), answer, mine * told.liked)
    return found


def _sums(group: NDArray[np.int64], users: NDArray[Any], values: NDArray[Any]) -> list[float]:
    added: list[float] = np.bincount(group[users], weights=values, minlength=GROUPS).tolist()
    return added
