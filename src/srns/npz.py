"""First stage of the pipeline, arrays of dense ids in .npz files: interactions, and splits that somebody else fixed.

Ids are 0-based integers. Nothing is unpickled; a damaged archive is an error that names it, and numpy's CRC check sees to it
that a damaged array is never taken for data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns.columns import first_line
from srns.errors import DataError
from srns.ids import MAX_IDS, IdMap
from srns.interactions import Int64, Interactions
from srns.roles import listed
from srns.splits import Split

Arrays = dict[str, NDArray[Any]]
HIDDEN = re.compile(r"fn_sigma_(\d{3})")
MODEST_IDS = 1_000_000  # as many dense ids are fine in the smallest file; see _check_dense


def npz_arrays(path: Path) -> list[str]:
    """The names of the arrays in an .npz file, without reading them."""
    return _load(path, ())[1]


def _load(path: Path, wanted: Sequence[str]) -> tuple[Arrays, list[str]]:
    """The arrays that are `wanted`, and the names of all."""
    name = None
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise DataError(f"{path}: not an .npz archive (it does not begin like a zip file)")
        with np.load(path, allow_pickle=False) as archive:
            arrays: Arrays = {}
            for name in wanted:
                arrays[name] = np.asarray(archive[name])
            return arrays, list(archive.files)
    except DataError:
        raise
    except Exception as error:  # zip, zlib and numpy each raise many kinds of exception on damaged bytes
        what = "archive" if name is None else f"array {name!r}"
        raise DataError(f"{path}: {what} damaged, truncated or pickled: {first_line(error)}") from error


def interactions_array(path: Path, *, timed: bool = True) -> Interactions:
    """The interactions of an array `interactions` (n, 2 or 3) of rows user, item and, unless `timed` is false, time."""
    if "interactions" not in (names := npz_arrays(path)):
        raise DataError(f"{path}: found arrays {listed(names)}; expected 'interactions', or a sparse matrix saved by scipy")
    rows = _load(path, ["interactions"])[0]["interactions"]
    _check_shape(path, "interactions", rows, (2, 3))
    _check_ids(path, "interactions", rows[:, :2])
    return Interactions.from_pairs(rows[:, 0], rows[:, 1], time=rows[:, 2] if timed and rows.shape[1] == 3 else None)


def read_split(path: str | os.PathLike[str]) -> Split:
    """The fixed split in an .npz file: arrays `train`, `test` and perhaps `val` (n, 2) of pairs user, item.

    `test_neg` (n_users, k) becomes `Split.negatives`, `fn_sigma_020` becomes `Split.hidden[0.2]` and so on. Ids are 0-based and
    dense: there are as many users and items as the largest id in any array says, and all parts share one map of each. A pair
    of `val` or `test` that an earlier part has too is left out and noted: what was seen is never recommended.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/tiny.npz", train=[[0, 0], [1, 2]], test=[[0, 1]])
    ...     split = read_split(f"{folder}/tiny.npz")
    >>> split.name, split.train, split.valid
    ('tiny', Interactions(2 users x 3 items, 2 interactions), None)
    """
    path = Path(path)
    pairs, negatives = _split_arrays(path)
    n_users, n_items = (1 + max(int(rows[:, side].max()) for rows in pairs.values() if len(rows)) for side in (0, 1))
    if negatives is not None:
        if len(negatives) < n_users:
            raise DataError(f"{path}: test_neg has {len(negatives):,} rows, expected one for each of {n_users:,} users")
        n_users, n_items = len(negatives), max(n_items, 1 + int(negatives.max()))
    _check_dense(path, max(n_users, n_items), sum(map(len, pairs.values())))
    user_ids, item_ids = IdMap.dense(n_users, "user"), IdMap.dense(n_items, "item")
    parts, notes = {}, []
    for name, rows in pairs.items():
        parts[name] = Interactions.from_pairs(rows[:, 0], rows[:, 1], user_ids=user_ids, item_ids=item_ids)
        notes += [f"{name}: {note}" for note in parts[name].notes]
    for earlier, later in (("train", "val"), ("train", "test"), ("val", "test")):
        if earlier in parts and later in parts:
            again = parts[earlier].contains(parts[later].users, parts[later].items)
            if again.any():
                notes.append(f"{later}: left out {int(again.sum()):,} pairs that are also in {earlier}")
                parts[later] = parts[later].select(~again)
    hidden = {int(found[1]) / 100: parts[name] for name in sorted(parts) if (found := HIDDEN.fullmatch(name))}
    return Split(path.stem, parts["train"], parts.get("val"), parts["test"], negatives, hidden, tuple(notes))


def _split_arrays(path: Path) -> tuple[Arrays, Int64 | None]:
    """(arrays of pairs by name, fixed negatives), each of the right shape and within 0..MAX_IDS."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    names = npz_arrays(path)
    unknown = [name for name in names if name not in ("train", "val", "test", "test_neg") and not HIDDEN.fullmatch(name)]
    if unknown or not {"train", "test"} <= set(names):
        raise DataError(f"{path}: found arrays {listed(names)}; expected train, test, perhaps val, test_neg, fn_sigma_020 ...")
    pairs = _load(path, names)[0]
    negatives = pairs.pop("test_neg", None)
    for name, rows in pairs.items():
        _check_shape(path, name, rows, (2,), may_be_empty=HIDDEN.fullmatch(name) is not None)
        _check_ids(path, name, rows)
    if negatives is None:
        return pairs, None
    _check_shape(path, "test_neg", negatives, None)
    _check_ids(path, "test_neg", negatives)
    negatives = negatives.astype(np.int64)
    negatives.flags.writeable = False
    return pairs, negatives


def _check_shape(
    path: Path, name: str, rows: NDArray[Any], widths: tuple[int, ...] | None, *, may_be_empty: bool = False
) -> None:
    fits = rows.dtype.kind in "iu" and rows.ndim == 2 and (widths is None or rows.shape[1] in widths)
    if not fits:
        width = "k" if widths is None else " or ".join(map(str, widths))
        raise DataError(f"{path}: array {name!r} is {rows.dtype} of shape {rows.shape}, expected integers (n, {width})")
    if rows.size == 0 and not may_be_empty:
        raise DataError(f"{path}: array {name!r} is empty")


def _check_ids(path: Path, name: str, ids: NDArray[Any]) -> None:
    if ids.size and (ids.min() < 0 or ids.max() >= MAX_IDS):
        row, column = np.argwhere((ids < 0) | (ids >= MAX_IDS))[0]
        raise DataError(f"{path}: array {name!r}, row {row}, column {column}: id {ids[row, column]}, expected 0..{MAX_IDS - 1}")


def _check_dense(path: Path, n_ids: int, n_pairs: int) -> None:
    """A single wild id would make maps and models of billions of rows."""
    if n_ids > max(MODEST_IDS, 100 * n_pairs):
        raise DataError(f"{path}: largest id {n_ids - 1:,} among {n_pairs:,} pairs; ids must be dense, 0..n-1")
