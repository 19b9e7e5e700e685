"""Between files and interactions: dense arrays made of the columns of a table.

A table is a list of `Part`s (files or frames with the same columns). It is read twice in batches: once for the distinct ids,
once to write each row's dense ids, weight and time into flat arrays. So memory follows the arrays, not the file, and what an
id is (integer or text) is decided on the distinct values of the whole column, never on its first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from srns.errors import LEAVE_OUT, DataError, MissingError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.roles import listed, used_columns

BATCH = 4_000_000  # rows held at once: 150 MB of numbers, and large enough that a join per batch costs nothing extra
MAX_EXACT = 2**53  # beyond it a float no longer tells neighbouring integers apart
SAMPLE = 100  # first rows by which a column that nobody named is taken for dates
ISO_FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d")
ISO = "an ISO date (YYYY-MM-DD)"

# What programs write for no value. In just these spellings, as somebody may be called Null.
NOT_THERE = ("NaN", "nan", "NULL", "null", "None", "N/A", "n/a", "NA", "<NA>", "\\N")


class NoRowsError(DataError):
    """A table is empty."""


@dataclass(frozen=True)
class Part:
    """One file or frame: its rows, and how to name one of them; `line` maps a row to a line where the file has lines."""

    name: str
    rows: pl.LazyFrame
    schema: Mapping[str, pl.DataType]
    line: Callable[[int], int] | None = None
    first: int = 0  # the number of its first row, where it is a batch of more
    ragged: int = 0  # rows that it is without, since they had more or fewer fields than the file has columns

    def where(self, row: int) -> str:
        return f"{self.name}, row {self.first + row} (from 0)" if self.line is None else f"{self.name}, line {self.line(row)}"

    def collect(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """`rows` of this part in memory; whatever a damaged file makes polars do becomes an error that names the file."""
        try:
            return rows.collect()
        except (Exception, pl.exceptions.PanicException) as error:
            raise DataError(f"{self.name}: damaged or not readable: {first_line(error)}") from error

    def batches(self, columns: Sequence[pl.Expr]) -> Iterator[tuple[int, pl.DataFrame]]:
        """(first row, rows) of consecutive batches."""
        height = int(self.collect(self.rows.select(pl.len())).item())
        for start in range(0, height, BATCH):
            yield start, self.collect(self.rows.slice(start, BATCH).select(columns))


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def build(parts: Sequence[Part], chosen: Mapping[str, str], *, text: bool, drop_bad_rows: bool = False) -> Interactions:
    """The interactions of a table; `text` says that columns are text only because the file format knows nothing else."""
    _check_columns(parts, chosen)
    if drop_bad_rows:
        kept, note = _without_bad_rows(parts, chosen)
        data = _build(kept, chosen, text)
        return replace(data, notes=(*data.notes[:1], note, *data.notes[1:]) if note else data.notes)
    try:
        return _build(parts, chosen, text)
    except MissingError as error:
        columns = list(chosen.values())
        counts = pl.concat(part.collect(part.rows.select(columns).null_count()) for part in parts).sum()
        raise error.among(counts.row(0, named=True)) from None


def _check_columns(parts: Sequence[Part], chosen: Mapping[str, str]) -> None:
    for part in parts:
        if lacking := [column for column in chosen.values() if column not in part.schema]:
            raise DataError(
                f"{part.name}: no column {listed(lacking)}, which {parts[0].name} has; found {listed(list(part.schema))}"
            )


def _without_bad_rows(parts: Sequence[Part], chosen: Mapping[str, str]) -> tuple[list[Part], str]:
    """The parts without rows that lack an id, or whose weight or time cannot be read; and what was left out, by column.

    Rows of another number of fields, which opening the file has left out, are told among them.
    """
    good = {}
    for role, column in chosen.items():
        if role in ("user", "item"):
            good[role] = ~id_key(parts, column, role).cast(pl.String).str.strip_chars().is_in(["", *NOT_THERE])
        else:
            good[role] = number(parts, column, role).cast(pl.Float64).is_finite()
    good = {role: each.fill_null(False) for role, each in good.items()}
    whole = pl.all_horizontal(good.values())
    sums = [pl.len().alias("rows"), *((~each).sum().alias(role) for role, each in {**good, "bad": whole}.items())]
    counts = pl.concat(part.collect(part.rows.select(sums)) for part in parts).sum().row(0, named=True)
    ragged = sum(part.ragged for part in parts)
    n, bad = counts.pop("rows") + ragged, counts.pop("bad") + ragged
    named = {**{chosen[role]: count for role, count in counts.items()}, "wrong number of fields": ragged}
    told = ", ".join(f"{name} {count:,}" for name, count in named.items() if count)
    if 2 * bad > n:
        dates = counts.get("time", 0)
        meant = f", and is every date {ISO}? Convert the dates, or go without times: --time-column none" if dates else "?"
        raise DataError(
            f"{parts[0].name}: {bad:,} of {n:,} rows have a value that is missing or cannot be read ({told}): too many to "
            f"drop; are these the right columns{meant}"
        )
    kept = [replace(part, rows=part.rows.filter(whole), line=None, name=f"{part.name} without bad rows") for part in parts]
    return kept, f"left out {bad:,} of {n:,} rows with a value that is missing or cannot be read: {told}" if bad else ""


def _build(parts: Sequence[Part], chosen: Mapping[str, str], text: bool) -> Interactions:
    keys = {role: id_key(parts, chosen[role], role) for role in ("user", "item")}
    loose = {role: text or all(part.schema[chosen[role]].is_integer() for part in parts) for role in keys}
    distinct = {role: pl.Series(role, [], dtype=pl.Null) for role in keys}
    n = 0
    for part in parts:
        for _, batch in part.batches([key.alias(role) for role, key in keys.items()]):
            n += len(batch)
            for role, seen in distinct.items():
                fresh = batch[role].unique()
                distinct[role] = fresh if seen.dtype == pl.Null else seen.append(fresh).unique()
    if n == 0:
        raise NoRowsError(f"{parts[0].name}: no rows, expected at least one interaction")

    ids, codes = {}, {}
    for role, values in distinct.items():
        labels = id_labels(values, loose[role])
        if labels.null_count():
            raise_bad_id(parts, keys[role], chosen[role], role, loose[role])
        ids[role] = IdMap.of(labels, role)
        codes[role] = pl.DataFrame({"key": values, "code": ids[role].indices(labels).astype(np.int32)})
    arrays = _fill(parts, keys, codes, chosen, n)
    dated = [] if "time" in chosen else _dated(parts[0], chosen)
    return assembled(arrays, ids, used_columns(chosen, list(parts[0].schema), dated))


def assembled(arrays: dict[str, NDArray[Any]], ids: Mapping[str, IdMap], used: str) -> Interactions:
    """The interactions of all rows of a table: `arrays` has what `_fill` gives, `used` tells of its columns."""
    users, items = arrays.pop("user"), arrays.pop("item")
    data = Interactions.from_pairs(users, items, **arrays, user_ids=ids["user"], item_ids=ids["item"])
    doubts = [*_doubts(users, ids["user"]), *_doubts(items, ids["item"])]
    return replace(data, notes=(used, *doubts, *data.notes))


def _doubts(rows: NDArray[Any], ids: IdMap) -> Iterator[str]:
    """Notes on ids that may stand for no value: they would be trained on, and recommended."""
    if ids.labels.dtype != pl.String:
        return
    for code in ids.labels.is_in(NOT_THERE).arg_true():
        yield (
            f"{np.count_nonzero(rows == code):,} rows have the {ids.kind} id {ids.labels[code]!r}; if it stands for a missing "
            f"value, leave them out: {LEAVE_OUT}"
        )


def _dated(part: Part, chosen: Mapping[str, str]) -> list[str]:
    """The columns without a role that hold dates: by their type or, of text, by the first values."""
    kinds = {column: kind_of(dtype) for column, dtype in part.schema.items() if column not in chosen.values()}
    texts = [pl.col(column).cast(pl.String).str.strip_chars() for column, kind in kinds.items() if kind == "text"]
    sample = part.collect(part.rows.head(SAMPLE).select(texts))

    def all_dates(text: pl.Series) -> bool:
        filled = text.filter(text != "")
        return len(filled) > 0 and filled.to_frame().select(iso_times(pl.first())).to_series().null_count() == 0

    return [column for column, kind in kinds.items() if kind == "date" or (kind == "text" and all_dates(sample[column]))]


def _fill(
    parts: Sequence[Part], keys: Mapping[str, pl.Expr], codes: Mapping[str, pl.DataFrame], chosen: Mapping[str, str], n: int
) -> dict[str, NDArray[Any]]:
    """The second reading: (n,) arrays of dense user and item ids and, where chosen, weight and time."""
    values = {role: number(parts, chosen[role], role) for role in ("weight", "time") if role in chosen}
    arrays: dict[str, NDArray[Any]] = {role: np.empty(n, np.int32) for role in keys}
    filled = 0
    for part in parts:
        columns = [expression.alias(role) for role, expression in (*keys.items(), *values.items())]
        originals = [pl.col(chosen[role]).alias(f"{role} as found") for role in values]
        for start, batch in part.batches([*columns, *originals]):
            place = slice(filled, filled + len(batch))
            for role, table in codes.items():
                found = batch.select(key=role).join(table, on="key", how="left", maintain_order="left")["code"]
                if found.null_count():
                    raise DataError(f"{part.name}: changed while it was being read")
                arrays[role][place] = found.to_numpy()
            for role in values:
                check_numbers(part, start, batch, role, chosen[role])
                column = batch[role].to_numpy()
                if role not in arrays:
                    arrays[role] = np.empty(n, column.dtype)
                arrays[role][place] = column
            filled += len(batch)
    return arrays


def kind_of(dtype: pl.DataType) -> str:
    if dtype.is_integer():
        return "integer"
    if dtype.is_float() or dtype.is_decimal():
        return "float"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "text"
    return "date" if dtype in (pl.Date, pl.Datetime) else "boolean" if dtype == pl.Boolean else str(dtype)


def _common_kind(parts: Sequence[Part], column: str, role: str, mixtures: Mapping[frozenset[str], str]) -> str:
    """The kind of a column over all parts; `mixtures` says which kinds may differ between files and what they become."""
    first = kind_of(parts[0].schema[column])
    kind = first
    for part in parts:
        here = kind_of(part.schema[column])
        kinds = frozenset((kind, here))
        if kinds not in mixtures:
            other = "" if here == first else f" (in {parts[0].name}: {first})"
            expected = ", ".join(sorted({name for known in mixtures for name in known}))
            raise DataError(f"{part.name}: {role} column {column!r} is {here}{other}; expected one of {expected}")
        kind = mixtures[kinds]
    return kind


def id_key(parts: Sequence[Part], column: str, role: str) -> pl.Expr:
    """The id column, cast only as far as needed to be comparable between parts."""
    same = {frozenset((kind,)): kind for kind in ("integer", "float", "text")}
    mixed = {frozenset(("integer", "text")): "text", frozenset(("integer", "float")): "float"}
    kind = _common_kind(parts, column, role, {**same, **mixed})
    dtypes = {part.schema[column] for part in parts}
    if kind == "text":
        return pl.col(column).cast(pl.String)
    if kind == "float":
        return pl.col(column).cast(pl.Float64)
    fits = all(dtype in (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32) for dtype in dtypes)
    return pl.col(column).cast(pl.Int64 if fits else pl.String)


def ordered_key(parts: Sequence[Part], column: str, role: str) -> pl.Expr:
    """An id column as values whose order is that of the dense ids made of them, whatever rows are there."""
    key = id_key(parts, column, role)
    kinds = {kind_of(part.schema[column]) for part in parts}
    wide = kinds == {"integer"} and any(part.schema[column] in (pl.UInt64, pl.Int128) for part in parts)
    if wide:
        raise DataError(
            f"{parts[0].name}: {role} column {column!r} is {parts[0].schema[column]}, which ranks cannot divide; "
            "cast it to Int64 or text"
        )
    return key


def user_labels(part: Part, key: pl.Expr, column: str) -> pl.Series:
    """The values of the user column of one file, all of them ids."""
    values = part.collect(part.rows.select(key.alias("user")))["user"]
    if id_labels(values, False).null_count():
        raise_bad_id([part], key, column, "user", False)
    return values


def id_labels(values: pl.Series, numbers_as_text: bool) -> pl.Series:
    """Ids as Int64 or String, null where a value cannot be an id.

    Text becomes integers only if every value is an integer in its one usual spelling, so "007" or "7.0" anywhere keeps the
    whole column text and apart from "7", as does a number beyond 64 bits.
    """
    if values.dtype == pl.Float64:
        whole = values.cast(pl.Int64, strict=False)
        exact = (whole.cast(pl.Float64) == values) & (values.abs() <= MAX_EXACT)
        return pl.select(pl.when(exact).then(whole)).to_series()
    if values.dtype == pl.Int64:
        return values
    if numbers_as_text:
        values = values.str.strip_chars()
        numbers: pl.Series = values.cast(pl.Int64, strict=False)
        if numbers.null_count() == 0 and (numbers.cast(pl.String) == values).all():
            return numbers
    return pl.select(pl.when(values != "").then(values)).to_series()


def raise_bad_id(parts: Sequence[Part], key: pl.Expr, column: str, role: str, numbers_as_text: bool) -> None:
    for part in parts:
        for start, batch in part.batches([key.alias(role)]):
            if (bad := id_labels(batch[role], numbers_as_text).is_null()).any():
                row = int(bad.arg_max() or 0)
                value, where = batch[role][row], f"{part.where(start + row)}: {role} id in column {column!r}"
                if value is None or (isinstance(value, str) and not value.strip()):
                    raise MissingError(f"{where} is missing")
                raise DataError(f"{where} {value!r} is not an integer or text")


def check_numbers(part: Part, start: int, batch: pl.DataFrame, role: str, column: str) -> None:
    bad = batch[role].is_null()
    if batch[role].dtype.is_float():
        bad = bad | ~batch[role].is_finite().fill_null(False)
    if not bad.any():
        return
    row = int(bad.arg_max() or 0)
    value = batch[f"{role} as found"][row]
    found = "is missing" if value is None else repr(value)
    expected = "a number" if role == "weight" else f"an integer, a number or {ISO}, the same in every row"
    convert = "other dates have to be converted to that first; " if role == "time" and value is not None else ""
    raise (MissingError if value is None else DataError)(
        f"{part.where(start + row)}: {role} in column {column!r} {found}, expected {expected} "
        f"({convert}to ignore the column: --{role}-column none, in Python {role}=False; to leave such rows out: {LEAVE_OUT})"
    )


def number(parts: Sequence[Part], column: str, role: str) -> pl.Expr:
    """The expression that makes float32 weights, or int64 or float64 times, of a column; null where a value will not do."""
    same = {frozenset((kind,)): kind for kind in ("integer", "float", "text", "boolean" if role == "weight" else "date")}
    values = pl.col(column)
    if role == "weight":
        kind = _common_kind(parts, column, role, {**same, frozenset(("integer", "float")): "float"})
        return (values.cast(pl.String).str.strip_chars() if kind == "text" else values).cast(pl.Float32, strict=False)
    kind = _common_kind(parts, column, role, {**same, frozenset(("integer", "float")): "float"})
    if kind == "date":
        return values.dt.timestamp("us")
    if kind != "text":
        return values.cast(pl.Int64 if kind == "integer" else pl.Float64, strict=False)
    values = values.cast(pl.String).str.strip_chars()
    numbers, first = values.cast(pl.Int64, strict=False), None
    for part in parts:
        for _, batch in part.batches([values.alias("text"), numbers.alias("number")]):
            filled = batch["text"].drop_nulls()
            first = next(iter(filled.filter(filled != "").head(1)), None) if first is None else first
            if batch["number"].null_count():
                is_number = pl.Series([first], dtype=pl.String).cast(pl.Float64, strict=False).null_count() == 0
                return values.cast(pl.Float64, strict=False) if is_number else iso_times(values)
    return numbers


def iso_times(text: pl.Expr) -> pl.Expr:
    """ISO dates and times as microseconds since 1970; without an offset they are taken as UTC."""
    text = text.str.replace("T", " ", literal=True).str.replace("Z$", "+00:00")
    local = [text.str.to_datetime(form, time_unit="us", strict=False) for form in ISO_FORMATS]
    zoned = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False)
    return pl.coalesce([*local, zoned.dt.replace_time_zone(None)]).dt.timestamp("us")
