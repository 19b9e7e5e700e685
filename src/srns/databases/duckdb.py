"""DuckDB files through their own package, in Arrow batches both ways."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import date
from typing import Any

import duckdb
import polars as pl

from srns.databases.addresses import Address, quoted, quoted_table
from srns.databases.tables import ONE, How, Rows, UnfitError, odd_time, preparation, written_file
from srns.errors import DataError

ERRORS: tuple[type[Exception], ...] = (duckdb.Error, UnicodeError)
BATCH = 1_000_000  # rows
REFUSED = ("interval", "union", "variant", "uhugeint")  # what Arrow or polars do not know, or change
FIRST, LAST = (day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))  # days of the years 1 to 9999


@contextmanager
def reading(address: Address, select: str) -> Iterator[Rows]:
    if not address.file.is_file():
        raise DataError(f"{address.name}: no such file")
    with closing(duckdb.connect(address.database, read_only=True)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(_single(f"SELECT * FROM (\n{select}\n) LIMIT 0"))
        kinds = dict(zip(found.columns, found.types, strict=True))
        yield Rows(list(found.columns), lambda columns: _batches(connection, select, {name: kinds[name] for name in columns}))


def _single(query: str) -> str:
    """A query around the caller's own, whose end could otherwise be the beginning of statements that are not read-only."""
    if (found := len(duckdb.extract_statements(query))) != 1:
        raise UnfitError(f"{found} statements, {ONE}")
    return query


def _batches(connection: Any, select: str, kinds: Mapping[str, Any]) -> Generator[pl.DataFrame, None, None]:
    for name, kind in kinds.items():
        if kind.id in REFUSED:
            raise UnfitError(f"column {name!r} is {kind}, expected integers, numbers, text or times")
    # Infinity in seconds would overflow in polars' milliseconds.
    cast = {name: "::TIMESTAMP" if kind.id == "timestamp_s" else "" for name, kind in kinds.items()}
    listed = ", ".join(f"{quoted(name)}{cast[name]} AS {quoted(name)}" for name in kinds)
    done = 0
    for batch in connection.sql(_single(f"SELECT {listed} FROM (\n{select}\n)")).to_arrow_reader(BATCH):
        frame = pl.from_arrow(batch)
        if len(batch) and isinstance(frame, pl.DataFrame):
            _refuse_odd_times(frame, done)
            done += len(frame)
            yield frame


def _refuse_odd_times(frame: pl.DataFrame, first: int) -> None:
    """Infinity, which is kept as the last number that there is, and years that polars does not count to."""
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Date | pl.Datetime):
            day = (
                1
                if isinstance(dtype, pl.Date)
                else {"ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}[dtype.time_unit]
            )
            low, high = max(FIRST * day, 2 - 2**63), min((LAST + 1) * day - 1, 2**63 - 2)
            odd = ~frame[name].to_physical().is_between(low, high).fill_null(True)
            if odd.any():
                raise UnfitError(odd_time(first + int(odd.arg_max() or 0), name, "infinity or far away"))


@contextmanager
def writing(
    address: Address, table: str, columns: dict[str, pl.DataType], how: How
) -> Iterator[Callable[[pl.DataFrame], None]]:
    listed = ", ".join(map(quoted, columns))
    insert = f"INSERT INTO {quoted_table(table)} ({listed}) SELECT {listed} FROM srns_new_rows"
    with written_file(address.file) as file, closing(duckdb.connect(str(file))) as connection:
        found = _columns(connection, table)
        connection.execute("BEGIN TRANSACTION")
        if statement := preparation(table, columns, how, found):
            connection.execute(statement)

        def write(frame: pl.DataFrame) -> None:
            connection.register("srns_new_rows", frame.to_arrow())
            connection.execute(insert)
            connection.unregister("srns_new_rows")

        yield write
        connection.execute("COMMIT")  # without it, closing undoes all
        if file != address.file:  # which is about to get another name than its log
            connection.execute("CHECKPOINT")


def _columns(connection: Any, table: str) -> dict[str, str]:
    try:
        found = connection.sql(f"SELECT * FROM {quoted_table(table)} LIMIT 0")
    except duckdb.CatalogException:
        return {}
    return {name: str(kind) for name, kind in zip(found.columns, found.types, strict=True)}
