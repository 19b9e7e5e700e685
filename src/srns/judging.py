"""Two models on the same held-out interactions, though they were not trained on the same data: yesterday's and today's.

Both rank what one of them has held out, over its users and items and without what it knows its users had. Users with a held-out
pair that the other has learnt from are left out, since it would be no test of that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srns.errors import ConfigError
from srns.evaluation import Evaluation, Part, Protocol, evaluate
from srns.interactions import Interactions
from srns.recommender import Recommender
from srns.scorers import Model, score_rows
from srns.splits import Split

MOST_LEARNT = 0.5  # share of users to leave out from which on the rest is no fair sample


class Abroad:
    """A trained model as a Score over the users and items of other data, found by their labels.

    Items that it does not know are never recommended; users it does not know get what is popular in its training data, as
    `Recommender.recommend(unknown="popular")` serves them.
    """

    def __init__(self, model: Model, train: Interactions, here: Interactions) -> None:
        self._model, self._n_items = model, train.n_items
        users = train.user_ids.indices(here.user_ids.labels, missing="-1")
        self._users = np.where(train.user_counts[users] > 0, users, -1)
        self._items = train.item_ids.indices(here.item_ids.labels, missing="-1")
        self._popularity = train.popularity

    @property
    def known(self) -> tuple[int, int]:
        """How many of the users and items it knows."""
        return int(np.count_nonzero(self._users >= 0)), int(np.count_nonzero(self._items >= 0))

    def __call__(self, users: ArrayLike, items: ArrayLike) -> NDArray[Any]:
        """Scores of items (B, K) for users (B,): (B, K)."""
        return np.asarray(np.take_along_axis(self.score_all(users), np.asarray(items), axis=1))

    def score_all(self, users: ArrayLike) -> NDArray[Any]:
        """Scores of every item for users (B,): (B, n_items)."""
        theirs = self._users[np.asarray(users)]
        scores = np.array(score_rows(self._model, np.maximum(theirs, 0), self._n_items), np.float32)
        scores[theirs < 0] = self._popularity
        return np.where(self._items >= 0, scores[:, np.maximum(self._items, 0)], np.float32(-np.inf))


class Judged(NamedTuple):
    """What both models gave on the same users, and how many users were left out since the other has learnt from theirs."""

    one: Evaluation
    other: Evaluation
    left_out: int


def judge(one: Recommender, other: Recommender, on: Part, protocol: Protocol, ks: Sequence[int]) -> Judged:
    """Measure both on what `one` has held out."""
    split, theirs = one.split_, other.split_
    if split.fingerprint() == theirs.fingerprint():
        found = [evaluate(each.model_, split, on=on, protocol=protocol, ks=ks) for each in (one, other)]
        return Judged(found[0], found[1], 0)
    abroad = Abroad(other.model_, theirs.train, split.train)
    if 0 in abroad.known:
        raise ConfigError("they have no users or no items in common, and cannot be compared user by user")
    judged, left_out = _not_learnt(split, theirs.train, on)
    found = [evaluate(score, judged, on=on, protocol=protocol, ks=ks) for score in (one.model_, abroad)]
    return Judged(found[0], found[1], left_out)


def _not_learnt(split: Split, theirs: Interactions, on: Part) -> tuple[Split, int]:
    """The split without the users of whose part `on` a model of `theirs` has learnt some, and how many these are."""
    part = split.valid if on == "valid" else split.test
    if part is None:
        raise ConfigError(
            f"split {split.name!r} has no {on} part to evaluate on: a run with --split none learns from everything"
        )
    users = theirs.user_ids.indices(part.user_ids.labels, missing="-1")
    items = theirs.item_ids.indices(part.item_ids.labels, missing="-1")
    learnt = (users[part.users] >= 0) & theirs.contains(users[part.users], items[part.items])
    of_users = np.bincount(part.users[learnt], minlength=part.n_users) > 0
    left_out, all_users = int(of_users.sum()), int(np.count_nonzero(part.user_counts))
    if left_out > MOST_LEARNT * all_users:
        raise ConfigError(
            f"the other has learnt from what {left_out:,} of {all_users:,} users have in {on} here, being trained on different "
            "data, or on data split by another --split or --split-seed; they cannot be compared user by user"
        )
    kept: dict[str, Any] = {on: part.select(~of_users[part.users])}
    return replace(split, **kept), left_out
