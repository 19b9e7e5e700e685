"""What an audit hides, and what it is told: positives kept from training, and answers about items that users never touched."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.config import RunConfig
from srns.errors import ConfigError, DataError
from srns.interactions import Int64, Interactions
from srns.readers import column_names, read
from srns.runs import load_as, reading
from srns.splits import Split

WEIGHT = "weight"  # the column of a table of answers
FEWEST = 40  # hidden positives that an audit can say anything from


def observed(dataset: str, config: RunConfig) -> Interactions:
    """The positives to audit: all of a file; of a fixed split all but its test part, which is for judging models."""
    data = load_as(dataset, config)
    if isinstance(data, Split):
        return data.train if data.valid is None else data.train.union(data.valid)
    return data


class Parts(NamedTuple):
    """Positives that train, those hidden ones that choose the epoch, and those hidden ones that judge the model."""

    train: Interactions
    choosing: Interactions
    judging: Interactions

    @property
    def hidden(self) -> Interactions:
        return self.choosing.union(self.judging)


def hide(data: Interactions, share: float, seed: int) -> Parts:
    """Hide a `share` of all positives, chosen at random; one positive of each user stays. Half of them choose, half judge."""
    if not 0 < share <= 0.5:
        raise ConfigError(f"hide = {share:g}: expected a share above 0 and at most 0.5")
    if data.user_counts.max(initial=0) < 2:
        raise DataError("no user has two positives, so that none can be hidden: an audit needs users with several interactions")
    order = np.random.default_rng([seed, 2]).permutation(len(data))
    firsts = np.unique(data.users[order], return_index=True)[1]  # of each user, in that order
    free = np.delete(order, firsts)
    chosen = free[: round(share * len(data))]
    if len(chosen) < FEWEST:
        raise DataError(
            f"only {len(chosen)} of {len(data):,} positives could be hidden, too few to measure anything by; expected at least "
            f"{FEWEST}: more data, or a larger share than {share:g}"
        )
    part = np.zeros(len(data), np.int8)
    part[chosen[0::2]], part[chosen[1::2]] = 1, 2
    return Parts(*(data.select(part == number) for number in range(3)))


class Answers(NamedTuple):
    """Whether users (n,) like items (n,) that are not among their interactions, how many pairs each stands for, in any unit,
    and what had to be left out."""

    users: Int64
    items: Int64
    liked: NDArray[np.bool_]
    weight: NDArray[np.float64]
    notes: tuple[str, ...] = ()


def read_answers(path: Path, data: Interactions, config: RunConfig) -> Answers:
    """A table with the columns of the data and one called `liked`, 1 or 0, about pairs that were picked at random; where they
    were not all equally likely to be, a column `weight`: one over how likely each was."""
    columns, _ = reading(config)
    asked = {role: columns[role] for role in ("user", "item") if role in columns}
    table = read(path, **asked, weight="liked", time=False)
    assert table.weight is not None
    if not np.isin(table.weight, (0, 1)).all():
        raise DataError(f"{path}: column liked has values other than 0 and 1")
    weight = np.ones(len(table))
    if WEIGHT in column_names(path):  # the same rows again
        weight = np.asarray(read(path, **asked, weight=WEIGHT, time=False).weight, np.float64)
        if not (weight > 0).all() or not np.isfinite(weight).all():
            raise DataError(f"{path}: column {WEIGHT} has values that are not above 0; expected one over how likely a pair was")
    users = data.user_ids.indices(table.user_ids.take(table.users), missing="-1")
    items = data.item_ids.indices(table.item_ids.take(table.items), missing="-1")
    known = (users >= 0) & (items >= 0)
    seen = known & data.contains(users, items)
    kept = known & ~seen
    notes = []
    if not known.all():
        notes.append(f"left out {int((~known).sum()):,} answers about users or items that are not in the data")
    if seen.any():
        notes.append(f"left out {int(seen.sum()):,} answers about pairs that are in the data")
    if not kept.any():
        raise DataError(
            f"{path}: no answer is about a pair of a user and an item of the data that is not among its interactions"
        )
    return Answers(users[kept], items[kept], table.weight[kept] > 0, weight[kept], tuple(notes))
