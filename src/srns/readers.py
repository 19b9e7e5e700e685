"""First stage of the pipeline: files, data frames and matrices become `Interactions`, a fixed-split .npz becomes a `Split`.

Whatever is wrong with the input is a `DataError` that names the file and, where it can be known, the line, column or array.
Delimited text, Parquet and frames go through `tables` and `columns`; formats that hold integers only are read here.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import scipy.sparse as sp

from srns.columns import build, first_line
from srns.databases import is_url, read_database, shown
from srns.errors import ConfigError, DataError
from srns.ids import MAX_IDS, IdMap
from srns.interactions import Interactions, Total
from srns.npz import interactions_array, npz_arrays, read_split
from srns.roles import Asked, choose, listed
from srns.tables import RaggedError, check_text, file_bytes, open_frame, open_parquet, open_text

FORMATS = {  # file name endings, a trailing .gz aside
    "csv": (".csv", ".dat"),
    "tsv": (".tsv", ".tab", ".data"),
    "inter": (".inter",),
    "lightgcn": (".txt",),
    "parquet": (".parquet", ".pq"),
    "npz": (".npz",),
}

__all__ = ["FORMATS", "filtered", "read", "read_bytes", "read_split"]


def read(
    source: Any,
    *,
    format: str | None = None,
    user: str | int | None = None,
    item: str | int | None = None,
    weight: str | int | None = None,
    time: str | int | None = None,
    min_weight: float | None = None,
    min_user: int = 0,
    min_item: int = 0,
    drop_bad_rows: bool = False,
    query: str | None = None,
    table: str | None = None,
) -> Interactions:
    """Interactions from a file, a folder of Parquet files, a database, a data frame (polars, pandas, Arrow) or a scipy sparse
    matrix.

    The format follows from the file's name: CSV (separator , ; | tab or ::), TSV, RecBole .inter, LightGCN .txt (lines
    "user item item ..."), Parquet, .npz (an array `interactions` of rows user, item and perhaps time, or a matrix saved by
    scipy); `format` overrides it. Text may be gzipped. Columns are recognised by name or given: a name, or a position from 0,
    which for text also says that there is no header line. `weight=False` and `time=False` leave a recognised column out.

    Ids are integers or text. In text files a column is integer if every value is one in its usual spelling; a single "007" or
    "x7" makes it text throughout. Spaces around a value do not count. Times are kept as integers or floats; dates become
    microseconds since 1970, UTC where they do not say. A pair that occurs again is merged, keeping the latest; then
    `min_weight` applies, then users and items with fewer than `min_user` and `min_item` pairs are dropped until none is left.

    Rows and columns of a sparse matrix are ids 0..n-1, also where they are empty; stored zeros are no interactions.

    A row without an id, or whose weight or time cannot be read, or of more or fewer fields than the first line of its file, is
    an error that names it; with `drop_bad_rows` such rows of a file or frame are left out, and a note counts them. An id such
    as "NaN" or "null" is an id, with a note that counts its rows, and with `drop_bad_rows` a missing one.

    A database is named by its URL (postgresql://host/database, sqlite:///file, duckdb:///file), with the `table` to read or a
    `query`; see docs/databases.md.

    >>> import polars as pl
    >>> clicks = pl.DataFrame({"userId": ["ann", "bob", "ann"], "movieId": [7, 7, 9], "rating": [5, 2, 4]})
    >>> read(clicks, min_weight=4)
    Interactions(1 users x 2 items, 2 interactions, with weight)
    """
    asked: Asked = {"user": user, "item": item, "weight": weight, "time": time}
    if (query is not None or table is not None) and not is_url(source):
        raise ConfigError(
            f"{'query' if query is not None else 'table'} is for databases, named by a URL such as sqlite:///file"
        )
    if drop_bad_rows and (is_url(source) or sp.issparse(source)):
        raise ConfigError("drop_bad_rows is for files and data frames; leave rows of a database out in its query")
    if is_url(source):
        name = shown(source)
        data = read_database(source, asked, query=query, table=table)
    elif isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        data = _read_path(Path(name), format, asked, drop_bad_rows)
    elif sp.issparse(source):
        name = "sparse matrix"
        data = _from_sparse(source, name, asked)
    elif isinstance(source, pl.LazyFrame) or hasattr(source, "columns") or hasattr(source, "__arrow_c_stream__"):
        name = "data frame"
        part, chosen = open_frame(source, asked)
        data = build([part], chosen, text=False, drop_bad_rows=drop_bad_rows)
    else:
        raise DataError(f"cannot read a {type(source).__name__}; expected a path, a data frame or a scipy sparse matrix")
    return filtered(data, name, min_weight=min_weight, min_user=min_user, min_item=min_item)


def column_names(path: Path) -> list[str]:
    """The columns of a table in a file; none where its format has no names for them."""
    format = _format_of(path)
    if format == "parquet":
        return list(open_parquet(path)[0].schema)
    return (
        [] if format in ("npz", "lightgcn") else list(open_text(file_bytes(path), str(path), format=format, header=True).schema)
    )


def read_bytes(data: bytes, name: str, *, format: str, asked: Asked, **filters: Any) -> Interactions:
    """Interactions of delimited text in memory; `name` stands for the file in messages, `asked` maps roles to columns."""
    return filtered(_from_text(data, name, format, asked), name, **filters)


def filtered(
    data: Interactions,
    name: str,
    *,
    min_weight: float | None = None,
    min_user: int = 0,
    min_item: int = 0,
    total: Total = lambda sums: sums,
) -> Interactions:
    """`Interactions.filter` with errors that say which data (`name`) lack a weight or have nothing left."""
    if min_weight is not None and data.weight is None:
        raise DataError(
            f"{name}: min_weight={min_weight} needs a weight column; none was recognised, name it: --weight-column NAME, in "
            "Python weight=..."
        )
    if min_weight is not None or min_user > 1 or min_item > 1:
        data = data.filter(min_weight=min_weight, min_user=min_user, min_item=min_item, total=total)
    if total(np.array([len(data)]))[0] == 0:
        raise DataError(f"{name}: no interactions left: {'; '.join(data.notes) or 'there were none'}")
    return data


def _read_path(path: Path, format: str | None, asked: Asked, drop_bad_rows: bool) -> Interactions:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    format = format or _format_of(path)
    if format not in FORMATS:
        raise DataError(f"unknown format {format!r}; expected one of {', '.join(FORMATS)}")
    if path.is_dir() and format != "parquet":
        raise DataError(f"{path}: a folder; only Parquet can be read from a folder, not {format}")
    if format == "parquet":
        parts = open_parquet(path)
        chosen = choose(parts[0].name, list(parts[0].schema), asked)
        return build(parts, chosen, text=False, drop_bad_rows=drop_bad_rows)
    if drop_bad_rows and format in ("npz", "lightgcn"):
        raise ConfigError(f"{path}: drop_bad_rows is for tables; a file of format {format} has no rows to drop")
    if format == "npz":
        return _from_npz(path, asked)
    if format == "lightgcn":
        return _from_lightgcn(file_bytes(path), str(path), asked)
    return _from_text(file_bytes(path), str(path), format, asked, drop_bad_rows)


def _format_of(path: Path) -> str:
    if path.is_dir():
        return "parquet"
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    for format, endings in FORMATS.items():
        if ending in endings:
            return format
    known = " ".join(known for endings in FORMATS.values() for known in endings)
    raise DataError(
        f"{path}: unknown kind of file {ending!r}; expected {known}; save it as CSV (in Python: format={'|'.join(FORMATS)})"
    )


def _from_text(data: bytes, name: str, format: str, asked: Asked, drop_bad_rows: bool = False) -> Interactions:
    by_position = any(isinstance(column, int) and not isinstance(column, bool) for column in asked.values())
    try:
        part = open_text(data, name, format=format, header=not by_position, drop_ragged=drop_bad_rows)
    except RaggedError as error:
        raise DataError(f"{error}; to leave such rows out: --drop-bad-rows") from None
    return build([part], choose(name, list(part.schema), asked), text=True, drop_bad_rows=drop_bad_rows)


def _no_columns(asked: Asked, name: str) -> None:
    if given := [role for role, column in asked.items() if column is not None and column is not False]:
        raise DataError(f"{name}: has no named columns, so {given[0]}={asked[given[0]]!r} does not apply")


def _from_lightgcn(data: bytes, name: str, asked: Asked) -> Interactions:
    """Lines "user item item ...", integers from 0; a user may have several lines, or none of the items."""
    _no_columns(asked, name)
    data = check_text(data, name)
    if data.translate(None, b"0123456789 \r\n") or re.search(rb"\d{19}", data):
        _raise_bad_token(data, name)
    raw = np.frombuffer(data, np.uint8)
    digit = raw >= ord("0")  # the only other bytes are space, CR and LF
    starts = np.flatnonzero(digit & ~np.concatenate(([False], digit[:-1])))
    line = np.searchsorted(np.flatnonzero(raw == ord("\n")), starts)
    numbers = np.fromstring(data.decode(), dtype=np.int64, sep=" ")
    leads = np.concatenate(([True], line[1:] != line[:-1]))  # the first number of a line is its user
    lengths = np.diff(np.append(np.flatnonzero(leads), len(numbers))) - 1
    users, items = np.repeat(numbers[leads], lengths), numbers[~leads]
    if len(items) == 0:
        raise DataError(f"{name}: no line has an item; expected lines 'user item item ...'")
    result = Interactions.from_pairs(users, items)
    alone = len(np.unique(numbers[leads])) - result.n_users
    return replace(result, notes=(*result.notes, f"left out {alone:,} users without items")) if alone else result


def _raise_bad_token(data: bytes, name: str) -> None:
    for number, line in enumerate(data.split(b"\n"), start=1):
        for token in re.split(rb"[ \r]+", line):
            if not re.fullmatch(rb"\d{0,18}", token):
                found = token[:40].decode(errors="replace")
                raise DataError(
                    f"{name}, line {number}: {found!r}, expected integers from 0 below 10^18 with spaces between, "
                    "as in 'user item item ...'; for columns with a separator say format='csv' or 'tsv'"
                )


def _from_sparse(matrix: Any, name: str, asked: Asked) -> Interactions:
    _no_columns(asked, name)
    if matrix.ndim != 2 or matrix.dtype.kind not in "buif":
        raise DataError(f"{name}: {matrix.ndim} dimensions of {matrix.dtype}, expected users x items of numbers")
    if max(matrix.shape) > MAX_IDS:
        raise DataError(f"{name}: shape {matrix.shape}, expected at most {MAX_IDS:,} users and items")
    try:
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)  # scipy trusts its indices, and wrong ones would read foreign memory
        csr = sp.csr_array(matrix, copy=True)
        csr.sum_duplicates()
        csr.eliminate_zeros()
    except Exception as error:
        raise DataError(f"{name}: not a valid sparse matrix: {first_line(error)}") from error
    n_users, n_items = csr.shape
    users = np.repeat(np.arange(n_users, dtype=np.int32), np.diff(csr.indptr))
    if not np.isfinite(csr.data).all():
        place = int(np.flatnonzero(~np.isfinite(csr.data))[0])
        raise DataError(f"{name}: entry ({users[place]}, {csr.indices[place]}) is {csr.data[place]}, expected a finite number")
    weight = None if matrix.dtype.kind == "b" else csr.data
    user_ids, item_ids = IdMap.dense(n_users, "user"), IdMap.dense(n_items, "item")
    return Interactions.from_pairs(users, csr.indices, weight=weight, user_ids=user_ids, item_ids=item_ids)


def _from_npz(path: Path, asked: Asked) -> Interactions:
    names = npz_arrays(path)
    if {"format", "shape", "data"} <= set(names):
        try:
            matrix = sp.load_npz(path)
        except Exception as error:
            raise DataError(f"{path}: damaged or not a sparse matrix saved by scipy: {first_line(error)}") from error
        return _from_sparse(matrix, str(path), asked)
    if "train" in names:
        raise DataError(f"{path}: holds a fixed split ({listed(names)}); read it with srns.load or srns.readers.read_split")
    _no_columns(asked, str(path))
    return interactions_array(path, timed=asked["time"] is None)
