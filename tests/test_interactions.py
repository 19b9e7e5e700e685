"""Interactions and IdMap against Python dicts, sets and loops."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from difflib import get_close_matches
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srns.errors import DataError, UnknownIdError
from srns.ids import IdMap
from srns.interactions import Interactions

integers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=5)  # includes "", NUL and astral characters
label_lists = st.one_of(st.lists(integers, max_size=30), st.lists(texts, max_size=30))
rows = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 5), st.integers(-3, 9)), max_size=60)


def build(rows: list[tuple[int, int, int, int]]) -> Interactions:
    """Rows of user, item, weight, time; users are strings so that dense ids and labels cannot be confused."""
    return Interactions.from_pairs(
        [f"user{user}" for user, *_ in rows],
        [item for _, item, *_ in rows],
        weight=[weight for *_, weight, _ in rows],
        time=np.array([time for *_, time in rows], np.int64),
    )


def as_dict(data: Interactions) -> dict[tuple[Any, Any], tuple[float, int]]:
    assert data.weight is not None
    assert data.time is not None
    users, items = data.user_ids.take(data.users).to_list(), data.item_ids.take(data.items).to_list()
    values = zip(data.weight.tolist(), data.time.tolist(), strict=True)
    return dict(zip(zip(users, items, strict=True), values, strict=True))


@given(label_lists)
def test_id_map_is_the_sorted_distinct_labels(labels: list[Any]) -> None:
    ids = IdMap.of(labels, "user")
    expected = sorted(set(labels), key=lambda label: label.encode() if isinstance(label, str) else label)
    assert ids.labels.to_list() == expected
    assert ids.indices(labels).tolist() == [expected.index(label) for label in labels]
    for position, label in enumerate(expected):  # one at a time takes the binary search where the map is long
        assert ids.index(label) == position
        assert ids.label(position) == label


@given(label_lists)
def test_buffers_round_trip(labels: list[Any]) -> None:
    ids = IdMap.of(labels, "item")
    assert IdMap.from_buffers(ids.buffers(), "item") == ids


def test_buffers_of_no_strings() -> None:
    ids = IdMap(pl.Series("item", [], dtype=pl.String), "item")
    assert IdMap.from_buffers(ids.buffers(), "item") == ids


@pytest.mark.parametrize("n", [3, 1000])
def test_unknown_ids_raise_or_are_minus_one(n: int) -> None:
    ids = IdMap.dense(n, "user")
    assert ids.indices([1, -5, n, "2", 1.5, float("inf"), None, "x", 2**70], missing="-1").tolist() == [1, -1, -1, 2] + [-1] * 5
    with pytest.raises(UnknownIdError, match=f"unknown user {n}: not among"):
        ids.index(n)


def test_text_finds_integers_and_the_other_way_round() -> None:
    assert IdMap.of([10, 7], "user").index("7") == 0
    assert IdMap.of(["10", "7"], "user").index(7) == 1
    assert IdMap.of(["10", "7"], "user").indices(np.array([7, 10])).tolist() == [1, 0]


@pytest.mark.parametrize("big", [2**53 + 1, 2**63 - 1, -(2**63)])
def test_integers_beyond_float_precision_are_exact(big: int) -> None:
    data = Interactions.from_pairs([big, big - 1 if big > 0 else big + 1], [1, 1])
    assert data.n_users == 2
    assert data.user_ids.label(data.user_ids.index(big)) == big


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, "1"], "user ids must be all integers or all strings"),
        ([1.5, 2.5], "user ids must be integers or strings, found Float64"),
        ([True, False], "user ids must be integers or strings, found Boolean"),
        ([b"a"], "user ids must be integers or strings, found Binary"),
        (["a", None], "user ids contain 1 missing values"),
        ([2**63], "user id 9223372036854775808 does not fit"),
        ([2**64], "user id 18446744073709551616 does not fit"),
        (["\ud800"], "user ids must be all integers or all strings"),
    ],
)
def test_bad_labels_are_named(labels: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        IdMap.of(labels, "user")


@given(rows)
def test_from_pairs_merges_like_a_dict_loop(rows: list[tuple[int, int, int, int]]) -> None:
    data = build(rows)
    expected: dict[tuple[str, int], tuple[float, int]] = {}
    for user, item, weight, time in rows:
        pair = (f"user{user}", item)
        if pair not in expected or time >= expected[pair][1]:
            expected[pair] = (float(weight), time)
    assert as_dict(data) == expected
    assert len(data) == len(expected)
    assert data.notes == (
        (f"merged {len(rows) - len(expected):,} repeated pairs, keeping the latest",) if len(rows) > len(expected) else ()
    )


@given(rows)
def test_counts_rows_and_contains_agree_with_a_set(rows: list[tuple[int, int, int, int]]) -> None:
    data = build(rows)
    pairs = set(zip(data.users.tolist(), data.items.tolist(), strict=True))
    assert data.user_counts.tolist() == [sum(user == u for user, _ in pairs) for u in range(data.n_users)]
    assert data.item_counts.tolist() == [sum(item == i for _, item in pairs) for i in range(data.n_items)]
    for user in range(data.n_users):
        assert data.items_of(user).tolist() == sorted(item for u, item in pairs if u == user)
    users, items = np.arange(-1, data.n_users + 1)[:, None], np.arange(-2, data.n_items + 2)  # out of range: never observed
    expected = [[(user, item) in pairs for item in items.tolist()] for user in users[:, 0].tolist()]
    assert data.contains(users, items).tolist() == expected
    dense = np.zeros((data.n_users, data.n_items), np.float32)
    assert data.weight is not None
    dense[data.users, data.items] = data.weight
    matrix = data.to_csr()
    assert np.array_equal(matrix.toarray(), dense)
    for array in (matrix.data, matrix.indices, matrix.indptr):
        assert array.flags.writeable
        assert not any(np.shares_memory(array, own) for own in (data.items, data.indptr, data.weight) if own is not None)
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int32


@given(rows, st.randoms(use_true_random=False))
def test_select_and_union_put_the_pieces_together(rows: list[tuple[int, int, int, int]], random: Any) -> None:
    data = build(rows)
    keep = np.array([random.random() < 0.5 for _ in range(len(data))], bool)
    kept, rest = data.select(keep), data.select(~keep)
    assert kept.user_ids is data.user_ids
    assert kept.item_ids is data.item_ids
    assert {**as_dict(kept), **as_dict(rest)} == as_dict(data)
    assert len(kept) + len(rest) == len(data)
    whole = kept.union(rest, kept)
    assert whole.fingerprint() == data.fingerprint()
    assert whole.weight is None
    assert whole.time is None


@given(rows, st.integers(0, 4), st.integers(0, 4), st.none() | st.integers(0, 5))
def test_filter_is_the_k_core(
    rows: list[tuple[int, int, int, int]], min_user: int, min_item: int, min_weight: int | None
) -> None:
    data = build(rows)
    pairs = {pair: value for pair, value in as_dict(data).items() if min_weight is None or value[0] >= min_weight}
    while True:
        users, items = Counter(user for user, _ in pairs), Counter(item for _, item in pairs)
        fewer = {(u, i): value for (u, i), value in pairs.items() if users[u] >= min_user and items[i] >= min_item}
        if len(fewer) == len(pairs):
            break
        pairs = fewer
    kept = data.filter(min_weight=min_weight, min_user=min_user, min_item=min_item)
    assert as_dict(kept) == pairs
    assert kept.user_ids.labels.to_list() == sorted({user for user, _ in pairs})
    assert kept.item_ids.labels.to_list() == sorted({item for _, item in pairs})


@given(rows, st.randoms(use_true_random=False))
def test_fingerprint_ignores_the_order_of_rows(rows: list[tuple[int, int, int, int]], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    assert build(rows).fingerprint() == build(shuffled).fingerprint()


@given(rows, rows)
def test_fingerprint_tells_data_apart(one: list[tuple[int, int, int, int]], other: list[tuple[int, int, int, int]]) -> None:
    first, second = build(one), build(other)
    assert (first.fingerprint() == second.fingerprint()) == (set(as_dict(first)) == set(as_dict(second)))


def test_fingerprint_sees_where_one_label_ends() -> None:
    prints = {Interactions.from_pairs(users, [1, 2]).fingerprint() for users in (["a", "bc"], ["ab", "c"], [1, 2], ["1", "2"])}
    assert len(prints) == 4


def test_arrays_are_read_only() -> None:
    data = Interactions.from_pairs([1, 1, 2], [1, 2, 1], weight=[1, 2, 3], time=[1, 2, 3])
    for name in ("indptr", "items", "weight", "time", "users", "user_counts", "item_counts"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(data, name)[0] = 0


def test_empty_data_work_everywhere() -> None:
    data = Interactions.from_pairs([], [])
    assert (data.n_users, data.n_items, len(data)) == (0, 0, 0)
    assert data.filter(min_user=1).union(data).contains([], []).shape == (0,)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32, np.float64, "datetime64[s]"])
def test_times_keep_their_value(dtype: Any) -> None:
    time = np.array([3, 1], np.int64).astype(dtype)
    stored = Interactions.from_pairs([1, 2], [1, 1], time=time).time
    assert stored is not None
    assert stored.dtype == (np.float64 if np.dtype(dtype).kind == "f" else np.int64)
    assert stored.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"weight": [1.0]}, "weight has 1 entries for 2 pairs"),
        ({"weight": [1.0, np.nan]}, "weight of row 1 is not a finite number: nan"),
        ({"weight": [1e300, 1.0]}, "weight of row 0 is not a finite number: 1e\\+300"),
        ({"weight": ["a", "b"]}, "weight must be numbers, found <U1"),
        ({"time": np.array([1, np.inf], np.float32)}, "time of row 1 is not a finite number: inf"),
        ({"time": np.array(["2020", "NaT"], "M8[s]")}, "time of row 1 is not a finite number: NaT"),
        ({"time": np.array([1, 2**63], np.uint64)}, "time of row 1 does not fit"),
        ({"time": ["yesterday", "today"]}, "time must be numbers"),
    ],
)
def test_bad_columns_are_named(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Interactions.from_pairs([1, 2], [1, 2], **columns)


def test_bad_shapes_are_named() -> None:
    ids = IdMap.dense(2)
    one, two = np.array([0, 1, 1]), np.array([0, 2, 2])
    cases: list[tuple[Any, str]] = [
        (lambda: Interactions.from_pairs([1], [1, 2]), "1 users but 2 items"),
        (lambda: Interactions.from_pairs([2], [0], user_ids=ids, item_ids=ids), "user ids must lie in 0..1, found 2..2"),
        (lambda: Interactions.from_pairs([0], [-1], user_ids=ids, item_ids=ids), "item ids must lie in 0..1, found -1..-1"),
        (lambda: Interactions.from_pairs([0.5], [1], user_ids=ids, item_ids=ids), "dense user ids must be integers"),
        (lambda: Interactions(one[:2], np.array([0]), ids, ids), "indptr must rise from 0 in 3 entries"),
        (lambda: Interactions(one, np.array([0, 1]), ids, ids), "items has 2 entries, indptr says 1"),
        (lambda: Interactions(one, np.array([7]), ids, ids), "item ids must lie in 0..1"),
        (lambda: Interactions(two, np.array([1, 0]), ids, ids), "items must ascend strictly within each user"),
        (lambda: Interactions(two, np.array([1, 1]), ids, ids), "items must ascend strictly within each user"),
        (lambda: Interactions.from_pairs([1], [1]).filter(min_weight=4), "min_weight=4 needs a weight column"),
        (lambda: Interactions.from_pairs([1], [1]).select(np.array([0])), "keep must be 1 booleans, found int64"),
        (lambda: Interactions.from_pairs([1], [1]).union(Interactions.from_pairs([1], [2])), "same users and items"),
    ]
    for call, message in cases:
        with pytest.raises(DataError, match=message):
            call()


@pytest.mark.parametrize("n", [1_000, 1_000_000])
@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("user 0000123", "; did you mean 'User 0000123'?"),
        ("USER 0000123", "; did you mean 'User 0000123'?"),
        ("Usre 0000123", "; did you mean 'User 0000123' or '"),
        ("stranger", f", such as 'User {0:07}'"),
        ("\udcff", f", such as 'User {0:07}'"),
    ],
)
def test_unknown_ids_are_told_with_those_near_to_them(n: int, asked: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, compared = IdMap(pl.Series([f"User {number:07}" for number in range(n)]), "user"), []

    def counting(word: str, known: Any) -> list[str]:
        compared.extend(known)
        return get_close_matches(word, known)

    monkeypatch.setattr("srns.ids.get_close_matches", counting)
    with pytest.raises(UnknownIdError) as caught:
        ids.index(asked)
    said = str(caught.value)
    assert f"unknown user {asked!r}: not among the {n:,} users of the training data{hint}" in said
    assert len(compared) <= 2_000  # however many there are


def test_unknown_integers_are_told_with_the_range() -> None:
    ids = IdMap.of([30, 5, 89], "item")
    for asked in ("a", 4, "100", 31):
        with pytest.raises(UnknownIdError, match=r"not among the 3 items of the training data, integers from 5 to 89$"):
            ids.index(asked)
    with pytest.raises(UnknownIdError, match=r"not among the 0 items of the training data$"):
        IdMap.of([], "item").index(3)


def test_rows_that_are_what_they_should_be_are_not_copied() -> None:
    n = 200_000
    users, items = (np.arange(n) // 100).astype(np.int32), (np.arange(n) % 100).astype(np.int32)
    values = {"weight": np.ones(n, np.float32), "time": np.arange(n)}
    maps = {"user_ids": IdMap.dense(n // 100, "user"), "item_ids": IdMap.dense(100, "item")}
    tracemalloc.start()
    try:
        data = Interactions.from_pairs(users, items, **values, **maps)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) == n
    assert not any(np.shares_memory(mine, given) for mine, given in ((data.items, items), (data.time, values["time"])))
    assert peak < 36 * n  # the 16 of the result, and what sorts; the 20 of the columns would come on top


def test_an_unknown_id_with_too_few_zeros_is_told_the_one_that_was_meant() -> None:
    ids = IdMap.of([f"kunde-{number:05}" for number in range(3_000)], "user")
    with pytest.raises(UnknownIdError, match="did you mean 'kunde-00029'"):
        ids.index("Kunde-29")
