"""What users have interacted with, for samplers whose negatives are shared by users or are drawn from all items."""

from __future__ import annotations

from functools import cached_property
from types import ModuleType

import array_api_compat
import numpy as np

from srns.interactions import Interactions
from srns.samplers.base import Array
from srns.samplers.unseen import TABLE_BYTES


class Seen:
    """Look-up of the interactions of `train`, on arrays of the library `xp`.

    >>> seen = Seen(Interactions.from_pairs([0, 0, 1], [0, 2, 3]), np)  # items are dense: 0, 1, 2
    >>> [found.tolist() for found in seen.of(np.asarray([1, 0, 1]))]
    [[0, 1, 1, 2], [2, 0, 1, 2]]
    >>> seen.unseen_weight(np.asarray([0, 1]), np.asarray([0, 1, 2, 2])).tolist()
    [[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]
    """

    def __init__(self, train: Interactions, xp: ModuleType) -> None:
        self.xp = array_api_compat.array_namespace(xp.asarray(0))
        self._starts, self._counts = xp.asarray(train.indptr[:-1].copy()), xp.asarray(train.user_counts.copy())
        self._items = xp.asarray(train.items.astype(np.int64))
        self._train = train

    @cached_property
    def _table(self) -> Array | None:
        """0 or 1 for every pair, where so many fit."""
        train = self._train
        if train.n_users * train.n_items > TABLE_BYTES:
            return None
        table = np.ones((train.n_users, train.n_items), np.uint8)
        table[train.users, train.items] = 0
        return self.xp.asarray(table)

    def of(self, users: Array) -> tuple[Array, Array]:
        """All interactions of users (B,), one user's after the other's: places in `users`, and items."""
        xp = self.xp
        counts = xp.take(self._counts, users, axis=0)
        ends = xp.cumulative_sum(counts)
        # From a place among all of these to the place among training interactions.
        shift = xp.repeat(xp.take(self._starts, users, axis=0) - ends + counts, counts)
        places = xp.repeat(xp.arange(users.shape[0], dtype=xp.int64), counts)
        return places, xp.take(self._items, shift + xp.arange(shift.shape[0], dtype=xp.int64), axis=0)

    def unseen_weight(self, users: Array, items: Array) -> Array:
        """For users (B,) and items (K,) that they share: 0 where the user has interacted with the item, else 1: (B, K)
        float32.

        A table of all pairs answers with one read where it fits. Else this goes through what the users have interacted with,
        most of which is not among `items` and ends in a column of its own: a search for each of the B K pairs took half of an
        epoch with batches as negatives.
        """
        xp = self.xp
        if self._table is not None:
            return xp.astype(xp.take(xp.take(self._table, users, axis=0), items, axis=1), xp.float32)
        users, row = xp.unique_inverse(users)
        distinct, column = xp.unique_inverse(items)
        other = distinct.shape[0]
        columns = xp.full((self._train.n_items,), other, dtype=xp.int64)
        columns[distinct] = xp.arange(other, dtype=xp.int64)
        weight = xp.ones((users.shape[0], other + 1), dtype=xp.float32)
        places, seen = self.of(users)
        xp.reshape(weight, (-1,))[places * (other + 1) + xp.take(columns, seen, axis=0)] = 0.0
        return xp.take(xp.take(weight, column, axis=1), row, axis=0)
