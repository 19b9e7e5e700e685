"""A folder of Parquet files read by several ranks, none of which holds it whole.

Users go to ranks by ranges of their ids, so that dense ids come out as if one process had read everything. A first look at the
user column, each rank at its own files, finds the bounds of the ranges; then every rank reads the rows of its range, where
Parquet's statistics spare it what lies outside. Items are few enough for every rank to know them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from srns.columns import NoRowsError, Part, build, ordered_key, user_labels
from srns.config import ROLES
from srns.errors import ConfigError, DataError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.ranks import Ranks
from srns.readers import filtered
from srns.roles import choose
from srns.splits import Split, make_split
from srns.tables import open_parquet

QUANTILES = 4096  # of its user column, which a rank tells the others; ranges are even to one in so many


def read_sharded(folder: Path, ranks: Ranks, columns: Mapping[str, Any], filters: Mapping[str, Any]) -> Interactions:
    """The interactions of this rank's users; `columns` and `filters` as for `srns.read`."""
    parts = open_parquet(folder)
    asked = {role: columns.get(role) for role in ROLES}
    chosen = choose(parts[0].name, list(parts[0].schema), asked)
    key, _ = (ordered_key(parts, chosen[role], role) for role in ("user", "item"))
    bounds = _bounds(parts, key, chosen["user"], ranks)
    try:
        local = build([_within(part, key, bounds, ranks.rank) for part in parts], chosen, text=False)
    except NoRowsError:  # one user has more rows than a rank's share
        local = _nothing(bounds[0], chosen)
    item_ids = IdMap(pl.concat([each for each in ranks.gather(local.item_ids.labels) if len(each)]).unique().sort(), "item")
    items = item_ids.indices(local.item_ids.labels)[local.items].astype(np.int32)
    data = ranks.placed(replace(local, items=items, item_ids=item_ids))
    return ranks.placed(filtered(data, str(folder), **filters, total=ranks.sum))


def split_sharded(data: Interactions, method: str, seed: int, ranks: Ranks) -> Split:
    """This rank's part of the split that one process would make of all."""
    if method in ("temporal", "random-global"):
        raise ConfigError(f"--split {method} looks at all users at once; on several ranks use leave-one-out, random or none")
    split = make_split(data, method, seed=seed)
    notes = tuple(f"rank {ranks.rank}: {note}" for note in split.notes)
    valid, test = (None if part is None else ranks.placed(part) for part in (split.valid, split.test))
    return replace(split, train=ranks.placed(split.train), valid=valid, test=test, notes=notes)


def _nothing(label: Any, chosen: Mapping[str, str]) -> Interactions:
    """The interactions of a rank without users, with the columns of the others."""
    users = IdMap(pl.Series("user", [], dtype=pl.String if isinstance(label, str) else pl.Int64), "user")
    weight = np.zeros(0, np.float32) if "weight" in chosen else None
    time = np.zeros(0, np.int64) if "time" in chosen else None
    return Interactions(np.zeros(1, np.int64), np.zeros(0, np.int32), users, IdMap.of([], "item"), weight, time)


def _bounds(parts: Sequence[Part], key: pl.Expr, column: str, ranks: Ranks) -> list[Any]:
    """The first labels of ranks 1, 2, ...: about as many rows for each."""
    mine = parts[ranks.rank :: ranks.size]
    values = [user_labels(part, key, column) for part in mine]
    seen = pl.concat(values).sort() if values else None
    heights = ranks.gather((0, []) if seen is None or not len(seen) else (len(seen), _quantiles(seen)))
    marks = [(mark, height / len(found)) for height, found in heights for mark in found]
    if not marks:
        raise DataError(f"{parts[0].name}: no rows, expected at least one interaction")
    marks.sort()
    reached = np.cumsum([weight for _, weight in marks])
    places = np.searchsorted(reached, reached[-1] * np.arange(1, ranks.size) / ranks.size)
    return [marks[min(int(place), len(marks) - 1)][0] for place in places]


def _quantiles(ordered: pl.Series) -> list[Any]:
    return ordered.gather(np.unique(np.linspace(0, len(ordered) - 1, QUANTILES).astype(np.int64))).to_list()


def _within(part: Part, key: pl.Expr, bounds: Sequence[Any], rank: int) -> Part:
    """The rows of a file that belong to a rank."""
    rows = part.rows
    if rank > 0:
        rows = rows.filter(key >= bounds[rank - 1])
    if rank < len(bounds):
        rows = rows.filter(key < bounds[rank])
    return replace(part, name=f"{part.name} (rows of rank {rank})", rows=rows)
