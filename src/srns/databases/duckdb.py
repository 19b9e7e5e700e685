"""DuckDB files through their own package, in Arrow batches both ways."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import duckdb
import polars as pl

from srns.databases.addresses import Address, quoted, quoted_table
from srns.databases.tables import How, Rows, check_columns, must_be_new
from srns.errors import DataError

ERRORS: tuple[type[Exception], ...] = (duckdb.Error, UnicodeError)
BATCH = 1_000_000  # rows


@contextmanager
def reading(address: Address, select: str) -> Iterator[Rows]:
    if not address.file.is_file():
        raise DataError(f"{address.name}: no such file")
    with closing(duckdb.connect(address.database, read_only=True)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(f"SELECT * FROM (\n{select}\n) LIMIT 0").columns
        yield Rows(list(found), lambda columns: _batches(connection, select, columns))


def _batches(connection: Any, select: str, columns: Sequence[str]) -> Generator[pl.DataFrame, None, None]:
    listed = ", ".join(quoted(name) for name in columns)
    for batch in connection.sql(f"SELECT {listed} FROM (\n{select}\n)").to_arrow_reader(BATCH):
        frame = pl.from_arrow(batch)
        if len(batch) and isinstance(frame, pl.DataFrame):
            yield frame


@contextmanager
def writing(
    address: Address, table: str, columns: dict[str, pl.DataType], how: How
) -> Iterator[Callable[[pl.DataFrame], None]]:
    listed = ", ".join(map(quoted, columns))
    insert = f"INSERT INTO {quoted_table(table)} ({listed}) SELECT {listed} FROM srns_new_rows"
    new = not address.file.exists()
    with closing(duckdb.connect(address.database)) as connection:
        try:
            found = _columns(connection, table)
            connection.execute("BEGIN TRANSACTION")
            _prepare(connection, table, columns, how, found)

            def write(frame: pl.DataFrame) -> None:
                connection.register("srns_new_rows", frame.to_arrow())
                connection.execute(insert)
                connection.unregister("srns_new_rows")

            yield write
            connection.execute("COMMIT")
        except BaseException:
            connection.close()  # which undoes what was not committed
            if new:
                address.file.unlink(missing_ok=True)
            raise


def _columns(connection: Any, table: str) -> dict[str, str]:
    try:
        found = connection.sql(f"SELECT * FROM {quoted_table(table)} LIMIT 0")
    except duckdb.CatalogException:
        return {}
    return {name: str(kind) for name, kind in zip(found.columns, found.types, strict=True)}


def _prepare(connection: Any, table: str, columns: dict[str, pl.DataType], how: How, found: dict[str, str]) -> None:
    name = quoted_table(table)
    if not found:
        made = ", ".join(f"{quoted(column)} {_created(dtype)} NOT NULL" for column, dtype in columns.items())
        connection.execute(f"CREATE TABLE {name} ({made})")
        return
    if how == "new":
        raise must_be_new(table)
    check_columns(table, columns, found)
    if how == "replace":
        connection.execute(f"DELETE FROM {name}")


def _created(dtype: pl.DataType) -> str:
    if dtype.is_float():
        return "FLOAT" if dtype == pl.Float32 else "DOUBLE"
    if dtype.is_integer():
        return "BIGINT" if dtype == pl.Int64 else "INTEGER"
    return "VARCHAR"
