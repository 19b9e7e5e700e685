"""One training of an audit: what was drawn, what the model became, and what negatives looked like to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.audit.hiding import Answers, Parts, hide, observed, read_answers
from srns.config import RunConfig
from srns.evaluation import evaluate
from srns.interactions import Interactions
from srns.negatives import Watch, draw_rows
from srns.presets import make_config
from srns.samplers import Truth
from srns.splits import Split
from srns.trainer import EpochRecord, Trainer, Training

GROUPS = 200  # of users, and of answers, drawn at random: sums over them are kept, and resampled for intervals
ROWS = 4_000  # positives beside which negatives are looked at

Floats = NDArray[np.float64]


@dataclass
class _Counter(Watch):
    """Also adds up how often each known pair was drawn, and in each epoch how often `hidden_ones` of them were."""

    hidden_ones: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    by_epoch: list[float] = field(default_factory=list)
    total: Floats | float = 0.0

    def on_epoch(self, record: EpochRecord) -> None:
        super().on_epoch(record)
        assert self.engine is not None
        drawn = self.engine.known_draws()
        self.total = self.total + drawn
        self.by_epoch.append(float(drawn[self.hidden_ones].sum()))


class Trained(NamedTuple):
    """A training on all of `data` that is not hidden, and how often it drew each of the `known` pairs, `drawn` (known,), in
    draws per epoch and in units of positives; `by_epoch` the same of all hidden ones together."""

    config: RunConfig
    data: Interactions
    parts: Parts
    told: Answers | None
    known: Interactions
    drawn: Floats
    by_epoch: list[float]
    looks: list[dict[str, Any]]
    training: Training

    def drawn_of(self, told: Answers) -> Floats:
        """How often each of the pairs with answers was drawn: (n,)."""
        return np.asarray(self.drawn[self.known.places(told.users, told.items)])


def train(dataset: str, values: dict[str, Any], share: float, seed: int, answers: str | None, look_every: int = 1) -> Trained:
    """Train with the fields `values` on what is not hidden, and count what is drawn of hidden positives and of pairs with
    answers; every so many epochs look at what negatives are like."""
    config = make_config({**values, "seed": seed, "threads": 1})
    data = observed(dataset, config)
    parts = hide(data, share, seed)
    told = None if answers is None else read_answers(Path(answers), data, config)
    known = _known(parts, told)
    trainer = Trainer(config, _split(parts), truth=Truth(known))
    rows = draw_rows(parts.train, parts.hidden, ROWS, seed)
    hidden_ones = parts.hidden.contains(known.users, known.items)
    counter = _Counter(parts.train, parts.hidden, rows, seed, look_every, engine=trainer.engine, hidden_ones=hidden_ones)
    trainer.callbacks = [counter]
    training = trainer.run()
    drawn = np.asarray(counter.total) / len(counter.by_epoch)
    return Trained(config, data, parts, told, known, drawn, counter.by_epoch, counter.found, training)


def trial(dataset: str, values: dict[str, Any], share: float, seed: int, answers: str | None, digest: str) -> dict[str, Any]:
    """What one training tells; sums over groups of users, and of answers, are (GROUPS,).

    `digest` is that of the file of answers, so that other answers are another trial.
    """
    done = train(dataset, values, share, seed, answers)
    metric, told, training = done.config.metric, done.told, done.training
    found = evaluate(training.model, _split(done.parts), on="test", protocol="full", ks=(int(metric.split("@")[1]),))
    group = groups(done.data.n_users)
    return {
        **_drawn(done, group),
        **({} if told is None else asked(told, done.drawn_of(told))),
        "metric": _sums(group, found.users, found.per_user[metric]),
        "judged": _sums(group, found.users, np.ones(len(found.users))),
        "looks": done.looks,
        "best_epoch": training.best_epoch,
        "seconds_per_epoch": training.seconds_per_epoch,
        "notes": [*done.data.notes, *training.notes, *(() if told is None else told.notes)],
        "facts": {
            "users": done.data.n_users,
            "items": done.data.n_items,
            "positives": len(done.data),
            "hidden": len(done.parts.hidden),
            "answers": 0 if told is None else len(told.users),
            "metric": metric,
        },
    }


def _split(parts: Parts) -> Split:
    return Split("audit", parts.train, parts.choosing, parts.judging)


def groups(n: int) -> NDArray[np.int64]:
    """(n,) the group of each of n users, or answers: the same in every trial on the same data."""
    return np.random.default_rng(0).permutation(n) % min(GROUPS, n)


def _known(parts: Parts, told: Answers | None) -> Interactions:
    hidden = parts.hidden
    if told is None:
        return hidden
    asked = Interactions.from_pairs(told.users, told.items, user_ids=hidden.user_ids, item_ids=hidden.item_ids)
    return hidden.union(asked)


def _drawn(done: Trained, group: NDArray[np.int64]) -> dict[str, Any]:
    """How often hidden positives were drawn, beside how often chance would, in draws per epoch and in units of positives."""
    train, hidden = done.parts.train, done.parts.hidden
    unseen = np.maximum(train.n_items - train.user_counts, 1)
    return {
        "positives": _sums(group, np.arange(train.n_users), train.user_counts),
        "drawn": _sums(group, hidden.users, done.drawn[done.known.places(hidden.users, hidden.items)]),
        "chance": _sums(group, hidden.users, (train.user_counts / unseen)[hidden.users]),
        "by_epoch": [drawn / len(train) for drawn in done.by_epoch],
    }


def asked(told: Answers, drawn: Floats) -> dict[str, list[float]]:
    """Of how often pairs with answers were `drawn` (n,), each times what it stands for: sums of all, and of those liked.

    Answers are drawn again one by one for intervals, not by user: the question is about the users that are there.
    """
    counted, answer = drawn * told.weight, np.arange(len(drawn))
    group = groups(len(drawn))
    return {"asked": _sums(group, answer, counted), "asked_liked": _sums(group, answer, counted * told.liked)}


def _sums(group: NDArray[np.int64], users: NDArray[Any], values: NDArray[Any]) -> list[float]:
    added: list[float] = np.bincount(group[users], weights=values, minlength=GROUPS).tolist()
    return added
