"""Splits against loops over Python dicts; every property also holds for users with 0, 1 and 2 interactions."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srns.errors import ConfigError, DataError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.splits import SPLITS, Split, hide_positives, make_split, split_leave_one_out, split_random, split_temporal

N_USERS, N_ITEMS = 7, 12
Row = tuple[int, int, int]
pair_times = st.dictionaries(
    st.tuples(st.integers(0, N_USERS - 2), st.integers(0, N_ITEMS - 1)), st.integers(0, 30), max_size=60
)
ratios = st.sampled_from(
    [(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.7, 0.0, 0.3), (0.6, 0.4, 0.0), (0.2, 0.3, 0.5), (1.0, 0.0, 0.0)]
)
seeds = st.integers(0, 2**40)


def build(times: dict[tuple[int, int], int], with_time: bool = True) -> Interactions:
    """Weight is the place among the sorted pairs, so a row is known again in any part; the last user has no interactions."""
    pairs = sorted(times)
    return Interactions.from_pairs(
        [user for user, _ in pairs],
        [item for _, item in pairs],
        weight=np.arange(len(pairs)),
        time=np.array([times[pair] for pair in pairs], np.int64) if with_time else None,
        user_ids=IdMap.dense(N_USERS, "user"),
        item_ids=IdMap.dense(N_ITEMS, "item"),
    )


def rows_of(part: Interactions | None) -> set[tuple[int, ...]]:
    if part is None:
        return set()
    columns = [part.users, part.items, *(column for column in (part.weight, part.time) if column is not None)]
    return set(zip(*(column.tolist() for column in columns), strict=True))


def prints(split: Split) -> list[str | None]:
    return [None if part is None else part.fingerprint() for part in (split.train, split.valid, split.test)]


def assert_partition(split: Split, data: Interactions) -> None:
    parts = [part for part in (split.train, split.valid, split.test) if part is not None]
    assert sum(len(part) for part in parts) == len(data)
    assert set().union(*(rows_of(part) for part in parts)) == rows_of(data)  # weight and time travel with their pair
    assert all(part.user_ids is data.user_ids and part.item_ids is data.item_ids for part in parts)


def have(users: int) -> str:
    return f"{users:,} user has" if users == 1 else f"{users:,} users have"


@given(pair_times, ratios, seeds)
def test_random_by_user_follows_the_rounding_rule(times: dict[tuple[int, int], int], ratio: Any, seed: int) -> None:
    data = build(times)
    split = split_random(data, ratio=ratio, seed=seed)
    assert_partition(split, data)
    assert (split.valid is None) == (ratio[1] == 0)
    assert (split.test is None) == (ratio[2] == 0)
    whole = 0
    for user in range(N_USERS):
        n = len(data.items_of(user))
        valid, test = (math.floor(n * share + 0.5) for share in ratio[1:])
        if valid + test == 0 or valid + test >= n:
            whole += n > 0
            valid = test = 0
        found = [0 if part is None else len(part.items_of(user)) for part in (split.train, split.valid, split.test)]
        assert found == [n - valid - test, valid, test]
    shares = "/".join(f"{100 * share:g}" for share in ratio)
    assert split.notes == (
        (f"{have(whole)} too few interactions for a split of {shares}, which stay whole in train",) if whole else ()
    )


@given(pair_times, ratios, seeds)
def test_random_global_has_the_shares_of_the_whole(times: dict[tuple[int, int], int], ratio: Any, seed: int) -> None:
    data = build(times)
    split = split_random(data, ratio=ratio, by="global", seed=seed)
    assert_partition(split, data)
    valid, test = (math.floor(len(data) * share + 0.5) for share in ratio[1:])
    if valid + test >= len(data):
        valid = test = 0
    assert [0 if part is None else len(part) for part in (split.valid, split.test)] == [valid, test]


def test_random_choice_is_uniform() -> None:
    data = Interactions.from_pairs([0] * 10, range(10))
    chosen = np.zeros(10)
    for seed in range(2000):
        test = split_random(data, ratio=(0.7, 0, 0.3), seed=seed).test
        assert test is not None
        chosen[test.items] += 1
    assert np.abs(chosen / 2000 - 0.3).max() < 4 * math.sqrt(0.3 * 0.7 / 2000)


def latest_first(data: Interactions, user: int) -> list[tuple[int, int]]:
    assert data.time is not None
    own = slice(int(data.indptr[user]), int(data.indptr[user + 1]))
    return sorted(zip(data.time[own].tolist(), data.items[own].tolist(), strict=True), reverse=True)


def check_leave_one_out(data: Interactions, split: Split) -> None:
    """The loop: each user's latest is test and second latest valid, up to the choice among equal times."""
    assert split.valid is not None
    assert split.test is not None
    assert_partition(split, data)
    tied = short = 0
    for user in range(data.n_users):
        rows = latest_first(data, user)
        if len(rows) < 3:
            assert len(split.train.items_of(user)) == len(rows)
            short += len(rows) > 0
            continue
        (test,), (valid,) = split.test.items_of(user).tolist(), split.valid.items_of(user).tolist()
        time_of = {item: time for time, item in rows}
        assert (time_of[test], time_of[valid]) == (rows[0][0], rows[1][0])
        if len({time for time, _ in rows[:3]}) == 3:
            assert (test, valid) == (rows[0][1], rows[1][1])
        else:
            tied += 1
    expected = [f"{have(short)} fewer than 3 interactions, which stay whole in train"] * (short > 0)
    expected += [f"{have(tied)} several interactions at the deciding time: the choice among them is random"] * (tied > 0)
    assert [note for note in split.notes if note not in data.notes] == expected


@given(pair_times, seeds)
def test_leave_one_out_equals_the_loop(times: dict[tuple[int, int], int], seed: int) -> None:
    data = build(times)
    check_leave_one_out(data, split_leave_one_out(data, seed=seed))


def test_leave_one_out_breaks_ties_evenly() -> None:
    data = Interactions.from_pairs([0] * 4, range(4), time=[5, 5, 5, 5])
    chosen = np.zeros((2, 4))
    for seed in range(2000):
        split = split_leave_one_out(data, seed=seed)
        assert split.valid is not None
        assert split.test is not None
        chosen[0, split.valid.items] += 1
        chosen[1, split.test.items] += 1
    assert np.abs(chosen / 2000 - 0.25).max() < 4 * math.sqrt(0.25 * 0.75 / 2000)


@given(pair_times, seeds)
def test_leave_one_out_without_times_needs_a_choice(times: dict[tuple[int, int], int], seed: int) -> None:
    data = build(times, with_time=False)
    with pytest.raises(DataError, match="name the time column when reading, or choose the split 'random'"):
        split_leave_one_out(data, seed=seed)
    split = split_leave_one_out(data, missing_time="random", seed=seed)
    assert_partition(split, data)
    assert split.test is not None
    assert split.test.user_counts.tolist() == [int(n >= 3) for n in data.user_counts]
    assert split.notes[0] == "no times: valid and test items were chosen at random"
    assert make_split(data).notes[0] == split.notes[0], "a split that is random for want of times says so"
    assert split.notes[0] not in make_split(data, "random").notes + make_split(build(times)).notes, "nobody has to be told"


@given(pair_times, st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.7, 0.0, 0.3)]))
def test_temporal_by_ratio_keeps_order_and_equal_times_together(times: dict[tuple[int, int], int], ratio: Any) -> None:
    data = build(times)
    moments = sorted(set(times.values()))
    if len(moments) < 2:
        with pytest.raises(DataError, match="at least two different times"):
            split_temporal(data, ratio=ratio)
        return
    split = split_temporal(data, ratio=ratio)
    assert_partition(split, data)
    parts = [
        set(part.time.tolist()) for part in (split.train, split.valid, split.test) if part is not None and part.time is not None
    ]
    for earlier, later in pairwise(parts):
        assert max(earlier) < min(later)
    # No other moment would have come nearer to the share of train.
    sizes = [sum(time < moment for time in times.values()) for moment in moments[1:]]
    assert abs(len(split.train) - len(data) * ratio[0]) == min(abs(size - len(data) * ratio[0]) for size in sizes)
    warm = {user for user, *_ in rows_of(split.train)}, {item for _, item, *_ in rows_of(split.train)}
    cold = len({u for u, _ in times} - warm[0]), len({i for _, i in times} - warm[1])
    note = f"cold, occurring only after train: {cold[0]} users, {cold[1]} items"
    assert (note in split.notes) == (cold != (0, 0))


@given(pair_times, st.integers(0, 31), st.integers(0, 31))
def test_temporal_by_cut_equals_the_loop(times: dict[tuple[int, int], int], one: int, other: int) -> None:
    data, (valid_from, test_from) = build(times), sorted((one, other))
    expected: list[set[tuple[int, int]]] = [set(), set(), set()]
    for pair, time in times.items():
        expected[(time >= valid_from) + (time >= test_from)].add(pair)
    if not expected[0] or not expected[2]:
        with pytest.raises(DataError, match=f"cut at {valid_from} and {test_from} leaves nothing in (train|test)"):
            split_temporal(data, cut=(valid_from, test_from))
        return
    split = split_temporal(data, cut=(valid_from, test_from))
    assert_partition(split, data)
    assert [{row[:2] for row in rows_of(part)} for part in (split.train, split.valid, split.test)] == expected
    if valid_from == test_from:
        assert prints(split_temporal(data, cut=test_from)) == prints(split)


def test_temporal_is_exact_for_nanoseconds() -> None:
    start = 1_700_000_000_000_000_000  # beyond what float64 tells apart
    data = Interactions.from_pairs([0, 0, 0], [0, 1, 2], time=np.array([start, start + 1, start + 2]))
    split = split_temporal(data, cut=(start + 1, start + 2))
    assert [part.items.tolist() for part in (split.train, split.valid, split.test) if part is not None] == [[0], [1], [2]]


def test_temporal_says_when_ties_leave_no_valid() -> None:
    data = Interactions.from_pairs([0] * 10, range(10), time=[1] * 9 + [2])
    split = split_temporal(data)
    assert (len(split.train), split.valid, 0 if split.test is None else len(split.test)) == (9, None, 1)
    assert "equal times leave nothing between train and test: there is no valid part" in split.notes


@given(pair_times, st.sampled_from([*SPLITS, "auto"]), seeds, st.randoms(use_true_random=False))
def test_splits_depend_on_the_set_and_the_seed_only(
    times: dict[tuple[int, int], int], method: str, seed: int, random: Any
) -> None:
    if method == "temporal" and len(set(times.values())) < 2:
        return
    rows = [(f"u{user}", item, time) for (user, item), time in times.items()]
    splits = []
    for _ in range(2):
        users, items, stamps = zip(*rows, strict=True) if rows else ((), (), ())
        splits.append(make_split(Interactions.from_pairs(users, items, time=np.array(stamps, np.int64)), method, seed=seed))
        random.shuffle(rows)
    assert prints(splits[0]) == prints(splits[1])
    assert splits[0].notes == splits[1].notes


def test_seeds_differ() -> None:
    data = Interactions.from_pairs(np.repeat(np.arange(20), 20), np.tile(np.arange(20), 20))
    for method in ("random", "random-global"):
        assert prints(make_split(data, method, seed=0)) != prints(make_split(data, method, seed=1))


@given(pair_times, seeds, st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_hidden_positives_are_nested_shares_of_test(times: dict[tuple[int, int], int], seed: int, sigmas: list[float]) -> None:
    split = split_random(build(times), ratio=(0.5, 0, 0.5))
    assert split.test is not None
    for sigma in sigmas:
        split = hide_positives(split, sigma, seed=seed)
    assert set(split.hidden) == set(sigmas)
    assert split.test is not None
    inner: set[tuple[int, ...]] = set()
    for sigma in sorted(split.hidden):
        outer = rows_of(split.hidden[sigma])
        assert inner <= outer <= rows_of(split.test)
        assert abs(len(outer) - sigma * len(split.test)) <= 0.5 + 1e-6
        inner = outer
    ends = hide_positives(hide_positives(split, 0, seed=seed), 1, seed=seed).hidden
    assert len(ends[0.0]) == 0
    assert rows_of(ends[1.0]) == rows_of(split.test)


def test_make_split_chooses_by_times_and_lists_names() -> None:
    times = {(0, item): item for item in range(10)}
    assert make_split(build(times)).name == "leave-one-out"
    assert make_split(build(times, with_time=False)).name == "random"
    with pytest.raises(ConfigError, match="unknown split 'loo'; known: auto, leave-one-out, leave-one-out-random, random"):
        make_split(build(times), "loo")


def test_bad_arguments_are_named() -> None:
    data = build({(0, item): item for item in range(10)})
    train = build({(0, 1): 1, (0, 2): 2})
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: split_random(data, ratio=(0.8, 0.1, 0.2)), ConfigError, "ratio must be three shares"),
        (lambda: split_random(data, ratio=(0, 0.5, 0.5)), ConfigError, "ratio must be three shares"),
        (lambda: split_random(data, ratio=(0.9, 0.1)), ConfigError, "ratio must be three shares"),  # type: ignore[arg-type]
        (lambda: split_random(data, ratio=(math.nan, 0.5, 0.5)), ConfigError, "ratio must be three shares"),
        (lambda: split_random(data, by="item"), ConfigError, "by must be 'user' or 'global', found 'item'"),
        (lambda: split_random(data, seed=-1), ConfigError, "seed must be an integer of at least 0, found -1"),
        (lambda: split_leave_one_out(data, missing_time="x"), ConfigError, "missing_time must be 'raise' or 'random'"),
        (lambda: split_temporal(data, cut=(5, 4)), ConfigError, "cut must be a time or two ascending times"),
        (lambda: split_temporal(data, cut=math.nan), ConfigError, "cut must be a time or two ascending times"),
        (lambda: split_temporal(data, ratio=(0.9, 0.1, 0)), ConfigError, "needs a test share above 0"),
        (lambda: split_temporal(build({}, with_time=False)), DataError, "a temporal split needs times"),
        (lambda: hide_positives(Split("x", data, None, None), 0.5), DataError, "split 'x' has no test part"),
        (lambda: hide_positives(split_random(data), 1.1), ConfigError, "sigma must be a number from 0 to 1, found 1.1"),
        (lambda: hide_positives(split_random(data), math.nan), ConfigError, "sigma must be a number from 0 to 1, found nan"),
        (lambda: Split("x", train, None, train), DataError, "2 pairs of test are in train too, in split 'x'"),
        (lambda: Split("x", data.select(data.items > 5), train, train), DataError, "2 pairs of test are in valid too"),
        (lambda: Split("x", train, None, Interactions.from_pairs([9], [9])), DataError, "test of split 'x' has other users or"),
        (lambda: Split("x", train, None, None, np.zeros((3, 2), np.int64)), DataError, "negatives .* shape \\(3, 2\\)"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()


def test_ml_100k_leave_one_out_equals_the_loop() -> None:
    path = Path(os.environ.get("SRNS_DATA", "")) / "ml-100k.inter"
    if "SRNS_DATA" not in os.environ or not path.exists():
        pytest.skip("SRNS_DATA does not name a folder with ml-100k.inter")
    table = pl.read_csv(path, separator="\t", new_columns=["user", "item", "rating", "time"])
    data = Interactions.from_pairs(table["user"], table["item"], weight=table["rating"], time=table["time"].cast(pl.Int64))
    data = data.filter(min_weight=4)
    assert repr(data) == "Interactions(942 users x 1,447 items, 55,375 interactions, with weight, with time)"
    split = make_split(data)
    check_leave_one_out(data, split)
    assert repr(split) == "Split('leave-one-out', 942 users x 1,447 items, train 53,491, valid 942, test 942)"
    assert len(make_split(data, "random-global").train) == 55_375 - 2 * 5_538
    later = split_temporal(data)
    assert later.test is not None
    assert later.test.time is not None
    assert later.train.time is not None
    assert later.train.time.max() < later.test.time.min()
    assert abs(len(later.train) / len(data) - 0.8) < 0.001
