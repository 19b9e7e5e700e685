"""Second stage of the pipeline: which interactions train, which choose the model, which judge it.

A split depends on the interactions as a set and on the seed, never on the order of rows in a file: dense ids are sorted, and
all choices are made on the CSR. Whatever had to be decided on the way is said in `Split.notes`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns import rng
from srns.errors import ConfigError, DataError
from srns.interactions import Int64, Interactions, Total, pair_sums
from srns.moments import dates

Bool = NDArray[np.bool_]
Ratio = tuple[float, float, float]  # shares of train, valid and test
EIGHTY_TEN_TEN: Ratio = (0.8, 0.1, 0.1)
NO_TIMES = "no times: valid and test items were chosen at random"


@dataclass(frozen=True, eq=False)
class Split:
    """Train, valid and test interactions over one set of users and items, no pair in two of them.

    `negatives` (n_users, k) are the protocol's fixed negatives where the data bring some: row u holds the items that user
    u's valid and test item are ranked against. `hidden` maps a share sigma to the test positives that a noise experiment
    may draw as negatives. `notes` say what splitting had to decide (ties, missing times, users too short to split).
    """

    name: str
    train: Interactions
    valid: Interactions | None
    test: Interactions | None
    negatives: Int64 | None = None
    hidden: Mapping[float, Interactions] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        others = {"valid": self.valid, "test": self.test, **{f"hidden[{sigma}]": part for sigma, part in self.hidden.items()}}
        for name, part in others.items():
            if part is not None and (part.user_ids != self.train.user_ids or part.item_ids != self.train.item_ids):
                raise DataError(
                    f"{name} of split {self.name!r} has other users or items than train; all parts share one id map"
                )
        judging = [(name, part) for name in ("valid", "test") if (part := others[name]) is not None]
        for name, part in judging:
            _require_disjoint(self.name, "train", self.train, name, part)
        if len(judging) == 2:
            _require_disjoint(self.name, *judging[0], *judging[1])
        if self.negatives is not None and (self.negatives.ndim != 2 or len(self.negatives) != self.train.n_users):
            expected = f"one row for each of {self.train.n_users:,} users"
            raise DataError(f"negatives of split {self.name!r} have shape {self.negatives.shape}, expected {expected}")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {'none' if part is None else f'{part.whole.n:,}'}" for name, part in self._parts())
        return f"Split({self.name!r}, {self.train.whole.n_users:,} users x {self.train.n_items:,} items, {sizes})"

    def fingerprint(self, total: Total = lambda sums: sums) -> str:
        """A digest of ids, train, valid, test, fixed negatives and hidden positives: equal for equal splits, however their
        users are divided among ranks; `total` adds arrays up over these."""
        digest = hashlib.sha256()
        for name, part in self._parts():
            digest.update(f"{name} {part.fingerprint(total) if part is not None else None};".encode())
        if self.negatives is not None:
            rows, columns = np.indices(self.negatives.shape).reshape(2, -1)
            values = self.negatives.ravel() + 1 + columns * (self.train.n_items + 1)
            digest.update(total(pair_sums(rows, values, self.train.whole.first_user)).astype("<i8").tobytes())
        for sigma, hidden in sorted(self.hidden.items()):
            digest.update(f"hidden {sigma!r} {hidden.fingerprint(total)};".encode())
        return digest.hexdigest()

    def _parts(self) -> tuple[tuple[str, Interactions | None], ...]:
        return ("train", self.train), ("valid", self.valid), ("test", self.test)


def make_split(data: Interactions, method: str = "auto", *, ratio: Ratio = EIGHTY_TEN_TEN, seed: int = 0) -> Split:
    """Split by the name of a method: one of `SPLITS`, or "auto": leave-one-out where there are times, else random.

    >>> data = Interactions.from_pairs(["ann"] * 10, range(10))
    >>> make_split(data)
    Split('random', 1 users x 10 items, train 8, valid 1, test 1)
    """
    notes = data.notes
    if method == "auto":
        method = "random" if data.time is None else "leave-one-out"
        notes += (NO_TIMES,) if data.time is None else ()
    if method not in SPLITS:
        raise ConfigError(f"unknown split {method!r}; known: {', '.join(['auto', *SPLITS])}")
    split = SPLITS[method](data, ratio, seed)
    return replace(split, notes=(*notes, *split.notes))


def _have(count: int) -> str:
    return f"{count:,} user has" if count == 1 else f"{count:,} users have"


def split_random(data: Interactions, *, ratio: Ratio = EIGHTY_TEN_TEN, by: str = "user", seed: int = 0) -> Split:
    """Random shares of each user's interactions (`by="user"`), or of all of them together (`by="global"`).

    Of n interactions, n x share go to valid and to test, rounded to the nearest integer, halves up; the rest trains. A user
    whose shares of valid and test would round to nothing, or leave nothing to train, stays whole in train. A share of 0
    makes no such part.

    >>> split_random(Interactions.from_pairs([1, 1, 1, 1, 2], [1, 2, 3, 4, 1]), ratio=(0.5, 0, 0.5))
    Split('random', 2 users x 4 items, train 3, valid none, test 2)
    """
    _check_ratio(ratio)
    if by not in ("user", "global"):
        raise ConfigError(f"by must be 'user' or 'global', found {by!r}")
    group = data.users if by == "user" else np.zeros(len(data), np.int32)
    sizes = np.bincount(group, minlength=1)
    n_valid, n_test = _rounded(sizes, ratio[1]), _rounded(sizes, ratio[2])
    whole = (n_valid + n_test == 0) | (n_valid + n_test >= sizes)
    n_valid[whole] = n_test[whole] = 0
    rank = _rank_within(group, _shuffle(data, seed, stream=0))
    test = rank < n_test[group]
    valid = ~test & (rank < (n_valid + n_test)[group])
    notes = []
    if kept := int((whole & (sizes > 0)).sum()):
        shares = "/".join(f"{100 * share:g}" for share in ratio)
        who = _have(kept) if by == "user" else "the data have"
        notes.append(f"{who} too few interactions for a split of {shares}, which stay whole in train")
    return Split(
        "random" if by == "user" else "random-global",
        data.select(~test & ~valid),
        data.select(valid) if ratio[1] else None,
        data.select(test) if ratio[2] else None,
        notes=tuple(notes),
    )


def split_leave_one_out(data: Interactions, *, missing_time: str = "raise", seed: int = 0) -> Split:
    """Each user's latest interaction is test, the one before it valid, the rest train.

    Users with fewer than 3 interactions stay whole in train. Interactions of a user at the same time are put in random
    order by `seed`, since an order by item id would favour new or rare items wherever ids tell of age. Data without times
    raise, or with `missing_time="random"` are treated as if all times were equal.

    >>> split = split_leave_one_out(Interactions.from_pairs(["ann"] * 4, [1, 2, 3, 4], time=[5, 7, 6, 4]))
    >>> split.test.items.tolist(), split.valid.items.tolist(), split.train.items.tolist()
    ([1], [2], [0, 3])
    """
    if missing_time not in ("raise", "random"):
        raise ConfigError(f"missing_time must be 'raise' or 'random', found {missing_time!r}")
    notes = []
    if data.time is None:
        if missing_time == "raise":
            raise DataError(
                "leave-one-out takes the latest interaction of each user, and the data have no times: name the time column "
                "when reading, or choose the split 'random'; split_leave_one_out(missing_time='random') leaves out a random one"
            )
        notes.append(NO_TIMES)
    time = np.zeros(len(data), np.int64) if data.time is None else data.time
    order = np.lexsort((_shuffle(data, seed, stream=1), time, data.users))  # (n,) rows by user, time, chance
    long = data.user_counts >= 3
    last = data.indptr[1:][long] - 1
    test, valid = np.zeros((2, len(data)), bool)
    test[order[last]] = valid[order[last - 1]] = True
    if short := int(((data.user_counts > 0) & ~long).sum()):
        notes.append(f"{_have(short)} fewer than 3 interactions, which stay whole in train")
    latest = time[order[last]], time[order[last - 1]], time[order[last - 2]]
    tied = int(((latest[0] == latest[1]) | (latest[1] == latest[2])).sum())
    if tied and data.time is not None:
        notes.append(f"{_have(tied)} several interactions at the deciding time: the choice among them is random")
    return Split("leave-one-out", data.select(~test & ~valid), data.select(valid), data.select(test), notes=tuple(notes))


def split_temporal(
    data: Interactions, *, cut: float | tuple[float, float] | None = None, ratio: Ratio = EIGHTY_TEN_TEN
) -> Split:
    """One moment for all users: what came before trains, what came from then on judges.

    `cut` is (valid_from, test_from) in the unit of the data's times, or test_from alone for no valid part. Without it, the
    cuts are the moments that come nearest to `ratio`. Interactions of equal time are always in the same part. Users and
    items that occur only after the cut are cold: they stay in the id maps and are counted in the notes.

    >>> data = Interactions.from_pairs([1, 1, 2, 2], [1, 2, 1, 3], time=[10, 20, 30, 40])
    >>> split = split_temporal(data, cut=(20, 35))
    >>> split
    Split('temporal', 2 users x 3 items, train 1, valid 2, test 1)
    """
    if data.time is None:
        raise DataError("a temporal split needs times, and the data have none: name the time column when reading")
    valid_from, test_from = _nearest_cuts(data.time, ratio) if cut is None else _checked_cut(cut)
    test, train = data.time >= test_from, data.time < valid_from
    valid = ~test & ~train
    for name, part in (("train", train), ("test", test)):
        if not part.any():
            span = f"times run from {data.time.min()} to {data.time.max()}" if len(data) else "there are no interactions"
            raise DataError(f"cut at {valid_from} and {test_from} leaves nothing in {name}: {span}")
    shown = dates(valid_from, test_from)
    notes = [f"valid from time {shown[0]}, test from {shown[1]}" if valid.any() else f"test from time {shown[1]}"]
    if cut is None and ratio[1] and not valid.any():
        notes.append("equal times leave nothing between train and test: there is no valid part")
    cold_users = np.setdiff1d(data.users[~train], data.users[train])
    cold_items = np.setdiff1d(data.items[~train], data.items[train])
    if len(cold_users) or len(cold_items):
        notes.append(f"cold, occurring only after train: {len(cold_users):,} users, {len(cold_items):,} items")
    return Split(
        "temporal",
        data.select(train),
        data.select(valid) if valid.any() else None,
        data.select(test),
        notes=tuple(notes),
    )


def hide_positives(split: Split, sigma: float, *, seed: int = 0) -> Split:
    """The same split with a share `sigma` of the test pairs, chosen uniformly, as `hidden[sigma]`: known false negatives.

    The choice is nested: with the same seed, what is hidden at a smaller sigma is hidden at a larger one too.

    >>> split = split_random(Interactions.from_pairs([1] * 10, range(10)), ratio=(0.5, 0, 0.5))
    >>> len(hide_positives(split, 0.4).hidden[0.4])
    2
    """
    if split.test is None:
        raise DataError(f"split {split.name!r} has no test part to hide positives of")
    if isinstance(sigma, bool) or not isinstance(sigma, int | float | np.number) or not 0 <= sigma <= 1:
        raise ConfigError(f"sigma must be a number from 0 to 1, found {sigma!r}")
    rank = _shuffle(split.test, seed, stream=2)
    hidden = split.test.select(rank < _rounded(np.array(split.test.whole.n), float(sigma)))
    return replace(split, hidden={**split.hidden, float(sigma): hidden})


Method = Callable[[Interactions, Ratio, int], Split]
SPLITS: dict[str, Method] = {
    "leave-one-out": lambda data, ratio, seed: split_leave_one_out(data, seed=seed),
    "leave-one-out-random": lambda data, ratio, seed: split_leave_one_out(
        replace(data, time=None), missing_time="random", seed=seed
    ),
    "random": lambda data, ratio, seed: split_random(data, ratio=ratio, seed=seed),
    "random-global": lambda data, ratio, seed: split_random(data, ratio=ratio, by="global", seed=seed),
    "temporal": lambda data, ratio, seed: split_temporal(data, ratio=ratio),
    "none": lambda data, ratio, seed: Split("none", data, None, None),  # all of it trains: for a model that goes to work
}


def _shuffle(data: Interactions, seed: int, *, stream: int) -> Int64:
    """(n,) the place of each interaction in a random order of all, those of other ranks among them.

    Each stream is a purpose, so that equal seeds do not tie two choices together.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be an integer of at least 0, found {seed!r}")
    key = rng.stream_key(int(seed), "split", stream)
    return rng.permutation(key, data.whole.n, data.whole.first + np.arange(len(data)))


def _rank_within(group: NDArray[np.int32], key: Int64) -> Int64:
    """(n,) the place of each row among the rows of its group, by ascending key; `group` ascends."""
    sizes = np.bincount(group, minlength=1)
    rank = np.empty(len(group), np.int64)
    rank[np.lexsort((key, group))] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank


def _rounded(sizes: Int64, share: float) -> Int64:
    """sizes x share to the nearest integer, halves up; the small addend keeps 50 x 0.29 from falling below 14.5."""
    return np.asarray(np.floor(sizes * share + 0.5 + 1e-9), np.int64)


def _nearest_cuts(time: NDArray[Any], ratio: Ratio) -> tuple[Any, Any]:
    """The times at which valid and test begin, so that the parts come nearest to their shares."""
    _check_ratio(ratio)
    if not ratio[2]:
        raise ConfigError("a temporal split needs a test share above 0")
    moments, sizes = np.unique(time, return_counts=True)
    if len(moments) < 2:
        raise DataError(f"a temporal split needs at least two different times, found {len(moments)}")
    earlier = np.cumsum(sizes)[:-1]  # interactions before moments[1], moments[2], ...
    first = int(np.abs(earlier - len(time) * ratio[0]).argmin())
    second = first + int(np.abs(earlier[first:] - len(time) * (ratio[0] + ratio[1])).argmin())
    return moments[1 + first], moments[1 + second]


def _checked_cut(cut: float | tuple[float, float]) -> tuple[float, float]:
    pair = tuple(cut) if isinstance(cut, tuple | list) else (cut, cut)
    numbers = all(isinstance(at, int | float | np.number) and math.isfinite(at) for at in pair)
    if len(pair) != 2 or not numbers or pair[0] > pair[1]:
        raise ConfigError(f"cut must be a time or two ascending times (valid_from, test_from), found {cut!r}")
    return pair[0], pair[1]


def _check_ratio(ratio: Ratio) -> None:
    numbers = len(ratio) == 3 and all(isinstance(share, int | float | np.number) and 0 <= share <= 1 for share in ratio)
    if not numbers or ratio[0] == 0 or abs(sum(ratio) - 1) > 1e-6:
        raise ConfigError(f"ratio must be three shares of train, valid and test with sum 1 and train above 0, found {ratio!r}")


def _require_disjoint(split: str, one_name: str, one: Interactions, other_name: str, other: Interactions) -> None:
    # The pairs of a CSR ascend as they stand; computed here and dropped, since `contains` would keep them in memory.
    pairs = [part.users.astype(np.int64) * part.n_items + part.items for part in (one, other)]
    place = np.searchsorted(pairs[0], pairs[1])
    both = int((pairs[0][np.minimum(place, len(pairs[0]) - 1)] == pairs[1]).sum()) if len(one) else 0
    if both:
        raise DataError(f"{both:,} pairs of {other_name} are in {one_name} too, in split {split!r}; a pair belongs to one part")
