"""Second stage of an update: a split that a model has learnt from, and new interactions, over one set of users and items.

How the whole is divided. A pair that the model has learnt from never becomes one to measure it by, whatever the rule:

- Rules by time (leave-one-out, temporal) are applied to all interactions, with those learnt from counted as older than the
  rest. What was held out and is past now is learnt from. By leave-one-out, users without new interactions keep what they had
  held out.
- Rules by chance leave what was held out where it was and divide the new interactions alone; by leave-one-out-random, only
  those of users who have nothing held out yet.
- "none" learns from everything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.errors import DataError
from srns.interactions import Int64, Interactions
from srns.moments import dates
from srns.splits import SPLITS, Split, make_split

Bool = NDArray[np.bool_]
BY_TIME = ("leave-one-out", "temporal")


class Merged(NamedTuple):
    """`split` over the users and items of before and the new ones; `users` (n_users before,) and `items` (n_items before,) say
    where those of before stand in it, `new` which of its users, items and interactions were not there, in numbers."""

    split: Split
    users: Int64
    items: Int64
    new: dict[str, int]


def merge(
    before: Split, data: Interactions, method: str = "auto", *, seed: int = 0, min_user: int = 0, min_item: int = 0
) -> Merged:
    """Add `data` to what a model was trained on. A pair that is there already keeps its latest time.

    `method` and `seed` are those of `make_split`. "auto" is the method that made `before`, where its name tells; else "none"
    where nothing was held out before, else that of `make_split`. New interactions of users and items with fewer than `min_user`
    and `min_item` of them, old ones counted, are left out.

    >>> before = make_split(Interactions.from_pairs(["ann"] * 4, [1, 2, 3, 4], time=[1, 2, 3, 4]))
    >>> merged = merge(before, Interactions.from_pairs(["abe", "ann"], [2, 0], time=[5, 6]))
    >>> merged.split
    Split('leave-one-out', 2 users x 5 items, train 4, valid 1, test 1)
    >>> merged.users.tolist(), merged.items.tolist(), merged.new
    ([1], [1, 2, 3, 4], {'users': 1, 'items': 1, 'interactions': 2})
    """
    data, notes = _with_times_of(before.train, data)
    if min_user > 1 or min_item > 1:
        data, dropped = _enough(before, data, min_user, min_item)
        least = {"users": min_user, "items": min_item}
        few = " or ".join(f"{who} with fewer than {n}" for who, n in least.items() if n > 1)
        if dropped:
            notes.append(f"left out {dropped:,} new pairs of {few}; rows that the run left out itself count if they come again")
    whole = _joined(before, data)
    users, items = whole.user_ids.indices(before.train.user_ids.labels), whole.item_ids.indices(before.train.item_ids.labels)

    def were(part: Interactions | None) -> Bool:
        """(n,) which of all interactions were in a part before."""
        found = np.zeros(len(whole), bool)
        if part is not None:
            found[whole.places(users[part.users], items[part.items])] = True
        return found

    learnt, valid, test = were(before.train), were(before.valid), were(before.test)
    new = ~(learnt | valid | test)
    if method == "auto":
        held_out = before.valid is not None or before.test is not None
        usual = "random" if whole.time is None else "leave-one-out"
        method = "none" if not held_out else before.name if before.name in SPLITS else usual
    was_held = valid | test
    valid, test = _divided(whole, learnt, valid, test, new, method, seed)
    if past := int(np.count_nonzero(was_held & ~valid & ~test)):
        notes.append(f"{past:,} interactions that were held out before are learnt from now")
    if before.negatives is not None:
        notes.append("fixed negatives are left out: they know nothing of new items and interactions; all items are ranked")
    split = Split(
        method,
        whole.select(~valid & ~test),
        whole.select(valid) if valid.any() else None,
        whole.select(test) if test.any() else None,
        notes=(*data.notes, *notes),
    )
    counts = {"users": whole.n_users - len(users), "items": whole.n_items - len(items), "interactions": int(new.sum())}
    return Merged(split, users, items, counts)


def _divided(
    whole: Interactions, learnt: Bool, valid: Bool, test: Bool, new: Bool, method: str, seed: int
) -> tuple[Bool, Bool]:
    """Which of all interactions are valid and test now."""
    if method == "none":
        return np.zeros((2, len(whole)), bool)[0], np.zeros(len(whole), bool)
    if method not in BY_TIME:
        alone = make_split(whole.select(new), method, seed=seed)
        having = np.zeros(whole.n_users, bool)
        if method == "leave-one-out-random":
            having[whole.users[valid | test]] = True
        fresh = new & ~having[whole.users]
        return valid | (_mask(whole, alone.valid) & fresh), test | (_mask(whole, alone.test) & fresh)
    dated = whole
    if method == "leave-one-out" and whole.time is not None:  # ties must not bring back what was learnt
        moments = np.unique(whole.time, return_inverse=True)[1] + 1
        dated = replace(whole, time=np.where(learnt, 0, moments).astype(np.int64))
    again = make_split(dated, method, seed=seed)
    now = [_mask(whole, part) & ~learnt for part in (again.valid, again.test)]
    if method == "leave-one-out":
        unchanged = (np.bincount(whole.users[new], minlength=whole.n_users) == 0)[whole.users]
        now = [np.where(unchanged, was, is_now) for was, is_now in zip((valid, test), now, strict=True)]
    return now[0], now[1]


def _mask(whole: Interactions, part: Interactions | None) -> Bool:
    """(n,) which of all interactions are in a part over the same users and items."""
    return np.zeros(len(whole), bool) if part is None else part.contains(whole.users, whole.items)


def _joined(before: Split, data: Interactions) -> Interactions:
    """All interactions over one map of users and one of items; the order tells which of equal pairs and times is the latest."""
    parts = [part for part in (before.train, before.valid, before.test) if part is not None]
    user_ids, item_ids = (before.train.user_ids.union(data.user_ids), before.train.item_ids.union(data.item_ids))
    users = [user_ids.indices(each.user_ids.labels)[each.users] for each in (*parts, data)]
    items = [item_ids.indices(each.item_ids.labels)[each.items] for each in (*parts, data)]
    times = [each.time for each in (*parts, data)]
    time: Any = None if any(each is None for each in times) else np.concatenate([each for each in times if each is not None])
    joined = Interactions.from_pairs(
        np.concatenate(users), np.concatenate(items), time=time, user_ids=user_ids, item_ids=item_ids
    )
    return replace(joined, notes=())


def _enough(before: Split, data: Interactions, min_user: int, min_item: int) -> tuple[Interactions, int]:
    """The interactions of `data` that stay where users and items need so many, counted with those of before; how many go."""
    core = _joined(before, data).filter(min_user=min_user, min_item=min_item)
    users, items = data.user_ids.take(data.users), data.item_ids.take(data.items)
    keep = core.contains(core.user_ids.indices(users, missing="-1"), core.item_ids.indices(items, missing="-1"))
    time = None if data.time is None else data.time[keep]
    kept = Interactions.from_pairs(users.filter(keep), items.filter(keep), time=time)
    return replace(kept, notes=data.notes), int(np.count_nonzero(~keep))


def _with_times_of(before: Interactions, data: Interactions) -> tuple[Interactions, list[str]]:
    """`data` with times where there were times before, and a note that lets people see whether the two speak of one clock."""
    if before.time is None:
        return replace(data, time=None), ["times of new rows are left out: the run has none"] * (data.time is not None)
    if data.time is None:
        raise DataError("the run's interactions have times and the new ones have none: name their column, --time-column NAME")
    if not len(data) or not len(before):
        return data, []
    first, last, learnt = dates(data.time.min(), data.time.max(), before.time.max())
    return data, [f"new rows are of times {first} to {last}; the run learnt from times up to {learnt}"]
