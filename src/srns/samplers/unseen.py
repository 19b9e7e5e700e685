"""The items a user has not interacted with, numbered: the pool that every sampler draws from.

One random number below the count of unseen items gives one negative: no rejection, no retry, and a user who has seen all items
but one is no slower than any other. Number n of a user with m unseen items is item n itself unless the user has seen it. The
seen items below m are as many as the unseen ones from m on, and each of the former is stood in for by one of the latter.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.errors import DataError
from srns.interactions import Interactions
from srns.samplers.base import Array, Twins
from srns.samplers.elementary import taken

TABLE_BYTES = 128 << 20  # what a table of every user's unseen items may take, which spares a search in each look-up


def require_unseen(train: Interactions, held_out: bool = False) -> None:
    """Refuse a user who has interacted with every item: no negative exists for them. `held_out` interactions may be among
    them."""
    saturated = np.flatnonzero(train.user_counts >= train.n_items)
    if len(saturated):
        label = train.user_ids.label(int(saturated[0]))
        where = " in train or test, and noise keeps both from being negatives" if held_out else ""
        raise DataError(
            f"user {label!r} has interacted with all {train.n_items:,} items{where}: no negative exists for this user"
        )


def stand_ins(train: Interactions) -> NDArray[np.int32]:
    """For each interaction whose item is below the user's count m of unseen items, the unseen item from m on that stands in
    for it.

    The others are 0, and nobody asks for them.
    """
    users, items = train.users, train.items
    unseen = train.n_items - train.user_counts
    place = np.arange(len(train)) - train.indptr[:-1][users]  # in the user's ascending row
    low = items < unseen[users]
    n_low = np.bincount(users[low], minlength=train.n_users)
    # Seen items minus their place count the unseen items before them; offset by user, all rows form one ascending array.
    stride = train.n_items + 1
    flat = users.astype(np.int64) * stride + (items - place)
    users, place = users[low].astype(np.int64), place[low]
    rank = unseen[users] - n_low[users] + place  # of the stand-in among the unseen items in ascending order
    found = np.zeros(len(train), np.int32)
    found[low] = rank + np.searchsorted(flat, users * stride + rank, side="right") - train.indptr[:-1][users]
    return found


def spread_numbers(rows: tuple[Array, Array], counts: Array, size: int, xp: Any) -> Array:
    """`size` different numbers below counts (B,) for each row, every number equally likely to be among them: (B, size).

    0..count-1 is a circle, and from a random place on (draw 0) it is laid out in `size` arcs of equal length; arc c gives one
    number (draw c + 1). So there are no duplicates to look for. Numbers are -1 where the count is below `size`.
    """
    first, second = (word[:, None] for word in rows)
    counts, c = counts[:, None], xp.arange(size, dtype=xp.int64)[None, :]
    length = counts // size
    length = length + xp.astype(length == 0, xp.int64)
    place = c * length + rng.below(rng.bits((first, second), c + 1), length) + rng.below(rng.bits((first, second), 0), counts)
    round_once = xp.astype(place >= counts, xp.int64)  # and never twice; a remainder would take three times as long
    place = place - counts * round_once
    return xp.where(c * length < counts, place, -1)


def pairs_of(train: Interactions) -> NDArray[np.int64]:
    """Interactions as one ascending number each, and one beyond every pair, so that a search always ends on something."""
    return np.append(train.users.astype(np.int64) * train.n_items + train.items, train.n_users * train.n_items)


class Unseen:
    """Look-up of unseen items over `train`, on arrays of the library `xp`.

    >>> train = Interactions.from_pairs([0, 0, 1], [0, 2, 3])
    >>> Unseen(train, np).at(np.asarray([0, 1, 1]), np.asarray([0, 0, 1]))  # items are dense: 0, 1, 2
    array([2, 0, 1])
    """

    def __init__(self, train: Interactions, xp: ModuleType, held_out: bool = False) -> None:
        require_unseen(train, held_out)
        self.xp = array_api_compat.array_namespace(xp.asarray(0))
        self.twins: Twins | None = None
        self.zero = xp.asarray(0)  # made once: on its device it takes longer to make than to use
        self._n_items = train.n_items
        self._first_user = train.whole.first_user
        self._train = train
        self._table = self._pairs = self._stand_ins = None
        small = np.int16 if train.n_items < 2**15 else np.int32
        if train.n_users * train.n_items * small().itemsize <= TABLE_BYTES:  # all numbers of all users, one read each
            table = np.tile(np.arange(train.n_items, dtype=small), (train.n_users, 1))
            low = train.items < (train.n_items - train.user_counts)[train.users]
            table[train.users[low], train.items[low]] = stand_ins(train)[low]
            self._table = xp.asarray(table.reshape(-1))
        else:
            self._pairs = xp.asarray(pairs_of(train))
            self._stand_ins = xp.asarray(np.append(stand_ins(train), 0).astype(np.int64))
        self.counts = xp.asarray(train.n_items - train.user_counts)  # (n_users,) how many items each user has not seen

    @property
    def has_table(self) -> bool:
        """Whether all unseen items are in a table, which the twin of `sample` reads."""
        return self._table is not None

    def row_keys(self, key: rng.Key, users: Array, y: Array) -> tuple[Array, Array]:
        """Random rows of `users`, by their number among the users of all ranks, and of `y`."""
        return rng.row_keys(key, users + self._first_user, y)

    def at(self, users: Array, numbers: Array) -> Array:
        """The unseen items of `users` with `numbers` below their counts; shapes broadcast."""
        xp = self.xp
        pairs = users * self._n_items + numbers
        if self._table is not None:
            return xp.astype(taken(self._table, pairs, xp), xp.int64)
        place, seen = self._find(pairs)
        return xp.where(seen, taken(self._stand_ins, place, xp), pairs - users * self._n_items)

    def draw(self, users: Array, rows: tuple[Array, Array], size: int) -> Array:
        """`size` unseen items for each of `users` (B,), uniform and with replacement, by the random `rows`: (B, size)."""
        xp = self.xp
        drawn = rng.words(rows, xp.arange(size, dtype=xp.int64))
        return self.at(users[:, None], rng.below(drawn, xp.take(self.counts, users, axis=0)[:, None]))

    def has_seen(self, users: Array, items: Array) -> Array:
        """Whether `users` have interacted with `items`; shapes broadcast."""
        return self._find(users * self._n_items + items)[1]

    def sample(self, users: Array, rows: tuple[Array, Array], size: int) -> Array:
        """`size` different unseen items for each of `users` (B,) by the random numbers of `rows`: (B, size), -1 where there are
        not so many."""
        if self.twins is not None and self.has_table:
            return self.twins.expand(users, rows, self.counts, self._table, self._n_items, size)
        xp = self.xp
        numbers = spread_numbers(rows, xp.take(self.counts, users, axis=0), size, xp)
        return xp.where(numbers >= 0, self.at(users[:, None], xp.maximum(numbers, self.zero)), -1)

    def _find(self, pairs: Array) -> tuple[Array, Array]:
        """Where in the order of all interactions `pairs` stand, and whether they are among them."""
        xp = self.xp
        if self._pairs is None:
            self._pairs = xp.asarray(pairs_of(self._train))
        place = xp.reshape(xp.searchsorted(self._pairs, xp.reshape(pairs, (-1,))), pairs.shape)
        return place, taken(self._pairs, place, xp) == pairs
