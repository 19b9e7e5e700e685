"""SQLite files through Python's own sqlite3. A column has no type there but that of its values, which is found by batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from srns.databases.addresses import Address, quoted, quoted_table, table_parts
from srns.databases.tables import How, Rows, UnfitError, preparation, written_file
from srns.errors import DataError

ERRORS: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeError)
BATCH = 100_000  # rows, which are Python objects here for a moment
PATIENCE = 30.0  # seconds to wait for another process that writes to the file


def _connected(file: Path, mode: str) -> sqlite3.Connection:
    """A connection without transactions of its own. To read, too, it is open for writing: where a process was killed within a
    transaction, the first to come has to undo what it left."""
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=PATIENCE)


@contextmanager
def reading(address: Address, select: str) -> Iterator[Rows]:
    if not address.file.is_file():
        raise DataError(f"{address.name}: no such file")
    with closing(_connected(address.file, "rw")) as connection:
        connection.execute("PRAGMA query_only = ON")
        found = connection.execute(f"SELECT * FROM (\n{select}\n) LIMIT 0").description
        yield Rows([column[0] for column in found], lambda columns: _batches(connection, select, columns))


def _batches(connection: sqlite3.Connection, select: str, columns: Sequence[str]) -> Generator[pl.DataFrame, None, None]:
    cursor = connection.execute(f"SELECT {', '.join(quoted(name) for name in columns)} FROM (\n{select}\n)")
    while rows := cursor.fetchmany(BATCH):
        yield pl.DataFrame([_series(name, values) for name, values in zip(columns, zip(*rows, strict=True), strict=True)])


def _series(name: str, values: tuple[Any, ...]) -> pl.Series:
    """Values of one type, integers among floats, or integers among text, which become text as in files."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {int, float} and kinds:
        return pl.Series(name, values, dtype=pl.Float64 if float in kinds else pl.Int64, strict=False)
    if kinds <= {int, str}:
        texts = values if int not in kinds else [None if value is None else str(value) for value in values]
        return pl.Series(name, texts, dtype=pl.String)
    if kinds == {bytes}:
        return pl.Series(name, values, dtype=pl.Binary)
    found = " and ".join(sorted({float: "real numbers", int: "integers", str: "text", bytes: "blobs"}[kind] for kind in kinds))
    raise UnfitError(f"column {name!r} holds {found} in different rows; CAST it in a query to what it should be")


@contextmanager
def writing(
    address: Address, table: str, columns: dict[str, pl.DataType], how: How
) -> Iterator[Callable[[pl.DataFrame], None]]:
    insert = f"INSERT INTO {quoted_table(table)} ({', '.join(map(quoted, columns))}) VALUES ({', '.join('?' * len(columns))})"
    with written_file(address.file) as file, closing(_connected(file, "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if statement := preparation(table, columns, how, _columns(connection, table)):
                connection.execute(statement)
            yield lambda frame: _insert(connection, insert, frame)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has ended it already
                connection.execute("ROLLBACK")
            raise


def _insert(connection: sqlite3.Connection, insert: str, frame: pl.DataFrame) -> None:
    connection.executemany(insert, frame.iter_rows())


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    *schema, last = table_parts(table)
    prefix = f"{quoted(schema[0])}." if schema else ""
    rows = connection.execute(f"PRAGMA {prefix}table_info({quoted(last)})").fetchall()
    return {str(row[1]): str(row[2]) for row in rows}
