"""What the modules of all databases share: a query that is read, and what recommendations need of a table that is there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Literal, NamedTuple

import polars as pl

from srns.errors import ConfigError

How = Literal["new", "replace", "append"]

TYPES = {  # how databases call what can hold a kind of value; of a type that is not here, the database decides
    "integers": "smallint integer bigint hugeint int tinyint mediumint int2 int4 int8 numeric decimal",
    "numbers": "real double float float4 float8 numeric decimal",
    "text": "text character varchar char bpchar citext clob nvarchar string",
}


class Rows(NamedTuple):
    """A query that is ready to be read: its columns, and batches of those of them that are asked for."""

    columns: list[str]
    batches: Callable[[Sequence[str]], Generator[pl.DataFrame, None, None]]


def kind_to_write(dtype: pl.DataType) -> str:
    return "integers" if dtype.is_integer() else "text" if dtype == pl.String else "numbers"


def must_be_new(table: str) -> ConfigError:
    return ConfigError(
        f"table {table} is there already: --replace puts the new recommendations in the place of its rows, --append adds them"
    )


def check_columns(table: str, wanted: Mapping[str, pl.DataType], found: Mapping[str, str]) -> None:
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
