"""Readers against plain Python, pandas and scipy; and against files that are wrong in every way we could think of."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from srns import columns, roles
from srns.errors import ConfigError, DataError
from srns.interactions import Interactions
from srns.readers import read, read_bytes, read_split

ROWS = [("ann", 7, 5.0, 30), ("bob", 7, 2.0, 10), ("ann", 9, 4.0, 20), ("cy", 8, 3.5, 40), ("ann", 7, 1.0, 25)]
MERGED = {("ann", 7): (5.0, 30), ("bob", 7): (2.0, 10), ("ann", 9): (4.0, 20), ("cy", 8): (3.5, 40)}
FRAME = pl.DataFrame(ROWS, schema=["user_id", "item_id", "rating", "timestamp"], orient="row")
CSV = FRAME.write_csv().encode()
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_dict(data: Interactions) -> dict[tuple[Any, Any], Any]:
    """{(user, item): what else is known}, in the caller's ids."""
    pairs = zip(data.user_ids.take(data.users), data.item_ids.take(data.items), strict=True)
    extras = [array.tolist() for array in (data.weight, data.time) if array is not None]
    return dict(zip(pairs, zip(*extras, strict=True) if extras else [()] * len(data), strict=True))


def merge(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, Any], Any]:
    """The oracle of merging: of equal pairs the latest row, by time (the last field), then by position."""
    best: dict[tuple[Any, Any], Any] = {}
    for user, item, *rest in rows:
        if (user, item) not in best or rest[-1] >= best[user, item][-1]:
            best[user, item] = tuple(rest)
    return best


def refuses(source: Any, *said: str, **options: Any) -> None:
    with pytest.raises(DataError) as error:
        read(source, **options)
    for words in said:
        assert words in str(error.value), f"{words!r} not in {error.value}"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], Path]:
    def write(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def inter() -> bytes:
    return CSV.replace(b",", b"\t").replace(
        b"user_id\titem_id\trating\ttimestamp", b"user_id:token\titem_id:token\trating:float\ttimestamp:float"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.CSV", b"\xef\xbb\xbf" + CSV.replace(b"\n", b"\r\n")),
        ("a.csv.gz", gzip.compress(CSV, mtime=0)),
        ("a.tsv", CSV.replace(b",", b"\t")),
        ("semicolon.csv", CSV.replace(b",", b";")),
        ("spaces.csv", CSV.replace(b",", b" , ")),
        ("blank-lines.csv", CSV.replace(b"\n", b"\n\n") + b"\n\n"),
        ("no-last-newline.csv", CSV.rstrip()),
        ("old-mac.csv", CSV.rstrip().replace(b"\n", b"\r")),
        ("quoted.csv", CSV.replace(b"ann", b'"ann"').replace(b"7", b'"7"')),
        ("a.dat", CSV.replace(b",", b"::")),
        ("a.inter", inter()),
    ],
)
def test_text_formats_give_the_same_interactions(write: Any, name: str, content: bytes) -> None:
    data = read(write(name, content))
    assert as_dict(data) == MERGED
    assert data.weight is not None
    assert data.weight.dtype == np.float32
    assert data.time is not None
    assert data.time.dtype == np.int64


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        FRAME.lazy(),
        FRAME.to_pandas(),
        FRAME.to_arrow(),
        FRAME.to_arrow().to_batches()[0],
        FRAME.with_columns(pl.col("user_id").cast(pl.Categorical)),
        FRAME.with_columns(pl.col("item_id").cast(pl.Float64)),
        FRAME.with_columns(pl.col("item_id").cast(pl.UInt64), pl.col("rating").cast(pl.String)),
        FRAME.to_pandas().astype({"item_id": "Int64", "user_id": "category"}),
        FRAME.to_pandas().assign(extra=[{1}, object(), None, "x", 3]),  # a column nobody asked for may hold anything
    ],
    ids=lambda frame: type(frame).__module__,
)
def test_frames_give_the_same_interactions(frame: Any) -> None:
    assert as_dict(read(frame)) == MERGED


def test_parquet_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FRAME.write_parquet(tmp_path / "one.parquet")
    folder = tmp_path / "folder"
    (folder / "day=2").mkdir(parents=True)
    FRAME[:2].write_parquet(folder / "a.parquet")
    FRAME[2:].with_columns(pl.col("item_id").cast(pl.Int16)).select(FRAME.columns[::-1]).write_parquet(
        folder / "day=2" / "b.pq"
    )
    (folder / "_SUCCESS.parquet").write_bytes(b"not data")
    monkeypatch.setattr(columns, "BATCH", 2)
    assert as_dict(read(tmp_path / "one.parquet")) == as_dict(read(folder)) == MERGED


def test_many_batches_agree_with_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    n = 20_000
    frame = pl.DataFrame(
        {"uid": rng.integers(-300, 300, n), "iid": [f"i{k}" for k in rng.integers(0, 200, n)], "ts": rng.integers(0, 50, n)}
    )
    frame.write_csv(tmp_path / "x.csv")
    frame.write_parquet(tmp_path / "x.parquet", row_group_size=999)
    oracle = frame.to_pandas().assign(row=range(n)).sort_values(["ts", "row"]).groupby(["uid", "iid"]).ts.last().to_dict()
    monkeypatch.setattr(columns, "BATCH", 1_000)
    for name in ("x.csv", "x.parquet"):
        assert {pair: rest[0] for pair, rest in as_dict(read(tmp_path / name)).items()} == oracle


cell = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1, max_size=6).filter(
    lambda s: s == s.strip()
)
row = st.tuples(cell, st.integers(-(2**63), 2**63 - 1), st.integers(-5, 5), st.integers(0, 3))


@quick
@given(st.lists(row, min_size=1, max_size=20))
def test_round_trip_of_any_ids(tmp_path: Path, rows: list[tuple[Any, ...]]) -> None:
    frame = pl.DataFrame([("x" + user, *rest) for user, *rest in rows], schema=FRAME.columns, orient="row")
    oracle = merge(list(frame.iter_rows()))
    frame.write_csv(tmp_path / "x.csv")
    frame.write_parquet(tmp_path / "x.parquet")
    for source in (frame, frame.to_pandas(), frame.to_arrow(), tmp_path / "x.csv", tmp_path / "x.parquet"):
        assert as_dict(read(source)) == oracle


@quick
@given(
    st.lists(st.sampled_from(["7", "007", "+7", "-7", "-0", "0", "7.0", "x", "9" * 25, "1e3", " 8"]), min_size=1, max_size=8)
)
def test_text_ids_are_integers_only_if_all_are(ids: list[str]) -> None:
    """The oracle: Python's own spelling of an integer, within 64 bits."""
    canonical = all(
        text.strip().lstrip("+-").isdigit() and str(int(text)) == text.strip() and abs(int(text)) < 2**63 for text in ids
    )
    expected = {int(text) if canonical else text.strip() for text in ids}
    source = b"user,item\n" + b"".join(f"{text},1\n".encode() for text in ids)
    data = read_bytes(source, "x", format="csv", asked=dict.fromkeys(roles.KNOWN))
    assert set(data.user_ids.labels) == expected


def test_a_late_string_makes_the_whole_column_text(write: Any) -> None:
    lines = [f"{k},{k % 7}" for k in range(200_000)]
    data = read(write("late.csv", "user,item\n" + "\n".join([*lines, "x9,1"])))
    assert data.n_users == 200_001
    assert data.user_ids.labels.dtype == pl.String
    assert data.item_ids.labels.dtype == pl.Int64


def test_typed_text_stays_text_and_mixed_ids_become_text() -> None:
    assert read(pl.DataFrame({"user": ["1", "2"], "item": [1, 2]})).user_ids.labels.to_list() == ["1", "2"]
    mixed = read(pd.DataFrame({"user": [1, "1", "a"], "item": [1, 2, 3]}))
    assert mixed.user_ids.labels.to_list() == ["1", "a"]
    assert mixed.n_items == 3
    big = read(pl.DataFrame({"user": [2**64 - 1, 5], "item": [1, 2]}, schema={"user": pl.UInt64, "item": pl.Int8}))
    assert big.user_ids.labels.to_list() == ["18446744073709551615", "5"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["10", "20"], [10, 20]),
        (["10", "20.5"], [10.0, 20.5]),
        (["2020-01-02", "1969-12-31"], [1577923200000000, -86400000000]),
        (["2020-01-02T03:04:05.5", "2020-01-02"], [1577934245500000, 1577923200000000]),
        (["2020-01-02 03:04:05Z", "2020-01-02T03:04:05+02:00"], [1577934245000000, 1577927045000000]),
        ([dt.datetime(2020, 1, 2), dt.datetime(1970, 1, 1)], [1577923200000000, 0]),
        ([dt.date(2020, 1, 2), dt.date(1970, 1, 1)], [1577923200000000, 0]),
        (
            [dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc), dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)],
            [1577923200000000, 0],
        ),
    ],
)
def test_times(values: list[Any], expected: list[Any]) -> None:
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": values})
    for source in (frame, frame.to_pandas()):
        time = read(source).time
        assert time is not None
        assert time.tolist() == expected
        assert time.dtype == (np.float64 if isinstance(expected[0], float) else np.int64)


def test_columns_are_recognised_or_named(write: Any) -> None:
    for user, item in [
        ("userId", "movieId"),
        ("USER_ID", "Item ID"),
        ("uid", "iid"),
        ("reviewerID", "asin"),
        ("customer_id", "product_id"),
    ]:
        assert len(read(pl.DataFrame({item: [1, 2], "note": ["a", "b"], user: [3, 4]}))) == 2
    odd = pl.DataFrame({"who": ["a"], "what": ["b"], "stars": [5], "date": ["2020-01-01"]})
    data = read(odd, user="who", item="what", weight=False, time=False)
    assert data.weight is None
    assert data.time is None
    refuses(odd, "no user column recognised", "'who', 'what'", "user=...")
    refuses(odd, "no column 'nobody'", "found 'who'", user="nobody")
    refuses(odd, "two roles", user="who", item="who")
    refuses(FRAME.with_columns(uid=1), "'user_id', 'uid' could each be the user", "user=...")
    refuses(FRAME.with_columns(count=1), "could each be the weight", "weight=...")
    path = write("u.data", "1\t2\t3\t4\n5\t6\t7\t8\n")
    assert as_dict(read(path, user=0, item=1, weight=2, time=3)) == {(1, 2): (3.0, 4), (5, 6): (7.0, 8)}
    refuses(path, "there are 4 columns", user=0, item=9)
    refuses(path, "no user column recognised")
    refuses(FRAME, "only weight and time", user=False)


def test_thresholds_follow_merging() -> None:
    data = read(FRAME, min_weight=3.5)
    assert as_dict(data) == {pair: rest for pair, rest in MERGED.items() if rest[0] >= 3.5}
    assert as_dict(read(FRAME, min_user=2)) == {pair: rest for pair, rest in MERGED.items() if pair[0] == "ann"}
    assert (
        data.notes[0] == "columns: user = user_id, item = item_id, weight = rating (for --min-weight alone), time = timestamp"
    )
    assert data.notes[1].startswith("merged 1 ")
    refuses(FRAME, "no interactions left", min_item=3)
    refuses(FRAME.select("user_id", "item_id"), "min_weight=4 needs a weight column", min_weight=4)


def test_a_column_that_is_not_used_is_named(write: Any) -> None:
    """A time column that goes unnoticed would change the split."""
    data = read(write("a.csv", "customer,sku,shop,price\nann,x,2026-01-01,3\nbob,y,Ulm,4\n"))
    assert data.notes == ("columns: user = customer, item = sku; not used: 'shop', 'price'",)
    (note,) = read(write("b.csv", "customer,sku,purchase_date\nann,x,soon\nbob,y,later\n")).notes
    assert note.endswith("not used: 'purchase_date', though 'purchase_date' looks like a time: --time-column purchase_date")


@pytest.mark.parametrize("value", ["2026-01-02", "2026-01-02T03:04:05Z", " 2026-01-02 03:04 "])
def test_unused_dates_are_told_by_their_values(write: Any, value: str) -> None:
    path = write("a.csv", f"customer,sku,shop,gekauft\nann,x,Ulm,\nbob,y,Ulm,{value}\n")
    data = read(path)
    assert data.time is None
    assert data.notes[0].endswith("not used: 'shop', 'gekauft', though 'gekauft' looks like a time: --time-column gekauft")


@pytest.mark.parametrize(
    "value", [dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3), dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)]
)
def test_unused_dates_are_told_by_their_type(tmp_path: Path, value: Any) -> None:
    frame = pl.DataFrame({"user": [1, 2], "item": [3, 4], "shop": ["Ulm", None], "gekauft": [None, value], "seen": value})
    frame.write_parquet(tmp_path / "a.parquet")
    assert "though 'gekauft' looks like a time" in read(tmp_path / "a.parquet").notes[0]
    used = "columns: user = user, item = item, time = seen; not used: 'shop', 'gekauft'"
    assert read(tmp_path / "a.parquet", time="seen").notes == (used,)


def test_columns_are_told_in_one_order(write: Any) -> None:
    path = write("a.csv", "bought_at,product,stars,customer\n1,x,5,ann\n2,y,4,bob\n")
    expected = "columns: user = customer, item = product, weight = stars (for --min-weight alone), time = bought_at"
    assert read(path, time="bought_at").notes == read(path, item="product", time="bought_at").notes == (expected,)


def test_what_is_kept_of_repeated_pairs_is_told(write: Any) -> None:
    path = write("a.csv", "user,item,stars,time\nann,x,5,2\nann,x,1,1\n")
    assert read(path).notes[1] == "merged 1 repeated pairs, keeping the latest"
    data = read(path, time=False)
    assert data.notes[1] == "merged 1 repeated pairs, keeping the last row of each"
    assert as_dict(data) == {("ann", "x"): (1.0,)}


def test_ids_that_may_stand_for_no_value_are_told(write: Any) -> None:
    path = write("a.csv", "user,item\nann,1\nann,NaN\nbob,2\nbob, NaN\nbob,NaN\nNull,2\nNULL,1\ncy,1\nnano,1\n")
    data = read(path)
    assert ("bob", "NaN") in as_dict(data)
    assert data.notes[1:3] == tuple(
        f"{count} rows have the {role} id {label!r}; if it stands for a missing value, leave them out: --drop-bad-rows, or a "
        "database's query"
        for count, role, label in ((1, "user", "NULL"), (3, "item", "NaN"))
    )
    kept = read(path, drop_bad_rows=True)
    assert as_dict(kept) == dict.fromkeys([("ann", 1), ("bob", 2), ("Null", 2), ("cy", 1), ("nano", 1)], ())
    assert kept.notes[1:] == ("left out 4 of 9 rows with a value that is missing or cannot be read: user 1, item 3",)
    floats = pl.DataFrame({"user": [1.0, float("nan"), 3.0], "item": [1, 2, 3]})
    assert as_dict(read(floats, drop_bad_rows=True)) == {(1, 1): (), (3, 3): ()}


BAD = """who,item,stars,timestamp
ann,x,5,2026-01-01
 ,x,4,2026-01-02
bob,,4,2026-01-02
bob,y,many,2026-01-03
bob,z,,2026-01-03
cid,y,3,32.13.2026
cid,,,
ann,z,2,2026-01-04
bob,x,1,2026-01-05
cid,x,4,2026-01-06 10:00
dan,y,5,2026-01-07
eve,y,5,2026-01-07
eve,x,5,2026-01-08
fay,z,5,2026-01-09
"""


def test_bad_rows_are_dropped_where_that_is_asked_for(write: Any) -> None:
    path, whole = write("bad.csv", BAD), write("good.csv", "\n".join(BAD.splitlines()[n] for n in (0, 1, *range(8, 15))))
    refuses(path, "bad.csv, line 3: user id in column 'who' is missing", "--drop-bad-rows", user="who")
    data = read(path, user="who", drop_bad_rows=True)
    assert as_dict(data) == as_dict(read(whole, user="who"))
    assert data.notes[1] == (
        "left out 6 of 14 rows with a value that is missing or cannot be read: who 1, item 2, stars 3, timestamp 2"
    )
    assert read(whole, user="who", drop_bad_rows=True).notes == read(whole, user="who").notes, "nothing to tell"
    frame = pl.read_csv(path).with_columns(pl.col("stars").cast(pl.Float64, strict=False))
    assert as_dict(read(frame, user="who", drop_bad_rows=True)) == as_dict(data)
    refuses(path, "too many to", "timestamp", user="who", time="stars", weight="timestamp", drop_bad_rows=True)
    numbers = write("numbers.csv", "user,item,time\n1,7,\n2,7,1700000000\n3,8,1700000001\n")
    assert read(numbers, drop_bad_rows=True).time.tolist() == [1700000000, 1700000001]  # type: ignore[union-attr]


RAGGED = """user,item,stars
ann,x,5
ann,y

bob,x,4,soon
bob,"y, or
z",3
,y,1
cid,y,2
cid,x,
dan,x,1
eve,y,1
"""


def test_rows_of_another_number_of_fields_are_dropped_like_others(write: Any) -> None:
    path = write("ragged.csv", RAGGED)
    refuses(path, "ragged.csv, line 3: 2 fields, expected 3 as in line 1; to leave such rows out: --drop-bad-rows")
    data = read(path, drop_bad_rows=True)
    expected = {("ann", "x"): 5, ("bob", "y, or\nz"): 3, ("cid", "y"): 2, ("dan", "x"): 1, ("eve", "y"): 1}
    assert as_dict(data) == {pair: (float(stars),) for pair, stars in expected.items()}
    told = "left out 4 of 9 rows with a value that is missing or cannot be read: user 1, stars 1, wrong number of fields 2"
    assert data.notes[1:] == (told,)
    headless = write("headless.tsv", "1\t2\n1\t3\t4\n5\t2\n6\n7\t2\n")
    assert set(as_dict(read(headless, user=0, item=1, drop_bad_rows=True))) == {(1, 2), (5, 2), (7, 2)}
    refuses(headless, "headless.tsv, line 2: 3 fields, expected 2", "--drop-bad-rows", user=0, item=1)
    most = write("most.csv", "user,item\n1,2\n3\n4\n")
    refuses(most, "2 of 3 rows", "(wrong number of fields 2): too many to drop", drop_bad_rows=True)


def test_dates_that_are_not_iso_have_a_way_on(write: Any) -> None:
    path = write("a.csv", "user,item,date\n1,2,01/02/2024\n1,3,02/02/2024\n")
    refuses(path, "'01/02/2024', expected", "an ISO date (YYYY-MM-DD)", "other dates have to be converted to that first")
    said = "are these the right columns, and is every date an ISO date (YYYY-MM-DD)? Convert the dates, or go without times"
    refuses(path, said, drop_bad_rows=True)


def test_bad_rows_are_not_dropped_where_there_are_no_rows(write: Any) -> None:
    with pytest.raises(ConfigError, match="has no rows to drop"):
        read(write("a.txt", "0 1\n"), drop_bad_rows=True)
    with pytest.raises(ConfigError, match="is for files and data frames"):
        read(sp.csr_matrix([[1]]), drop_bad_rows=True)


def test_lightgcn_text(write: Any) -> None:
    data = read(write("train.txt", "0 5 6 5\n3 6\r\n\n1\n 2  7 \n0 8"))
    assert as_dict(data) == dict.fromkeys([(0, 5), (0, 6), (0, 8), (2, 7), (3, 6)], ())
    assert data.notes == ("merged 1 repeated pairs, keeping the last row of each", "left out 1 users without items")
    refuses(write("a.txt", "0 1\n1 -2\n"), "a.txt, line 2: '-2'", "integers from 0")
    refuses(write("a.txt", "user,item\n1,2\n"), "line 1: 'user,item'", "format='csv'")
    refuses(write("a.txt", "0\t1\t5\n"), "line 1", "'tsv'")
    refuses(write("a.txt", "0 1\n1 " + "9" * 19), "line 2")
    refuses(write("a.txt", "0\n1\n"), "no line has an item")
    refuses(write("a.txt", " \n"), "empty")
    refuses(write("a.txt", "0 1\n"), "user='u' does not apply", user="u")


@quick
@given(st.lists(st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=5), min_size=1, max_size=10))
def test_lightgcn_agrees_with_a_loop(tmp_path: Path, lines: list[list[int]]) -> None:
    pairs = {(user, item) for user, *items in lines for item in items}
    path = tmp_path / "x.txt"
    path.write_text("\n".join(" ".join(map(str, line)) for line in lines))
    if pairs:
        assert set(as_dict(read(path))) == pairs
    else:
        refuses(path, "no line has an item")


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array, sp.csc_array, sp.coo_array, sp.lil_array, sp.dok_array])
def test_sparse_matrices(tmp_path: Path, kind: Any) -> None:
    dense = np.array([[0, 2.5, 0, 0], [0, 0, 0, 0], [1, 0, 3, 0]])
    data = read(kind(dense))
    assert (data.n_users, data.n_items) == (3, 4)
    np.testing.assert_array_equal(data.to_csr().toarray(), dense)
    if kind in (sp.csr_matrix, sp.csc_array, sp.coo_array):
        sp.save_npz(tmp_path / "m.npz", kind(dense))
        np.testing.assert_array_equal(read(tmp_path / "m.npz").to_csr().toarray(), dense)


def test_sparse_matrices_that_are_wrong() -> None:
    wild = sp.csr_array(np.eye(3))
    wild.indices[1] = 10**6  # scipy would follow it out of the array
    refuses(wild, "not a valid sparse matrix")
    refuses(sp.csr_array(np.array([[1.0, np.nan]])), "entry (0, 1) is nan")
    refuses(sp.csr_array((2, 2)), "no interactions")
    refuses(sp.csr_array(np.eye(2) * 1j), "complex128")
    repeated = sp.coo_array(([1, 2, 0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    before = repeated.nnz
    assert as_dict(read(repeated)) == {(0, 1): (3.0,)}
    assert repeated.nnz == before
    assert read(sp.csr_array(np.eye(2, dtype=bool))).weight is None


MALFORMED: list[tuple[str, bytes | str, tuple[str, ...]]] = [
    ("empty.csv", b"", ("empty.csv", "empty")),
    ("blank.csv", b"\n \n", ("empty",)),
    ("header.csv", "user,item\n", ("no rows",)),
    ("long.csv", "user,item\n1,2\n3,4,5\n", ("long.csv, line 3: 3 fields, expected 2",)),
    ("short.csv", "user,item,note\n1,2,x\n\n3,4\n", ("short.csv, line 4: 2 fields, expected 3",)),
    ("short-used.csv", "user,item,rating\n1,2,3\n3,4\n", ("line 3: 2 fields",)),
    ("null.csv", "user,item\n1,2\n\n,3\n", ("null.csv, line 4: user id in column 'user' is missing",)),
    ("empty-id.csv", 'user,item\n1,2\n2,""\n', ("line 3: item id in column 'item' is missing",)),
    ("weight.csv", "user,item,rating\n1,2,5\n\n1,3,good\n", ("line 4: weight in column 'rating' 'good', expected a number",)),
    (
        "holes.csv",
        "user,item,rating,time\n1,2,5,1\n,3,,1\n,4,1,\n5,,,7\n",
        ("line 3: user id in column 'user' is missing; rows without a value:", "2 in 'user', 1 in 'item', 2 in 'rating', 1 in"),
    ),
    ("noweight.csv", "user,item,rating,x\n1,2,5,1\n1,3,,1\n", ("line 3: weight in column 'rating' is missing",)),
    ("nan.csv", "user,item,rating\n1,2,nan\n", ("line 2", "'nan'")),
    ("infinite.csv", "user,item,rating\n1,2,1e300\n", ("line 2", "'1e300'")),
    ("time.csv", "user,item,time\n1,2,5\n1,3,2020-01-01\n", ("line 3: time in column 'time' '2020-01-01'", "time=False")),
    ("date.csv", "user,item,time\n1,2,2020-01-01\n1,3,soon\n", ("line 3: time in column 'time' 'soon'",)),
    ("date.csv", "user,item,time\n1,2,2020-01-01\n1,3,2020-13-01\n", ("line 3",)),
    ("twice.csv", "user,item,item\n1,2,3\n", ("'item' occurs more than once",)),
    (
        "latin1.csv",
        "user,item\n1,2\nJosé,3\n".encode("latin-1"),
        ("latin1.csv, line 3: byte 0xe9 at offset 17 is not UTF-8", "iconv -f latin1"),
    ),
    ("utf16.csv", "user,item\n1,2\n".encode("utf-16"), ("zero byte at offset",)),
    ("binary.csv", bytes(range(256)) * 4, ("binary.csv",)),
    ("quote.csv", 'user,item\n1,"2\n3,4\n', ("quote.csv, line 3", "quote left open")),
    ("stray.csv", 'user,item\n1,2\n1,""x""\n', ("stray.csv, line 3", "quote left open or not doubled")),
    ("comma.csv", "user,item\n1,2\n3,4,", ("comma.csv, line 3: 3 fields, expected 2",)),
    ("quoted-lines.csv", 'user,item,rating\n"a\nb",1,1\nc,1,bad\n', ("line 4",)),
    ("one-column.csv", "user\n1\n", ("no item column",)),
    ("a.inter", "user_id\titem_id\n1\t2\n", ("line 1: 'user_id' in the header, expected name:type",)),
    ("a.inter", "user_id:token\titem_id:thing\n1\t2\n", ("'item_id:thing'",)),
    ("cut.csv.gz", gzip.compress(CSV * 50, mtime=0)[:-9], ("cut.csv.gz: truncated or damaged gzip",)),
    ("bad.csv.gz", b"\x1f\x8b" + b"garbage" * 9, ("bad.csv.gz", "gzip")),
    ("a.parquet", b"", ("a.parquet",)),
    ("a.parquet", b"PAR1 not really PAR1", ("a.parquet: damaged or not a Parquet file",)),
    ("a.npz", b"", ("not an .npz archive",)),
    ("pickle.npz", pickle.dumps([1, 2]), ("pickle.npz: not an .npz archive",)),
    ("a.xlsx", b"x", ("unknown kind of file '.xlsx'", "format=")),
    ("noending", b"x", ("unknown kind of file",)),
]


@pytest.mark.parametrize(("name", "content", "said"), MALFORMED, ids=[f"{n}-{k}" for k, (n, *_) in enumerate(MALFORMED)])
def test_malformed_files_are_named(write: Any, name: str, content: bytes | str, said: tuple[str, ...]) -> None:
    refuses(write(name, content), name, *said)


def test_malformed_frames_and_sources(tmp_path: Path) -> None:
    refuses(FRAME.clear(), "no rows")
    refuses(pl.DataFrame({"user": [1.0, 1.5], "item": [1, 2]}), "row 1 (from 0)", "user id in column 'user' 1.5")
    refuses(pl.DataFrame({"user": [1.0, 2.0**60], "item": [1, 2]}), "row 1")
    refuses(pd.DataFrame({"user": [1, None, 2], "item": [1, 2, 3]}), "row 1 (from 0)", "is missing")
    refuses(pl.DataFrame({"user": ["a", None], "item": [1, 2]}), "row 1 (from 0)", "is missing")
    refuses(pl.DataFrame({"user": [True, False], "item": [1, 2]}), "user column 'user' is boolean")
    refuses(pl.DataFrame({"user": [[1], [2]], "item": [1, 2]}), "'user' is List")
    refuses(pl.DataFrame({"user": [1], "item": [1], "weight": [dt.date(2020, 1, 1)]}), "weight column 'weight' is date")
    refuses(pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [1.0, float("nan")]}), "row 1 (from 0): time")
    refuses(FRAME.lazy().select(pl.col("nothing")), "polars LazyFrame", "nothing")
    refuses(pd.DataFrame([[1, 2]], columns=["user", "user"]), "occurs more than once")
    refuses(pa.array([1, 2]), "cannot read")
    refuses([1, 2], "cannot read a list")
    refuses(tmp_path / "absent.csv", "absent.csv: no such file")
    refuses(tmp_path, "folder without Parquet files")
    refuses(tmp_path, "only Parquet can be read from a folder", format="csv")
    (tmp_path / "x.csv").write_bytes(CSV)
    refuses(tmp_path / "x.csv", "unknown format 'xls'; expected one of csv", format="xls")


def test_malformed_parquet_folders(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "a.parquet")
    FRAME.drop("rating").write_parquet(tmp_path / "b.parquet")
    refuses(tmp_path, "b.parquet: no column 'rating'")
    FRAME.with_columns(timestamp=pl.lit(dt.date(2020, 1, 1))).write_parquet(tmp_path / "b.parquet")
    refuses(tmp_path, "b.parquet: time column 'timestamp' is date", "a.parquet: integer")
    FRAME.with_columns(user_id=pl.when(pl.col("item_id") == 9).then(None).otherwise(pl.lit("u"))).write_parquet(
        tmp_path / "b.parquet"
    )
    refuses(tmp_path, "b.parquet, row 2 (from 0): user id")
    FRAME.with_columns(item_id=pl.col("item_id").cast(pl.String)).write_parquet(tmp_path / "b.parquet")
    assert read(tmp_path).item_ids.labels.to_list() == ["7", "8", "9"]
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    refuses(tmp_path, "b.parquet: damaged")


def save_split(path: Path, **change: Any) -> Path:
    arrays = {
        "train": [[0, 0], [1, 2], [0, 0]],
        "val": [[0, 1]],
        "test": [[1, 1], [1, 2]],
        "test_neg": [[3, 4], [5, 3]],
        **change,
    }
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items() if array is not None})
    return path


def test_fixed_split(tmp_path: Path) -> None:
    split = read_split(save_split(tmp_path / "tiny.npz", fn_sigma_020=np.empty((0, 2), int), fn_sigma_100=[[0, 6]]))
    assert split.name == "tiny"
    assert split.valid is not None
    assert split.test is not None
    assert as_dict(split.train) == {(0, 0): (), (1, 2): ()}
    assert as_dict(split.valid) == {(0, 1): ()}
    assert as_dict(split.test) == {(1, 1): ()}  # (1, 2) is in train
    assert split.notes == (
        "train: merged 1 repeated pairs, keeping the last row of each",
        "test: left out 1 pairs that are also in train",
    )
    assert (split.train.n_users, split.train.n_items) == (2, 7)
    assert split.negatives is not None
    assert split.negatives.tolist() == [[3, 4], [5, 3]]
    assert sorted(split.hidden) == [0.2, 1.0]
    assert as_dict(split.hidden[1.0]) == {(0, 6): ()}
    parts = (split.train, split.valid, split.test, *split.hidden.values())
    assert all(part.user_ids is split.train.user_ids and part.item_ids is split.train.item_ids for part in parts)
    bare = read_split(save_split(tmp_path / "bare.npz", val=None, test_neg=None))
    assert bare.valid is None
    assert bare.negatives is None
    assert not bare.hidden
    refuses(tmp_path / "bare.npz", "fixed split", "srns.load")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train": [[0, 1, 2]]}, "array 'train' is int64 of shape (1, 3), expected integers (n, 2)"),
        ({"train": [0, 1]}, "shape (2,)"),
        ({"train": [[0.5, 1.0]]}, "array 'train' is float64"),
        ({"train": [["0", "1"]]}, "array 'train' is <U1"),
        ({"train": np.empty((0, 2), int)}, "array 'train' is empty"),
        ({"val": [[0, 1], [0, -1]]}, "array 'val', row 1, column 1: id -1"),
        ({"test": [[0, 2**40]]}, "array 'test', row 0, column 1: id 1099511627776"),
        ({"test": [[0, 2**30]]}, "ids must be dense"),
        ({"test": None}, "expected train, test"),
        ({"tset": [[0, 1]]}, "'tset'"),
        ({"test_neg": [[1, 2]]}, "test_neg has 1 rows, expected one for each of 2 users"),
        ({"test_neg": [[-1], [1]]}, "array 'test_neg', row 0, column 0"),
    ],
)
def test_fixed_split_that_is_wrong(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = save_split(tmp_path / "tiny.npz", **change)
    with pytest.raises(DataError) as error:
        read_split(path)
    assert said in str(error.value)
    assert "tiny.npz" in str(error.value)


def test_npz_of_interactions(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, interactions=np.array([[0, 3, 5], [0, 3, 9], [2, 1, -4]], np.int16))
    assert as_dict(read(path)) == {(0, 3): (9,), (2, 1): (-4,)}
    np.savez(path, interactions=np.array([[0, 3], [-1, 3]]))
    refuses(path, "array 'interactions', row 1, column 0: id -1")
    np.savez(path, weights=np.ones(3))
    refuses(path, "found arrays 'weights'", "expected 'interactions'")


class Bomb:
    def __reduce__(self) -> Any:
        return (os.abort, ())


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    objects = np.empty(1, object)
    objects[0] = Bomb()
    for name in ("interactions", "train"):
        np.savez(tmp_path / "x.npz", **{name: objects, "test": objects})
        for reader in (read, read_split):
            with pytest.raises(DataError, match=r"x\.npz"):
                reader(tmp_path / "x.npz")
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Bomb()))
    refuses(tmp_path / "raw.npz", "not an .npz archive")
    with zipfile.ZipFile(tmp_path / "inner.npz", "w") as archive:
        archive.writestr("interactions.npy", pickle.dumps(Bomb()))
    refuses(tmp_path / "inner.npz", "inner.npz")


def valid_files(folder: Path) -> dict[str, bytes]:
    FRAME.write_parquet(folder / "a.parquet")
    save_split(folder / "split.npz")
    np.savez_compressed(folder / "rows.npz", interactions=np.arange(60).reshape(20, 3))
    sp.save_npz(folder / "sparse.npz", sp.csr_array(np.eye(4)))
    (folder / "a.csv").write_bytes(CSV)
    (folder / "a.csv.gz").write_bytes(gzip.compress(CSV, mtime=0))
    (folder / "a.inter").write_bytes(inter())
    (folder / "a.txt").write_bytes(b"0 1 2\n1 3\n")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def outcome(path: Path) -> Any:
    """What reading gives: pairs, or None for a DataError; anything else is raised, and fails the test."""
    result: Any = None
    message = path.name
    try:
        result = read_split(path) if path.name == "split.npz" else read(path)
    except DataError as error:
        message = str(error)
    assert path.name in message
    if result is None:
        return None
    if isinstance(result, Interactions):
        return as_dict(result)
    return [as_dict(part) for part in (result.train, result.valid, result.test) if part is not None]


CHECKED = ("split.npz", "rows.npz", "sparse.npz", "a.csv.gz")  # formats with a checksum: damage is always noticed


def test_truncated_files(tmp_path: Path) -> None:
    for name, whole in valid_files(tmp_path).items():
        path = tmp_path / name
        expected = outcome(path)
        assert expected
        for length in range(0, len(whole), max(1, len(whole) // 150)):
            path.write_bytes(whole[:length])
            found = outcome(path)
            if name in (*CHECKED, "a.parquet"):
                assert found is None, f"{name} cut to {length} of {len(whole)} bytes was read"


def test_flipped_bits(tmp_path: Path) -> None:
    """Not Parquet: a wrong length in a page header can make polars abort the whole process, which no caller can catch."""
    chance = random.Random(0)
    for name, whole in valid_files(tmp_path).items():
        if name == "a.parquet":
            continue
        path = tmp_path / name
        expected = outcome(path)
        for _ in range(200):
            damaged = bytearray(whole)
            for _ in range(chance.choice([1, 1, 5])):
                damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            found = outcome(path)
            if name in CHECKED:
                assert found is None or found == expected


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["x.csv", "x.tsv", "x.inter", "x.dat", "x.txt", "x.parquet", "split.npz", "x.npz", "x.csv.gz"]),
    st.sampled_from(
        [b"", b"user,item\n", b"user\titem\n", b"user_id:token\titem_id:token\n", b"PK\x03\x04", b"PAR1", b"\x1f\x8b"]
    ),
    st.binary(max_size=60) | st.text(alphabet='0129,-.\t "\n\r:xé', max_size=60).map(str.encode),
)
def test_random_bytes(tmp_path: Path, name: str, start: bytes, rest: bytes) -> None:
    (tmp_path / name).write_bytes(start + rest)
    outcome(tmp_path / name)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(["1", "2", "a", "", "3.5", "é"]), min_size=1, max_size=4), min_size=1, max_size=6))
def test_delimited_text_agrees_with_a_loop(tmp_path: Path, rows: list[list[str]]) -> None:
    """The oracle splits lines at commas: all rows of three fields and with both ids, or an error."""
    path = tmp_path / "x.csv"
    path.write_text("user,item,note\n" + "".join(",".join(row) + "\n" for row in rows))
    filled = [row for row in rows if any(row)]
    ragged = any(len(row) != 3 for row in rows if row != [""])
    if ragged or not filled or any(not row[0] or not row[1] for row in filled):
        refuses(path, "x.csv")
        return
    numeric = [all(row[side] in ("1", "2") for row in filled) for side in (0, 1)]
    expected = {tuple(int(row[side]) if numeric[side] else row[side] for side in (0, 1)) for row in filled}
    assert set(as_dict(read(path))) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='ab1",,\n', max_size=14))
def test_quoted_text_agrees_with_the_csv_module(text: str) -> None:
    try:
        data = read_bytes(b"user,item\n" + text.encode(), "x", format="csv", asked=dict.fromkeys(roles.KNOWN))
    except DataError:
        return
    oracle = {tuple(row) for row in csv.reader(text.splitlines(keepends=True), strict=True) if any(row)}
    assert {tuple(map(str, pair)) for pair in as_dict(data)} == {tuple(field.strip() for field in row) for row in oracle}


@pytest.fixture
def shared() -> Path:
    folder = os.environ.get("SRNS_DATA")
    if not folder or not (Path(folder) / "ml-1m-paper.npz").exists():
        pytest.skip("SRNS_DATA does not name a folder with ml-1m-paper.npz")
    return Path(folder)


def test_the_published_files(shared: Path) -> None:
    split = read_split(shared / "ml-1m-paper.npz")
    assert (split.train.n_users, split.train.n_items, len(split.train)) == (6028, 3533, 563186)
    assert split.valid is not None
    assert split.test is not None
    assert split.negatives is not None
    assert len(split.valid) == len(split.test) == 6028
    assert split.negatives.shape == (6028, 100)
    assert split.notes == ()
    assert sorted(read_split(shared / "ml-100k-paper.npz").hidden) == [0.2, 0.4, 0.6, 0.8, 1.0]
    beauty = read(shared / "beauty.npz")
    assert (beauty.n_users, beauty.n_items, len(beauty)) == (22363, 12101, 198502)
    raw = read(shared / "ml-100k.inter")
    oracle = pd.read_csv(shared / "ml-100k.inter", sep="\t", names=["u", "i", "r", "t"], skiprows=1)
    assert as_dict(raw) == {(row.u, row.i): (row.r, row.t) for row in oracle.itertuples()}
