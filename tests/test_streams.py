"""Rows that come by once, against the reader of files, which reads them twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srns import streams
from srns.errors import DataError
from srns.interactions import Interactions
from srns.readers import read
from srns.roles import choose
from srns.streams import Gathering, gathered


@pytest.fixture(autouse=True, scope="module")
def batches_as_they_come() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(streams, "BATCH", 1)
        yield


ASKED: Any = dict.fromkeys(("user", "item", "weight", "time"))


def streamed(batches: list[pl.DataFrame]) -> Interactions:
    found = batches[0].columns
    rows = Gathering("rows", found, choose("rows", found, ASKED))
    rows.take(batches)
    return rows.interactions()


def same(one: Interactions, other: Interactions) -> None:
    assert one.user_ids == other.user_ids
    assert one.item_ids == other.item_ids
    assert one.notes == other.notes
    for name in ("indptr", "items", "weight", "time"):
        left, right = getattr(one, name), getattr(other, name)
        if left is None:
            assert right is None, name
        else:
            assert left.dtype == right.dtype, name
            np.testing.assert_array_equal(left, right)


def cut(frame: pl.DataFrame, places: list[int]) -> list[pl.DataFrame]:
    bounds = [0, *sorted(place % (len(frame) + 1) for place in places), len(frame)]
    return [frame[low:high] for low, high in pairwise(bounds)]


def outcome(reading: Callable[[], Interactions]) -> Interactions | str:
    try:
        return reading()
    except DataError as error:
        return str(error)


integers = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)
texts = st.text(min_size=1, max_size=3) | st.sampled_from(["7", "007", " 7", "a"])
whole_floats = st.integers(-9, 9).map(float)
times = st.one_of(
    st.just(st.integers(-(2**62), 2**62)),
    st.just(st.floats(-1e9, 1e9)),
    st.just(st.integers(0, 10**9).map(str)),
    st.just(st.floats(0, 9, width=32).map(str)),
    st.just(st.datetimes().map(lambda when: when.isoformat(" ", "seconds").rjust(19, "0"))),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_reading_gives_what_two_readings_give(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    columns: dict[str, Any] = {
        "user_id": data.draw(st.lists(data.draw(st.sampled_from([integers, texts, whole_floats])), min_size=n, max_size=n)),
        "item_id": data.draw(st.lists(data.draw(st.sampled_from([integers, texts])), min_size=n, max_size=n)),
    }
    if data.draw(st.booleans()):
        columns["rating"] = data.draw(st.lists(st.floats(-9, 9) | st.none(), min_size=n, max_size=n))
    if data.draw(st.booleans()):
        columns["time"] = data.draw(st.lists(data.draw(times), min_size=n, max_size=n))
    frame = pl.DataFrame(columns, strict=False)
    batches = cut(frame, data.draw(st.lists(st.integers(0, 20), max_size=4)))
    expected, found = (outcome(lambda: read(frame)), outcome(lambda: streamed(batches)))
    if isinstance(expected, str) or isinstance(found, str):
        assert str(found).removeprefix("rows") == str(expected).removeprefix("polars DataFrame")
    else:
        same(found, expected)


def test_types_may_change_between_batches_as_between_files() -> None:
    numbers = pl.DataFrame({"user": [1, 2], "item": [1, 1], "time": [1, 2]})
    words = pl.DataFrame({"user": ["2", "x"], "item": [2, 3], "time": [2.5, 3.0]})
    data = streamed([numbers, words])
    assert data.user_ids.labels.to_list() == ["1", "2", "x"]
    assert data.time is not None
    assert data.time.tolist() == [1.0, 2.0, 2.5, 3.0]
    fractions = pl.DataFrame({"user": [3.0], "item": [1], "time": [1]})
    assert streamed([numbers, fractions]).user_ids.labels.to_list() == [1, 2, 3]
    with pytest.raises(DataError, match=r"rows: user column 'user' is text \(in rows: float\)"):
        streamed([fractions, words])


def test_rows_are_counted_over_batches() -> None:
    first = pl.DataFrame({"user": [1, 2], "item": [1, 1], "rating": [1.0, 2.0]})
    with pytest.raises(DataError, match=r"rows, row 3 \(from 0\): weight in column 'rating' is missing, expected a number"):
        streamed([first, pl.DataFrame({"user": [1, 2], "item": [1, 1], "rating": [1.0, None]})])
    with pytest.raises(DataError, match=r"rows, row 2 \(from 0\): item id in column 'item' is missing"):
        streamed([first, pl.DataFrame({"user": [1], "item": [None], "rating": [1.0]}, schema=first.schema)])
    with pytest.raises(DataError, match="rows: no rows, expected at least one interaction"):
        streamed([first.clear()])


def test_missing_values_of_all_batches_are_counted() -> None:
    whole = pl.DataFrame({"user": [1, 2, None, 4, 5], "item": [1, 1, None, 1, None], "time": [1, 2, 3, None, 5]})
    first, rest = r"rows, row 2 \(from 0\): user id in column 'user' is missing", "1 in 'user', 2 in 'item', 1 in 'time'"
    with pytest.raises(DataError, match=f"{first}; rows without a value: {rest}; fill it in, or leave such rows out: "):
        streamed(cut(whole, [1, 3, 4]))


def test_ids_that_may_stand_for_no_value_are_told_over_batches() -> None:
    whole = pl.DataFrame({"user": ["a", "null", "b", "null"], "item": [1, 2, 2, 3]})
    found = streamed(cut(whole, [2, 3]))
    same(found, read(whole))
    assert found.notes[1].startswith("2 rows have the user id 'null'; if it stands for a missing value, leave them out: ")


def test_small_batches_of_one_type_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BATCH", 4)
    looked_up = []
    add = streams._Ids.add
    monkeypatch.setattr(streams._Ids, "add", lambda self, part, kinds: looked_up.append(self.role) or add(self, part, kinds))
    frames = [pl.DataFrame({"user": [n], "item": [n % 3]}) for n in range(10)]
    same(streamed(frames), read(pl.concat(frames)))
    assert looked_up == ["user", "item"] * 3  # of 4, 4 and 2 rows


def test_frames_are_let_go_once_they_are_gathered() -> None:
    alive: list[weakref.ref[pl.DataFrame]] = []

    def made(number: int) -> pl.DataFrame:
        frame = pl.DataFrame({"user": [number], "item": [number]})
        alive.append(weakref.ref(frame))
        return frame

    sizes = []
    for whole in gathered((made(number) for number in range(6)), 2):
        gc.collect()
        sizes.append((len(whole), sum(each() is not None for each in alive)))
    assert sizes == [(2, 0)] * 3


def test_rows_are_let_go_once_they_have_numbers() -> None:
    """The ids of a batch are in the memory of an array, which goes when nothing refers to the batch any more."""
    pyarrow = pytest.importorskip("pyarrow")
    alive: list[weakref.ref[Any]] = []

    def batch(start: int) -> pl.DataFrame:
        ids = np.arange(start, start + 100)
        alive.append(weakref.ref(ids))
        return pl.DataFrame(pyarrow.table({"user": pyarrow.array(ids), "item": pyarrow.array(ids)}))

    rows = Gathering("rows", ["user", "item"], {"user": "user", "item": "item"})
    rows.take(batch(start) for start in (0, 50, 80))
    gc.collect()
    assert [each() is None for each in alive] == [True] * 3
    assert len(rows.interactions()) == 180
