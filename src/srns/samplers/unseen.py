"""The items a user has not interacted with, addressed by rank: the pool that every sampler draws from.

The r-th unseen item of a user is found by one binary search, so one random number gives one negative: no rejection, no
retry, and a user who has seen all items but one is no slower than any other.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

from srns.errors import DataError
from srns.interactions import Interactions

Array = Any


def require_unseen(train: Interactions) -> None:
    """Refuse a user who has interacted with every item: no negative exists for them."""
    saturated = np.flatnonzero(train.user_counts >= train.n_items)
    if len(saturated):
        label = train.user_ids.label(int(saturated[0]))
        raise DataError(f"user {label!r} has interacted with all {train.n_items:,} items: no negative exists for this user")


class Unseen:
    """Look-up of unseen items over `train`, on arrays of the library `xp`.

    >>> train = Interactions.from_pairs([0, 0, 1], [0, 2, 3])
    >>> Unseen(train, np).nth(np.asarray([0, 1]), np.asarray([0, 0]))  # items are dense: 0, 1, 2
    array([2, 0])
    """

    def __init__(self, train: Interactions, xp: ModuleType) -> None:
        require_unseen(train)
        # Seen items minus their rank in the row count the unseen items before them; offset by user, all rows form one
        # ascending array that a single searchsorted serves.
        starts = train.indptr[:-1]
        unseen_before = train.items - (np.arange(len(train)) - starts[train.users])
        flat = train.users.astype(np.int64) * (train.n_items + 1) + unseen_before
        self.xp = array_api_compat.array_namespace(xp.asarray(0))
        self._starts = xp.asarray(starts.copy())
        self._flat = xp.asarray(flat)
        self._stride = train.n_items + 1
        self.counts = xp.asarray(train.n_items - train.user_counts)  # (n_users,) how many items each user has not seen

    def nth(self, users: Array, ranks: Array) -> Array:
        """The item of rank `ranks` (0-based, ascending) among those unseen by `users`; shapes are equal."""
        place = self.xp.searchsorted(self._flat, users * self._stride + ranks, side="right")
        return ranks + (place - self.xp.take(self._starts, users, axis=0))
