"""A table of items, for people: from their ids to titles and whatever else the table says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from srns.columns import Part
from srns.errors import DataError
from srns.ids import IdMap
from srns.roles import KNOWN, listed
from srns.tables import file_bytes, open_parquet, open_text

TITLES = "title name movietitle booktitle producttitle productname itemname itemtitle label description"
LONGEST = 200  # characters of a title or remark that are kept


@dataclass(frozen=True)
class Titles:
    """By dense item id: the title, None where the table has none, and the other columns in one line."""

    titles: list[str | None]
    about: list[str | None]

    @classmethod
    def read(cls, path: Path, item_ids: IdMap, item: str | None = None, title: str | None = None) -> Titles:
        """The rows of a CSV, TSV, Parquet or RecBole .item file that name items of the model; of several for one, the first."""
        part = _open(path)
        columns = list(part.schema)
        known = [*KNOWN["item"].split(), "id"]
        key = _column(part.name, columns, item, known, "ids of items", "--item-column")
        name = _column(part.name, [each for each in columns if each != key], title, TITLES.split(), "titles", "--title-column")
        frame = part.collect(part.rows.select(pl.all().cast(pl.String, strict=False).str.slice(0, LONGEST)))
        frame = frame.filter(pl.col(key).is_not_null()).unique(key, keep="first", maintain_order=True)
        places = item_ids.indices(frame[key], missing="-1")
        if not (places >= 0).any():
            raise DataError(f"{part.name}: none of the {len(frame):,} values of column {key!r} is an item of the model")
        others = [each for each in columns if each not in (key, name)]
        about = pl.concat_str(others, separator=" · ", ignore_nulls=True) if others else pl.lit("")
        notes = frame.with_columns(about.alias(name))[name]  # a literal alone would be one row
        found = cls([None] * len(item_ids), [None] * len(item_ids))
        for place, text, note in zip(places.tolist(), frame[name], notes, strict=True):
            if place >= 0:
                found.titles[place] = text or None
                found.about[place] = (note or "")[:LONGEST] or None
        return found


def _open(path: Path) -> Part:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] in ([".parquet"], [".pq"]):
        return open_parquet(path)[0]
    formats = {".item": "inter", ".inter": "inter", ".tsv": "tsv"}
    format = next((formats[suffix] for suffix in suffixes[-2:] if suffix in formats), "csv")
    return open_text(file_bytes(path), str(path), format=format, header=True)


def _column(where: str, found: Sequence[str], asked: str | None, known: Sequence[str], what: str, flag: str) -> str:
    if asked is not None:
        if asked not in found:
            raise DataError(f"{where}: no column {asked!r} ({flag}); found {listed(found)}")
        return asked
    plain = {"".join(letter for letter in name.lower() if letter.isalnum()): name for name in reversed(found)}
    matches = [plain[name] for name in known if name in plain]
    if not matches:
        raise DataError(f"{where}: no column of {what} recognised; found {listed(found)}; name it with {flag}")
    return matches[0]
