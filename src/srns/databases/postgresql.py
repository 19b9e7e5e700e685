"""PostgreSQL through psycopg: COPY both ways. Polars writes and parses its text, so that no value is a Python object."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
import psycopg

from srns.columns import first_line
from srns.databases.addresses import Address, quoted, quoted_table
from srns.databases.tables import ONE, How, LostError, Rows, UnfitError, odd_time, preparation

ERRORS: tuple[type[Exception], ...] = (psycopg.Error, UnicodeError)
BATCH_BYTES = 32 << 20  # of text, before it is parsed
TIMEOUT = 10  # seconds to wait for a server that does not answer, where nothing else is said
DTYPES: dict[str, Any] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid"), pl.Int64()),
    **dict.fromkeys(("float4", "float8", "numeric"), pl.Float64()),
    **dict.fromkeys(("timestamp", "timestamptz"), pl.Datetime("us")),
    "date": pl.Date(),
    "bool": pl.Boolean(),
}
REFUSED = ("json", "jsonb", "bytea", "interval", "time", "timetz")  # neither ids nor weights nor times
SETTINGS = "SET LOCAL DateStyle TO 'ISO'; SET LOCAL TimeZone TO 'UTC'; SET LOCAL synchronize_seqscans TO off"


@contextmanager
def _connected(address: Address) -> Iterator[psycopg.Connection[Any]]:
    """A connection that commits at the end of the block, or rolls back where it fails. What the URL leaves open, libpq takes
    from PGPASSWORD, ~/.pgpass and so on."""
    own = {"client_encoding": "utf8", "application_name": "srns"}
    if "PGCONNECT_TIMEOUT" not in os.environ:
        own["connect_timeout"] = str(TIMEOUT)
    options: dict[str, Any] = {**own, **address.options}
    connection = psycopg.connect(**options)
    connection.prepare_threshold = None
    with connection:
        yield connection


@contextmanager
def reading(address: Address, select: str) -> Iterator[Rows]:
    with _connected(address) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ  # columns and rows of one moment
        cursor = connection.cursor()
        cursor.execute(SETTINGS)
        try:  # binary asks for the extended protocol, which takes one statement: a second could end the transaction
            cursor.execute(_within(select, "*", "LIMIT 0"), binary=True)
        except psycopg.errors.SyntaxError as error:
            raise UnfitError(f"{first_line(error)}; {ONE}") from None
        codes = {column.name: column.type_code for column in cursor.description or ()}
        names = [column.name for column in cursor.description or ()]
        yield Rows(names, lambda columns: _batches(cursor, select, {name: codes[name] for name in columns}))


def _within(select: str, columns: str, rest: str = "") -> bytes:
    """A query of a query; the line break ends a comment that the inner one may end with."""
    return f"SELECT {columns} FROM (\n{select}\n) AS source {rest}".encode()


def _dtype(connection: psycopg.Connection[Any], column: str, code: int) -> Any:
    known = connection.adapters.types.get(code)
    if known is None:
        return pl.String()  # enumerations, extensions such as citext: as they are printed
    if known.array_oid == code or known.name in REFUSED:
        kind = f"{known.name}[]" if known.array_oid == code else known.name
        raise UnfitError(f"column {column!r} is {kind}, expected integers, numbers, text or times")
    return DTYPES.get(known.name, pl.String())


def _batches(cursor: psycopg.Cursor[Any], select: str, codes: dict[str, int]) -> Generator[pl.DataFrame, None, None]:
    types = {name: _dtype(cursor.connection, name, code) for name, code in codes.items()}
    columns = ", ".join(quoted(name) for name in types)
    with cursor.copy(b"COPY (" + _within(select, columns) + b") TO STDOUT (FORMAT csv)") as copy:
        kept: list[bytes] = []
        size = done = 0
        for block in copy:
            kept.append(bytes(block))
            size += len(block)
            if size >= BATCH_BYTES and kept[-1].endswith(b"\n"):
                text = b"".join(kept)
                if text.count(b'"') % 2 == 0:  # not within a value with a line break
                    kept, size = [], 0
                    frame = _parsed(text, types, done)
                    done += len(frame)
                    yield frame
        if kept:
            yield _parsed(b"".join(kept), types, done)


def _parsed(text: bytes, types: dict[str, Any], first: int) -> pl.DataFrame:
    if text.startswith(codecs.BOM_UTF8):  # polars leaves out one at the beginning, which here is part of a value
        text = codecs.BOM_UTF8 + text
    read = pl.read_csv(text, has_header=False, infer_schema=False, new_columns=list(types))
    frame = read.select(_typed(pl.col(name), dtype).alias(name) for name, dtype in types.items())
    for name in types:  # of what PostgreSQL writes, only such times are not understood
        if frame[name].null_count() > read[name].null_count():
            row = int((frame[name].is_null() & read[name].is_not_null()).arg_max() or 0)
            raise UnfitError(odd_time(first + row, name, repr(read[name][row])))
    return frame


def _typed(text: pl.Expr, dtype: Any) -> pl.Expr:
    """A column of the text that COPY writes, as what it is."""
    if dtype == pl.Boolean:
        return pl.when(text.is_not_null()).then(text == "t")
    if dtype == pl.Date:
        return text.str.to_date("%Y-%m-%d", strict=False)
    if dtype == pl.Datetime:  # in UTC, as the settings ask for
        return text.str.strip_suffix("+00").str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False)
    return text.cast(dtype, strict=False) if dtype in (pl.Int64, pl.Float64) else text


@contextmanager
def writing(
    address: Address, table: str, columns: dict[str, pl.DataType], how: How
) -> Iterator[Callable[[pl.DataFrame], None]]:
    name = quoted_table(table)
    with _connected(address) as connection:
        cursor = connection.cursor()
        found = _columns(cursor, name)
        statement = preparation(table, columns, how, found)
        if found and how == "replace":  # readers go on seeing the old rows, and another writer has to wait
            cursor.execute(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE".encode())
        if statement:
            cursor.execute(statement.encode())
        listed = ", ".join(quoted(column) for column in columns)
        with cursor.copy(f"COPY {name} ({listed}) FROM STDIN (FORMAT csv)".encode()) as copy:
            yield lambda frame: copy.write(frame.write_csv(include_header=False, quote_style="non_numeric").encode())
        try:
            connection.commit()
        except psycopg.OperationalError as error:
            if not connection.broken:
                raise
            raise LostError(first_line(error)) from None


def _columns(cursor: psycopg.Cursor[Any], name: str) -> dict[str, str]:
    cursor.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [name],
    )
    return dict(cursor.fetchall())
