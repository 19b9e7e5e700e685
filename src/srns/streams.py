"""Between databases and interactions: rows that come by once, in batches, become dense arrays; and frames on their way out.

What `columns.build` does with files in two readings is done in one here, since a query can be dear and need not give the same
rows twice: ids get numbers in the order they appear, and their final, sorted numbers at the end. So a row takes the bytes of
its ids, weight and time, and is held once. What counts as an id, a number or a date, and all messages, are those of `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from srns.columns import (
    BATCH,
    NoRowsError,
    Part,
    assembled,
    check_numbers,
    id_key,
    id_labels,
    iso_times,
    kind_of,
    number,
    raise_bad_id,
)
from srns.errors import MissingError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.roles import used_columns


class Gathering:
    """Rows of the `chosen` columns (role -> column) of a table that has those `found`, on their way to interactions."""

    def __init__(self, name: str, found: Sequence[str], chosen: Mapping[str, str]) -> None:
        self.name, self.found, self.chosen = name, found, chosen
        self.ids = {role: _Ids(role, chosen[role]) for role in ("user", "item")}
        self.numbers = {role: _Numbers(role, chosen[role]) for role in ("weight", "time") if role in chosen}
        self.kinds: list[Part] = []  # one for each schema that was met: the types of a column may differ between batches
        self.n = 0

    def take(self, batches: Iterable[pl.DataFrame]) -> None:
        """Add the rows of consecutive batches. Where values are missing, the rest is gone through to count them."""
        filled = (each for each in batches if not each.is_empty())
        counts, lacking = dict.fromkeys(self.chosen.values(), 0), None
        for batch in gathered(filled, BATCH):  # all known ids are looked through for each
            part = Part(self.name, batch.lazy(), batch.schema, first=self.n)
            for column in counts:
                counts[column] += batch[column].null_count()
            if any(counts.values()):
                lacking = lacking or part
            else:
                self._add(part)
            self.n += len(batch)
        if lacking is not None:
            try:
                self._add(lacking)
            except MissingError as error:
                raise error.among(counts) from None
            raise AssertionError("a part without some of its values was taken")  # and those after it were not

    def _add(self, part: Part) -> None:
        if not self.kinds or all(part.schema != seen.schema for seen in self.kinds):
            self.kinds.append(replace(part, rows=pl.LazyFrame(schema=part.schema)))  # without its rows
        for id_column in self.ids.values():
            id_column.add(part, self.kinds)
        for number_column in self.numbers.values():
            number_column.add(part, self.kinds)

    def interactions(self) -> Interactions:
        """Of all rows, which are let go."""
        if self.n == 0:
            raise NoRowsError(f"{self.name}: no rows, expected at least one interaction")
        arrays = {role: column.joined() for role, column in self.numbers.items()}
        ids = {}
        for role, column in self.ids.items():
            arrays[role], ids[role] = column.dense()
        return assembled(arrays, ids, used_columns(self.chosen, self.found))


class _Ids:
    """An id column: its distinct values in the order they came, and the number of each row's value among them."""

    def __init__(self, role: str, column: str) -> None:
        self.role, self.column = role, column
        self.values: list[pl.Series] = []  # all distinct ones, by number
        self.chunks: list[NDArray[np.int32]] = []
        self.known = pl.DataFrame()  # each value, as key, with its code
        self.loose = False

    def add(self, part: Part, kinds: Sequence[Part]) -> None:
        expression = id_key(kinds, self.column, self.role)
        self.loose = all(kind.schema[self.column].is_integer() for kind in kinds)
        keys = part.collect(part.rows.select(expression.alias("key")))
        dtype = keys.schema["key"]
        if not self.values:
            self.known = keys.clear().with_columns(code=pl.lit(0, pl.Int32))
        elif self.known.schema["key"] != dtype:  # integers so far, that now are floats or text
            self.values = [each.cast(dtype) for each in self.values]
            self.known = self.known.with_columns(pl.col("key").cast(dtype)).unique("key", keep="first", maintain_order=True)
        fresh = keys.unique().join(self.known, on="key", how="anti", nulls_equal=True)
        if id_labels(fresh["key"], self.loose).null_count():
            raise_bad_id([part], expression, self.column, self.role, self.loose)
        count = sum(map(len, self.values))
        self.values.append(fresh["key"])
        self.known.extend(fresh.with_columns(code=pl.int_range(count, count + len(fresh), dtype=pl.Int32)))
        self.chunks.append(keys.join(self.known, on="key", how="left", maintain_order="left")["code"].to_numpy())

    def dense(self) -> tuple[NDArray[np.int32], IdMap]:
        """Each row's dense id, and the map of them."""
        labels = id_labels(pl.concat(self.values), self.loose)
        self.values, self.known = [], pl.DataFrame()
        ids = IdMap.of(labels, self.role)
        final = ids.indices(labels).astype(np.int32)
        return _joined(self.chunks, lambda chunk: final[chunk]), ids


class _Numbers:
    """A column of weights or times."""

    def __init__(self, role: str, column: str) -> None:
        self.role, self.column = role, column
        self.chunks: list[NDArray[Any]] = []
        self.text: pl.Expr | None = None  # how text is read as times, once that is known

    def add(self, part: Part, kinds: Sequence[Part]) -> None:
        if self.role == "time" and all(kind_of(kind.schema[self.column]) == "text" for kind in kinds):
            expression = self._of_text(part)
        else:
            expression = number(kinds, self.column, self.role)
        as_found = pl.col(self.column).alias(f"{self.role} as found")
        batch = part.collect(part.rows.select(expression.alias(self.role), as_found))
        check_numbers(part, 0, batch, self.role, self.column)
        self.chunks.append(batch[self.role].to_numpy())

    def _of_text(self, part: Part) -> pl.Expr:
        """Dates if the very first value is no number, else integers as long as all are."""
        text = pl.col(self.column).cast(pl.String).str.strip_chars()
        whole, real = text.cast(pl.Int64, strict=False), text.cast(pl.Float64, strict=False)
        facts = part.collect(part.rows.select(first=real.first(), unreadable=whole.null_count()))
        if self.text is None:
            self.text = iso_times(text) if facts["first"][0] is None else whole
            self.dates = facts["first"][0] is None
        if not self.dates and facts["unreadable"][0]:
            self.text = real
        return self.text

    def joined(self) -> NDArray[Any]:
        return _joined(self.chunks, lambda chunk: chunk)


def gathered(frames: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """The same rows in frames of one chunk, which others read faster, and of at least so many rows, but for the last and where
    types change."""
    kept: list[pl.DataFrame] = []

    def whole() -> pl.DataFrame:
        """What was kept, which is let go before others work on it: it would be held twice."""
        frame = pl.concat(kept, rechunk=True)
        kept.clear()
        return frame

    for frame in frames:
        if kept and kept[0].schema != frame.schema:
            yield whole()
        kept.append(frame)
        del frame
        if sum(map(len, kept)) >= rows:
            yield whole()
    if kept:
        yield whole()


@contextmanager
def set_aside(frames: Iterable[pl.DataFrame]) -> Iterator[Iterator[pl.DataFrame]]:
    """The frames, all made before the block begins and kept on disk until it ends: nothing in it waits for their making."""
    with TemporaryDirectory(prefix="srns-") as folder:
        parts = []
        for number, frame in enumerate(frames):
            parts.append(Path(folder) / f"{number}.parquet")
            write_parquet(frame, parts[-1])
        yield (pl.read_parquet(part, glob=False) for part in parts)


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    try:
        frame.write_parquet(path)
    except pl.exceptions.PolarsError as error:  # what polars makes of a full disk
        raise OSError(str(error)) from None


def _joined(chunks: list[NDArray[Any]], change: Any) -> NDArray[Any]:
    """All chunks, changed, as one array; each is let go as soon as it is copied."""
    dtype = np.result_type(*{chunk.dtype for chunk in chunks})
    whole = np.empty(sum(map(len, chunks)), dtype)
    filled = 0
    chunks.reverse()
    while chunks:
        chunk = change(chunks.pop())
        whole[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return whole
