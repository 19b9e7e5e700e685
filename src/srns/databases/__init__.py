"""Databases as sources of interactions and as places for recommendations: PostgreSQL, SQLite and DuckDB (extra `srns[sql]`).

Each has a module with two functions. `reading` gives the columns of a query and its rows in batches, in a transaction that can
only read; `writing` takes frames into a table, in one transaction. PostgreSQL goes through psycopg and COPY, SQLite through
Python's own sqlite3, DuckDB through its own package and Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from importlib import import_module
from itertools import chain
from typing import Any, Protocol

import polars as pl

from srns.columns import first_line
from srns.databases.addresses import Address, is_url, parse, quoted_table, shown, without_userinfo
from srns.databases.tables import How, LostError, Rows, UnfitError
from srns.errors import ArtifactError, ConfigError, DataError, SrnsError
from srns.interactions import Interactions
from srns.roles import Asked, choose
from srns.streams import Gathering, gathered, set_aside

__all__ = [
    "How",
    "check_ready",
    "is_url",
    "parse",
    "read_database",
    "shown",
    "without_userinfo",
    "write_at_once",
    "write_database",
]

WRITE_ROWS = 50_000  # rows that go to a database at a time
UNFIT: tuple[type[BaseException], ...] = (UnfitError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
NEXT = {  # what to do where it is not known whether new rows are there
    "new": "If the table is there, they are in it; if not, run the command again",
    "replace": "Run the command again: it puts them in the place of whatever is there",
    "append": "Look before you run the command again, which would add them twice: SELECT count(*) FROM {table}",
}
NEEDED = {"postgresql": ("psycopg",), "duckdb": ("duckdb", "pyarrow")}  # beside what Python brings


class Driver(Protocol):
    ERRORS: tuple[type[Exception], ...]  # what it raises when the database, the connection or the SQL is at fault

    def reading(self, address: Address, select: str) -> AbstractContextManager[Rows]: ...

    def writing(
        self, address: Address, table: str, columns: dict[str, pl.DataType], how: How
    ) -> AbstractContextManager[Callable[[pl.DataFrame], None]]: ...


def read_database(url: str, asked: Asked, *, query: str | None = None, table: str | None = None) -> Interactions:
    """Interactions of a query's result or of a table; `asked` maps roles to columns, as for files."""
    address = parse(url)
    if (query is None) == (table is None):
        said = "not both" if query is not None else f"found neither for {address.name}"
        raise ConfigError(f"say what to read from a database: --table NAME or --query SQL (in Python table=, query=), {said}")
    select = query.strip().rstrip(";") if query is not None else f"SELECT * FROM {quoted_table(table or '')}"
    name = f"{address.name}, {f'table {table}' if table is not None else 'query'}"
    driver = _driver(address)
    with _reported(driver, address, name, DataError), driver.reading(address, select) as rows:
        chosen = choose(name, _once(rows.columns, name), asked)
        wanted = list(dict.fromkeys(chosen.values()))
        gathering = Gathering(name, rows.columns, chosen)
        with closing(rows.batches(wanted)) as batches:  # before the connection, which it may still be using
            gathering.take(batches)
    return gathering.interactions()  # once the database is closed, and what its driver remembers of it is gone


def write_database(frames: Iterable[pl.DataFrame], url: str, table: str, how: How = "new") -> int:
    """`write_at_once`, with all frames made before the transaction begins: while it lasts, others cannot write, or not even
    read. What can be known to go wrong with it is found out first."""
    address, frames = parse(url), iter(frames)
    first = _first(frames)
    with suppress(_RehearsedError), _writing(address, table, first, "append" if how == "replace" else how):
        raise _RehearsedError
    with set_aside(gathered(chain([first], frames), WRITE_ROWS)) as made:  # not a file for every block of users
        return write_at_once(made, url, table, how)


def write_at_once(frames: Iterable[pl.DataFrame], url: str, table: str, how: How = "new") -> int:
    """Write frames of the same columns to a table in one transaction; returns the number of rows.

    The table is made, and must not be there, with `how="new"`; "replace" puts the new rows in the place of the old, "append"
    adds them. Whatever goes wrong, the table is then as it was; where that cannot be known, the error says so.
    """
    frames = gathered(frames, WRITE_ROWS)
    first, rows, address = _first(frames), 0, parse(url)
    try:
        with _writing(address, table, first, how) as write:
            for frame in chain([first], frames):
                write(frame)
                rows += len(frame)
    except LostError as error:
        raise ArtifactError(
            f"{address.name}, table {table}: the connection was lost in the last step, COMMIT, and whether {rows:,} new rows "
            f"are there is not known: all of them or none ({address.scrubbed(str(error))}). "
            f"{NEXT[how].format(table=quoted_table(table))}"
        ) from None
    return rows


@contextmanager
def _writing(address: Address, table: str, first: pl.DataFrame, how: How) -> Iterator[Callable[[pl.DataFrame], None]]:
    """A transaction for frames like the first, which undoes all where the block fails."""
    driver = _driver(address)
    reported = f"cannot write to {address.name}, table {table}", ArtifactError, "; nothing was changed there"
    with _reported(driver, address, *reported), driver.writing(address, table, dict(first.schema), how) as write:
        yield write


def _first(frames: Iterator[pl.DataFrame]) -> pl.DataFrame:
    first = next(frames, None)
    if first is None:
        raise ConfigError("no frames to write")
    return first


class _RehearsedError(Exception):
    """Ends a transaction that was only tried."""


def check_ready(url: str, table: str) -> None:
    """Refuse a wrong address or table name, or a missing package, before any work is done."""
    quoted_table(table)
    _driver(parse(url))


def _driver(address: Address) -> Driver:
    if address.kind in NEEDED:
        try:
            for package in NEEDED[address.kind]:
                import_module(package)
        except ImportError as error:
            raise ConfigError(f"{address.kind} needs more packages: pip install 'srns[sql]' ({error})") from None
    driver: Any = import_module(f"srns.databases.{address.kind}")
    return driver  # type: ignore[no-any-return]


@contextmanager
def _reported(driver: Driver, address: Address, what: str, kind: type[SrnsError], rest: str = "") -> Iterator[None]:
    """Errors of the driver, and of polars about what it gave, as one line without secrets; the original, which could quote
    them, is not carried along."""
    try:
        yield
    except (*driver.ERRORS, *UNFIT) as error:
        raise kind(f"{what}: {address.scrubbed(first_line(error))}{rest}") from None


def _once(columns: list[str], name: str) -> list[str]:
    if repeated := sorted({column for column in columns if columns.count(column) > 1}):
        raise DataError(f"{name}: column name {', '.join(map(repr, repeated))} occurs more than once; rename one with AS")
    return columns
