"""What the modules of all databases share: queries that are read, tables that are made or checked, new files that are whole."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Literal, NamedTuple

import polars as pl

from srns.databases.addresses import quoted, quoted_table
from srns.errors import ConfigError

How = Literal["new", "replace", "append"]

TYPES = {  # how databases call what can hold a kind of value; of a type that is not here, the database decides
    "integers": "smallint integer bigint hugeint int tinyint mediumint int2 int4 int8 numeric decimal",
    "numbers": "real double float float4 float8 numeric decimal",
    "text": "text character varchar char bpchar citext clob nvarchar string",
}


ONE = "expected one SELECT, without a semicolon"


class UnfitError(Exception):
    """Something in a database that cannot be read; who reports it adds where."""


class LostError(Exception):
    """The connection went while the transaction was being committed: nobody knows whether it was."""


def odd_time(row: int, column: str, found: str) -> str:
    return f"row {row} (from 0): time in column {column!r} is {found}, expected one of the years 1 to 9999"


class Rows(NamedTuple):
    """A query that is ready to be read: its columns, and batches of those of them that are asked for."""

    columns: list[str]
    batches: Callable[[Sequence[str]], Generator[pl.DataFrame, None, None]]


def kind_to_write(dtype: pl.DataType) -> str:
    return "integers" if dtype.is_integer() else "text" if dtype == pl.String else "numbers"


def preparation(table: str, columns: Mapping[str, pl.DataType], how: How, found: Mapping[str, str]) -> str | None:
    """The statement, if any, that readies a table for new rows; `found` are the columns it has, none where it is not there."""
    name = quoted_table(table)
    if not found:
        listed = ", ".join(f"{quoted(column)} {_created(kind)} NOT NULL" for column, kind in columns.items())
        return f"CREATE TABLE {name} ({listed})"
    if how == "new":
        raise ConfigError(
            f"table {table} is there already: --replace puts the new recommendations in the place of its rows, "
            "--append adds them"
        )
    _check_columns(table, columns, found)
    return f"DELETE FROM {name}" if how == "replace" else None


@contextmanager
def written_file(file: Path) -> Iterator[Path]:
    """The file to write to: this one or, where there is none, one beside it that takes its name once all is written."""
    if file.exists():
        yield file
        return
    beside = file.with_name(f".{file.name}.{token_hex(4)}.part")
    try:
        yield beside
        try:
            file.touch(exist_ok=False)  # so that what another process has made meanwhile stays
        except FileExistsError:
            raise UnfitError("another process has made this file meanwhile; run the command again") from None
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _created(dtype: pl.DataType) -> str:
    """A type by a name that all three databases know."""
    if dtype.is_float():
        return "real" if dtype == pl.Float32 else "double precision"
    if dtype.is_integer():
        return "bigint" if dtype == pl.Int64 else "integer"
    return "text"


def _check_columns(table: str, wanted: Mapping[str, pl.DataType], found: Mapping[str, str]) -> None:
    """Refuse a table without the columns of recommendations, or with other types. It may have more, if they have defaults."""
    expected = ", ".join(f"{name} ({kind_to_write(dtype)})" for name, dtype in wanted.items())
    there = ", ".join(f"{name} {kind}".strip() for name, kind in found.items())
    for name, dtype in wanted.items():
        kind = found.get(name)
        base = (kind or "").lower().replace("(", " ").partition(" ")[0]
        fits = base in TYPES[kind_to_write(dtype)].split() or not any(base in known.split() for known in TYPES.values())
        if kind is None or not fits:
            problem = f"has no column {name}" if kind is None else f"has {name} as {kind}, for {kind_to_write(dtype)}"
            raise ConfigError(
                f"table {table} {problem}: expected {expected}; found {there}. Choose another --table, or drop this one first"
            )
