"""Whether a user has interacted with an item, for samplers whose negatives are shared by users.

A table of all pairs answers with one read where it fits; else a search in the sorted pairs does.
"""

from __future__ import annotations

from types import ModuleType

import array_api_compat
import numpy as np

from srns.interactions import Interactions
from srns.samplers.base import Array
from srns.samplers.unseen import TABLE_BYTES, pairs_of


class Seen:
    """Look-up of the interactions of `train`, on arrays of the library `xp`.

    >>> seen = Seen(Interactions.from_pairs([0, 0, 1], [0, 2, 3]), np)  # items are dense: 0, 1, 2
    >>> seen.unseen_weight(np.asarray([0, 1]), np.asarray([0, 1, 2, 2])).tolist()
    [[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]
    """

    def __init__(self, train: Interactions, xp: ModuleType) -> None:
        self.xp = array_api_compat.array_namespace(xp.asarray(0))
        self._n_items = train.n_items
        self._unseen = self._pairs = None
        if train.n_users * train.n_items <= TABLE_BYTES:
            table = np.ones((train.n_users, train.n_items), np.uint8)
            table[train.users, train.items] = 0
            self._unseen = xp.asarray(table)
        else:
            self._pairs = xp.asarray(pairs_of(train))

    def unseen_weight(self, users: Array, items: Array) -> Array:
        """For users (B,) and items (K,) that they share: 0 where the user has interacted with the item, else 1: (B, K)
        float32."""
        xp = self.xp
        if self._unseen is not None:
            return xp.astype(xp.take(xp.take(self._unseen, users, axis=0), items, axis=1), xp.float32)
        pairs = xp.reshape(users[:, None] * self._n_items + items[None, :], (-1,))
        found = xp.take(self._pairs, xp.searchsorted(self._pairs, pairs), axis=0)
        return xp.reshape(xp.astype(found != pairs, xp.float32), (users.shape[0], items.shape[0]))
