"""Between files and interactions: open text, Parquet and data frames as `Part`s, rows whose columns still have to be chosen.

Text is read with every column as text; what the values are is decided later, on the whole column. Polars does the reading;
when it fails or a row came out short, the file is gone through once more in plain Python to name the line.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from srns.columns import Part, first_line
from srns.errors import DataError
from srns.roles import Asked, choose, listed

INTER_TYPES = ("token", "float", "token_seq", "float_seq")


class RaggedError(DataError):
    """A row has another number of fields than the first."""


CONVERT = "; save it as CSV UTF-8, or convert it: iconv -f latin1 -t utf-8 OLD > NEW"


def file_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged gzip file: {first_line(error)}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def check_text(data: bytes, name: str) -> bytes:
    """`data` without a byte order mark, if it can be text at all."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise DataError(f"{name}: the file is empty")
    if (offset := data.find(b"\0")) >= 0:
        raise DataError(f"{name}: zero byte at offset {offset}: a binary file, or not UTF-8{CONVERT}")
    return data


def open_text(data: bytes, name: str, *, format: str, header: bool, drop_ragged: bool = False) -> Part:
    """A part of delimited text: `format` csv (separator taken from the first line), tsv, or RecBole's inter.

    A row of more or fewer fields than line 1 is an error, or with `drop_ragged` left out and counted.
    """
    data = check_text(data, name)
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"  # polars takes a last line "1,2," without its end for two fields
    first = data.split(b"\n", 1)[0]
    if format == "csv" and b"::" in first:  # MovieLens .dat: polars knows separators of one byte only
        data, first, separator = data.replace(b"::", b"\t"), first.replace(b"::", b"\t"), "\t"
    elif format == "csv":
        separator = max(",\t;|", key=lambda mark: first.count(mark.encode()))
    else:
        separator = "\t"
    names = next(_rows(first, name, separator), (1, []))[1]
    names = _names(names if header else range(len(names)), name)
    if format == "inter":
        names = _names(_inter_names(names, name), name)
    try:
        return _text_part(data, name, separator, names, header)
    except RaggedError:
        if not drop_ragged:
            raise
    even, ragged = _without_ragged(data, name, separator, len(names))
    return replace(_text_part(even, name, separator, names, header), ragged=ragged)


def _text_part(data: bytes, name: str, separator: str, names: list[str], header: bool) -> Part:
    if b'"' in data:  # polars drops stray quotes without a word; this costs about half a second per million rows
        _check_lines(data, name, separator, len(names))
    try:
        frame = pl.read_csv(data, separator=separator, has_header=header, infer_schema=False)
    except (Exception, pl.exceptions.PanicException) as error:
        _check_lines(data, name, separator, len(names))
        raise DataError(f"{name}: not readable as delimited text: {first_line(error)}") from error
    if len(frame.columns) != len(names):
        _check_lines(data, name, separator, len(names))
        raise DataError(f"{name}, line 1: {len(names)} fields, but the rows have {len(frame.columns)}")
    frame.columns = names
    if len(frame) and frame[names[-1]].null_count():  # a blank line, a short row or a value left out
        _check_lines(data, name, separator, len(names))
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))

    def line(row: int) -> int:
        filled = (number for number, fields in _rows(data, name, separator) if any(fields))
        return next((number for count, number in enumerate(filled) if count == row + header), row + header + 1)

    return Part(name, frame.lazy(), frame.schema, line)


def _rows(data: bytes, name: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of each row; a quoted field may hold line breaks, and then the line is where the row ends."""
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline=""), delimiter=separator, strict=True)
    try:
        for fields in rows:
            yield rows.line_num, fields
    except UnicodeDecodeError:
        offset = _first_undecodable(data)
        line = data.count(b"\n", 0, offset) + 1
        raise DataError(f"{name}, line {line}: byte {data[offset]:#04x} at offset {offset} is not UTF-8{CONVERT}") from None
    except csv.Error as error:
        raise DataError(f"{name}, line {rows.line_num}: {error}; is a quote left open or not doubled?") from error


def _first_undecodable(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _check_lines(data: bytes, name: str, separator: str, expected: int) -> None:
    for line, fields in _rows(data, name, separator):
        if fields and len(fields) != expected:
            raise RaggedError(f"{name}, line {line}: {len(fields)} fields, expected {expected} as in line 1")


def _without_ragged(data: bytes, name: str, separator: str, expected: int) -> tuple[bytes, int]:
    """The text without rows of another number of fields, and how many these are."""
    text, ragged = io.StringIO(newline=""), 0
    writer = csv.writer(text, delimiter=separator)
    for _, fields in _rows(data, name, separator):
        if len(fields) == expected:
            writer.writerow(fields)
        else:
            ragged += bool(fields)  # a blank line is no row
    return text.getvalue().encode(), ragged


def _inter_names(fields: Sequence[str], name: str) -> list[str]:
    names = []
    for field in fields:
        column, colon, kind = field.rpartition(":")
        if not colon or not column or kind not in INTER_TYPES:
            raise DataError(
                f"{name}, line 1: {field[:60]!r} in the header, expected name:type with type {' or '.join(INTER_TYPES)}"
            )
        names.append(column)
    return names


def open_parquet(path: Path) -> list[Part]:
    """The parts of one Parquet file or of all those in a folder and its subfolders, in the order of their names."""
    files = [path]
    if path.is_dir():
        within = (file for file in path.rglob("*") if file.suffix.lower() in (".parquet", ".pq") and file.is_file())
        files = sorted(file for file in within if not file.name.startswith((".", "_")))
        if not files:
            raise DataError(f"{path}: a folder without Parquet files (*.parquet, *.pq)")
    return [_parquet_part(file) for file in files]


def _parquet_part(file: Path) -> Part:
    try:
        rows = pl.scan_parquet(file, glob=False, hive_partitioning=False)
        return Part(str(file), rows, rows.collect_schema())
    except (Exception, pl.exceptions.PanicException) as error:
        raise DataError(f"{file}: damaged or not a Parquet file: {first_line(error)}") from error


def open_frame(source: Any, asked: Asked) -> tuple[Part, dict[str, str]]:
    """The chosen columns of a polars, pandas or Arrow frame as a part, and which they are; other columns are not touched."""
    library = type(source).__module__.partition(".")[0]
    name = f"{library} {type(source).__name__}"
    try:
        if library == "pandas":
            chosen = choose(name, _names(list(source.columns), name), asked)
            positions = {str(column): position for position, column in enumerate(source.columns)}
            frame = pl.DataFrame({column: _from_pandas(source.iloc[:, positions[column]]) for column in chosen.values()})
        else:
            table = source if isinstance(source, pl.LazyFrame | pl.DataFrame) else pl.from_arrow(source)
            if isinstance(table, pl.Series):
                raise DataError(f"{name}: expected a frame with a user and an item column, found a single column")
            chosen = choose(name, table.lazy().collect_schema().names(), asked)
            frame = table.lazy().select(*chosen.values()).collect()
    except DataError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        raise DataError(f"{name}: not readable as a data frame: {first_line(error)}") from error
    return Part(name, frame.lazy(), frame.schema), chosen


def _from_pandas(values: Any) -> Any:
    try:
        return pl.from_pandas(values)
    except ImportError as error:
        raise DataError(f"a pandas frame needs pyarrow to be read: {error}") from error
    except Exception:  # objects of several types, which Arrow refuses: as text, so that 7 and "7" are one id
        return pl.from_pandas(values.map(str, na_action="ignore").astype("string"))


def _names(fields: Sequence[object], name: str) -> list[str]:
    """Column names as text, each only once: with two of a name there is no telling which is meant."""
    names = [str(field).strip() for field in fields]
    if repeated := sorted({field for field in names if names.count(field) > 1}):
        raise DataError(f"{name}: column name {listed(repeated)} occurs more than once")
    return names
