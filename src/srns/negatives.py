"""What negatives look like to the model that learns from them, while it learns: how positive, how steadily, how often falsely.

Figure 1 of the paper (section 3.1, appendix C.2) and `srns audit` are both made of what is measured here. Three kinds of items
that a user has not interacted with in train are compared beside the same positives of the same users:

    false     positives that were hidden from training: what a sampler should not take for a negative
    uniform   any item, as a uniform sampler draws it
    hard      of D uniform items, the one with the highest score; D is the difficulty, and 1 is uniform

by P_pos(j | u, i) = sigmoid(r_uj - r_ui), by how much that wavered over the ends of the last epochs (std / mean), and by the
share of the drawn ones that are false, the label error ratio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from srns import rng
from srns.engines import Engine
from srns.interactions import Int64, Interactions
from srns.samplers import Score
from srns.samplers.unseen import Unseen
from srns.scorers import Model
from srns.trainer import Callback, EpochRecord

Floats = NDArray[np.float64]
DIFFICULTIES = (1, 2, 4, 8, 16, 32, 64)
DEPTH = 5  # ends of epochs that P_pos wavers over, as in the paper
BLOCK = 1 << 22  # numbers of embeddings that are gathered at once


def p_pos(score: Score, users: Int64, positives: Int64, items: Int64) -> Floats:
    """How likely the model takes `items` (B, K) for positives of `users` (B,), beside their `positives` (B,): (B, K)."""
    scores = scored(score, users, np.concatenate([positives[:, None], items], axis=1))
    return np.asarray(expit(scores[:, 1:] - scores[:, :1]))


def scored(score: Score, users: Int64, items: Int64) -> Floats:
    """Scores of items (B, K) for users (B,), a block of rows at a time: a scorer gathers an embedding for each."""
    width = items.shape[1] * int(getattr(score, "dim", 64))
    size = max(1, BLOCK // max(1, width))
    starts = range(0, len(users), size)
    blocks = [np.asarray(score(users[at : at + size], items[at : at + size]), np.float64) for at in starts]
    return np.concatenate([np.zeros((0, items.shape[1])), *blocks])


def wavering(values: ArrayLike) -> Floats:
    """Standard deviation over mean along the first axis: (epochs, ...) -> (...).

    >>> wavering([[0.1, 0.4], [0.3, 0.4]]).round(6).tolist()
    [0.5, 0.0]
    """
    array = np.asarray(values, np.float64)
    mean = array.mean(axis=0)
    return np.asarray(array.std(axis=0) / np.where(mean > 0, mean, 1.0))


def hardest(scores: Floats, difficulties: Sequence[int]) -> Int64:
    """Of candidates with `scores` (B, N), the place of the highest among the first D, for each difficulty D: (B, len(D)).

    >>> hardest(np.array([[0.1, 0.3, 0.2, 0.9]]), (1, 2, 3, 4)).tolist()
    [[0, 1, 1, 3]]
    """
    return np.stack([scores[:, :each].argmax(axis=1) for each in difficulties], axis=1)


def auc(of_false: ArrayLike, of_others: ArrayLike) -> float:
    """The chance that a false one is above another, ties counting half: the area under the ROC curve.

    >>> auc([0.9, 0.5], [0.5, 0.1])
    0.875
    """
    one, other = np.asarray(of_false, np.float64), np.sort(np.asarray(of_others, np.float64))
    if not len(one) or not len(other):
        return float("nan")
    above, level = (np.searchsorted(other, one, side=side).sum() for side in ("left", "right"))
    return float((above + level) / 2 / (len(one) * len(other)))


def matched(of_false: float, of_hard: ArrayLike, values: ArrayLike) -> float:
    """What `values` (L,) would be of hard negatives that are as hard as the false ones.

    Of each difficulty, `of_hard` (L,) has the median P_pos, which grows with it. The value is interpolated between the two
    difficulties whose medians enclose that of the false ones, NaN where these are beyond the hardest or the easiest.

    >>> matched(0.3, [0.1, 0.2, 0.4], [1.0, 2.0, 4.0])
    3.0
    """
    medians = np.maximum.accumulate(np.asarray(of_hard, np.float64))
    inside = medians[0] <= of_false <= medians[-1]
    return float(np.interp(of_false, medians, np.asarray(values, np.float64))) if inside else float("nan")


class Rows(NamedTuple):
    """Positives (B,) of users (B,) to look at, and for each a hidden positive of the user, -1 where none is hidden."""

    users: Int64
    positives: Int64
    false: Int64


def draw_rows(train: Interactions, hidden: Interactions, size: int, seed: int) -> Rows:
    """Interactions of train, all equally likely, as in the batches of an epoch."""
    generator = np.random.default_rng([seed, 0])
    chosen = np.sort(generator.choice(len(train), min(size, len(train)), replace=False))
    users = train.users[chosen].astype(np.int64)
    counts = hidden.user_counts[users]
    place = hidden.indptr[users] + (generator.random(len(users)) * counts).astype(np.int64)
    false = np.append(hidden.items, -1)[np.where(counts > 0, place, -1)]
    return Rows(users, train.items[chosen].astype(np.int64), false.astype(np.int64))


def draw_population(train: Interactions, size: int, seed: int) -> tuple[Int64, Int64, Int64]:
    """Users, positives and unseen items (size,): all pairs of a user and an item that is not in train are equally likely."""
    generator = np.random.default_rng([seed, 1])
    able = (train.user_counts > 0) & (train.user_counts < train.n_items)
    weight = np.where(able, train.n_items - train.user_counts, 0)
    users = generator.choice(train.n_users, size, p=weight / weight.sum())
    place = train.indptr[users] + (generator.random(size) * train.user_counts[users]).astype(np.int64)
    unseen = Unseen(train.select(able[train.users]), np)
    items = unseen.at(users, (generator.random(size) * weight[users]).astype(np.int64))
    return users, train.items[place].astype(np.int64), items


@dataclass
class Watch(Callback):
    """Looks at negatives every so many epochs of a training; `engine` is to be set to that of the trainer.

    `found` has, for each epoch looked at, medians over rows of P_pos and of its wavering, first of false ones, then of each
    difficulty; the label error ratio of each difficulty; and how well false ones can be told from others (`detection`). Medians
    are over rows of users with hidden positives, so that all kinds are of the same users; label errors are over all rows.
    """

    train: Interactions
    hidden: Interactions
    rows: Rows
    seed: int = 0
    every: int = 1
    difficulties: Sequence[int] = DIFFICULTIES
    engine: Engine | None = None
    found: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._unseen = Unseen(self.train.select((self.train.user_counts < self.train.n_items)[self.train.users]), np)
        self.past: deque[Model] = deque(maxlen=DEPTH)

    def on_epoch(self, record: EpochRecord) -> None:
        assert self.engine is not None, "set `engine` before training"
        model = self.engine.model
        self.past.append(model.from_tensors({name: np.array(tensor) for name, tensor in model.tensors().items()}))
        if record.epoch % self.every == 0 or record.epoch == 1:
            self.found.append({"epoch": record.epoch, **self.look(record.epoch)})

    def look(self, epoch: int) -> dict[str, Any]:
        """What negatives are like at the end of an epoch, by the models at the ends of the last ones."""
        users, positives, false = self.rows
        keys = self._unseen.row_keys(rng.stream_key(self.seed, "looking", epoch), users, positives)
        candidates = self._unseen.draw(users, keys, max(self.difficulties))
        places = hardest(scored(self.past[-1], users, candidates), self.difficulties)
        drawn = np.take_along_axis(candidates, places, axis=1)  # (B, L)
        errors = self.hidden.contains(users[:, None], drawn)
        with_false = false >= 0
        items = np.concatenate([false[:, None], drawn], axis=1)[with_false]  # (B', 1 + L)
        over_epochs = np.stack([p_pos(model, users[with_false], positives[with_false], items) for model in self.past])
        ratios = wavering(over_epochs)
        return {
            "p_pos": np.median(over_epochs[-1], axis=0).tolist(),
            "wavering": np.median(ratios, axis=0).tolist(),
            "label_error_ratio": errors.mean(axis=0).tolist(),
            "detection": _detection(over_epochs[-1], ratios, errors[with_false]),
        }


def _detection(probability: Floats, ratios: Floats, errors: NDArray[np.bool_]) -> dict[str, float]:
    """How well false ones are told from others, as AUC: from any by a high P_pos (`score`), from any by a P_pos that is high
    and steady, mean / std (`steady`), and by the same from those of the difficulty that is nearest in P_pos (`steady_hard`)."""
    medians = np.median(probability, axis=0)
    nearest = 1 + int(np.abs(medians[1:] - medians[0]).argmin())
    steady = -ratios

    def against(values: Floats, kind: int) -> float:
        return auc(values[:, 0], values[~errors[:, kind - 1], kind])

    return {
        "score": against(probability, 1),
        "steady": against(steady, 1),
        "score_hard": against(probability, nearest),
        "steady_hard": against(steady, nearest),
    }


def ccdf(values: ArrayLike, at: ArrayLike) -> Floats:
    """The share of `values` (n,) that is at least as large as each of `at` (m,): (m,).

    >>> ccdf([0.1, 0.2, 0.2, 0.9], [0.0, 0.2, 0.5]).tolist()
    [1.0, 0.75, 0.25]
    """
    ordered = np.sort(np.asarray(values, np.float64))
    return np.asarray(1 - np.searchsorted(ordered, np.asarray(at), side="left") / max(1, len(ordered)))
