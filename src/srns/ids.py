"""The caller's ids of users and items, and the dense integers 0..n-1 that stand for them inside the package."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from srns.errors import DataError, UnknownIdError

Int64 = NDArray[np.int64]
MAX_IDS = 2**31 - 1  # dense ids are int32
FEW = 16  # ids to look up one by one: polars would ask all its threads, which costs milliseconds where cores are busy

NEAR, LONG = 250, 100  # ids on either side that an unknown one is compared with, and how many characters of it


@dataclass(frozen=True, eq=False)
class IdMap:
    """The caller's ids of one kind ("user" or "item"), sorted; the dense id of a label is its position.

    Sorting makes dense ids independent of the order of rows in the file, so the same data give the same model.

    >>> ids = IdMap.of(["bob", "ann", "bob"], kind="user")
    >>> len(ids), ids.label(0), ids.index("bob")
    (2, 'ann', 1)
    """

    labels: pl.Series
    kind: str = "id"

    def __post_init__(self) -> None:
        if self.labels.dtype not in (pl.Int64, pl.String):
            raise DataError(f"{self.kind} ids must be integers or strings, found {self.labels.dtype}")
        if len(self.labels) > MAX_IDS:
            raise DataError(f"{len(self.labels):,} distinct {self.kind} ids; at most {MAX_IDS:,} are supported")

    @classmethod
    def of(cls, ids: Any, kind: str = "id") -> IdMap:
        """The map of the distinct values of `ids` (a sequence, array or polars Series of integers or strings)."""
        series = _series(ids, kind)
        if series.dtype.is_integer():
            series = _as_int64(series, kind)
        elif len(series) == 0:
            series = series.cast(pl.Int64)
        if series.null_count():
            raise DataError(f"{kind} ids contain {series.null_count():,} missing values")
        return cls(series.unique().sort().rename(kind), kind)

    @classmethod
    def dense(cls, n: int, kind: str = "id") -> IdMap:
        """The identity: labels 0..n-1."""
        return cls(pl.Series(kind, np.arange(n, dtype=np.int64)), kind)

    def __len__(self) -> int:
        return len(self.labels)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdMap):
            return NotImplemented
        return self is other or (self.labels.dtype == other.labels.dtype and self.labels.equals(other.labels))

    __hash__ = None  # type: ignore[assignment]

    def label(self, index: int) -> int | str:
        """The caller's id of dense id `index`."""
        return self.labels[int(index)]  # type: ignore[no-any-return]

    def part(self, low: int, high: int) -> IdMap:
        """The map of dense ids low..high-1, which become 0..high-low-1."""
        return IdMap(self.labels[low:high], self.kind)

    def take(self, indices: ArrayLike) -> pl.Series:
        """The caller's ids of many dense ids, (n,) -> Series of n."""
        return self.labels.gather(np.asarray(indices, dtype=np.int64))

    def index(self, label: int | str) -> int:
        """The dense id of one of the caller's ids."""
        return int(self.indices([label])[0])

    def indices(self, labels: Any, *, missing: str = "raise") -> Int64:
        """The dense ids of many of the caller's ids; unknown ones raise, or are -1 with `missing="-1"`."""
        if isinstance(labels, list | tuple) and len(labels) <= FEW:
            found = self._few(labels)
        elif len(wanted := self._like(labels)) * 8 < len(self):  # not many: binary search
            positions = self.labels.search_sorted(wanted).to_numpy().astype(np.int64)
            positions[positions == len(self)] = 0
            known = (self.labels.gather(positions) == wanted).fill_null(False).to_numpy()
            found = np.where(known, positions, -1)
        else:  # many: a hash join is faster (measured 2x at 10 million)
            table = pl.DataFrame({"label": self.labels, "index": np.arange(len(self), dtype=np.int64)})
            joined = wanted.rename("label").to_frame().join(table, on="label", how="left", maintain_order="left")
            found = joined["index"].fill_null(-1).to_numpy()
        if missing == "raise" and (found < 0).any():
            unknown = np.flatnonzero(found < 0)[:3]
            given = labels if hasattr(labels, "__getitem__") else list(labels)
            shown = ", ".join(repr(given[int(row)]) for row in unknown)
            raise UnknownIdError(
                f"unknown {self.kind} {shown}: not among the {len(self):,} {self.kind}s of the training data"
                f"{self._hint(str(given[int(unknown[0])]))}"
            )
        return found

    def union(self, other: IdMap) -> IdMap:
        """The map of the labels of both, of this one's type: integers are text where this one's are, as they are printed, and
        text is integers where all of it can be; else it raises.

        >>> IdMap.of(["ann", "7"]).union(IdMap.of([7, 12])).labels.to_list()
        ['12', '7', 'ann']
        """
        labels = other.labels
        if labels.dtype != self.labels.dtype and len(self) and len(other):
            labels = labels.cast(self.labels.dtype, strict=False)
            changed = ~(labels.cast(other.labels.dtype) == other.labels).fill_null(False)
            if changed.any():
                example = other.labels.filter(changed)[0]
                raise DataError(f"{self.kind} ids are integers, found the text {example!r} among the new ones")
        elif not len(self) or not len(other):
            labels = labels if len(other) else labels.cast(self.labels.dtype)
        return IdMap(pl.concat([self.labels, labels]).unique().sort().rename(self.kind) if len(self) else labels, self.kind)

    def _few(self, labels: Sequence[Any]) -> Int64:
        """The dense ids of a few of the caller's ids, -1 for unknown ones."""
        text = self.labels.dtype == pl.String
        keys: Any = self.labels if text else self._numbers
        found, count = np.full(len(labels), -1, np.int64), len(keys)
        for row, value in enumerate(str(label) if text else _int_or_none(label) for label in labels):
            place = count if value is None else bisect_left(keys, value)
            if place < count and keys[place] == value:
                found[row] = place
        return found

    def _hint(self, label: str) -> str:
        """What may have been meant by an unknown id: those nearest to it among all, or, of many, among its neighbours in the
        order of ids, in each usual spelling; where none is near, what ids look like."""
        if not len(self):
            return ""
        if self.labels.dtype != pl.String:
            return f", integers from {self.labels[0]} to {self.labels[-1]}"
        padded = _padded(label[:LONG], str(self.labels[0]))
        spellings = (label, label.lower(), label.upper(), label.title(), padded)
        places = {bisect_left(cast(Any, self.labels), spelt) for spelt in spellings}
        ranges = [slice(max(0, place - NEAR), place + NEAR) for place in places] if len(self) > 4 * NEAR else [slice(None)]
        known = {each.casefold(): each for part in ranges for each in self.labels[part].to_list()}
        like = label.casefold()[:LONG]
        same = next((each for each in (like, padded.casefold()) if each in known), None)
        meant = [repr(known[each]) for each in ([same] if same is not None else get_close_matches(like, known))]
        return f"; did you mean {' or '.join(meant)}?" if meant else f", such as {self.labels[0]!r}"

    @cached_property
    def _numbers(self) -> Int64:
        return self.labels.to_numpy()

    def _like(self, labels: Any) -> pl.Series:
        """`labels` as a Series of this map's own type; "7" finds 7 and 7 finds "7", since a command line knows only text."""
        if isinstance(labels, pl.Series | np.ndarray):
            series = pl.Series(self.kind, labels)
            if series.dtype == self.labels.dtype:
                return series
            if series.dtype.is_integer():
                return pl.Series(series.cast(self.labels.dtype, strict=False))
        values = list(labels)
        if self.labels.dtype == pl.String:
            return pl.Series(self.kind, [str(value) for value in values], dtype=pl.String)
        return pl.Series(self.kind, [_int_or_none(value) for value in values], dtype=pl.Int64)

    def buffers(self) -> dict[str, NDArray[Any]]:
        """The labels as plain arrays: integers as they are, strings as UTF-8 bytes and their end positions."""
        if self.labels.dtype == pl.Int64:
            return {"labels": self.labels.to_numpy()}
        text = "".join(self.labels).encode()
        return {"bytes": np.frombuffer(text, np.uint8), "ends": self.labels.str.len_bytes().cast(pl.Int64).cum_sum().to_numpy()}

    def sums(self, first: int) -> Int64:
        """Two words that stand for the labels of dense ids `first`, `first` + 1, ...: hashes of all, added up."""
        places = first + np.arange(len(self), dtype=np.int64)
        if self.labels.dtype == pl.Int64:
            values = scrambled(self.labels.to_numpy(), 0)
        else:
            buffers = self.buffers()
            ends = buffers["ends"]
            starts = np.concatenate(([0], ends[:-1]))
            within = np.arange(len(buffers["bytes"])) - np.repeat(starts, ends - starts)
            added = np.append(0, np.cumsum(scrambled(buffers["bytes"] + (within << 8), 3)))
            values = added[ends] - added[starts] + 1
        return np.array([scrambled(scrambled(values, word) + places, word).sum() for word in (1, 2)], np.int64)

    @classmethod
    def from_buffers(cls, buffers: dict[str, NDArray[Any]], kind: str) -> IdMap:
        """The inverse of `buffers`."""
        if "labels" in buffers:
            return cls(pl.Series(kind, buffers["labels"], dtype=pl.Int64), kind)._checked()
        text, ends = buffers["bytes"].tobytes(), buffers["ends"].tolist()
        labels = [text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
        return cls(pl.Series(kind, labels, dtype=pl.String), kind)._checked()

    def _checked(self) -> IdMap:
        if len(self) > 1 and not (self.labels[1:] > self.labels[:-1]).all():
            raise DataError(f"{self.kind} ids must ascend and differ")
        return self


def scrambled(values: NDArray[Any], word: int) -> Int64:
    """A hash of each of many integers, different for each `word`; the finaliser of splitmix64 (S. Vigna)."""
    x = values.astype(np.int64).view(np.uint64) + np.uint64((0x9E3779B97F4A7C15 * (word + 1)) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    hashed: Int64 = (x ^ (x >> np.uint64(31))).view(np.int64)
    return hashed


def _series(ids: Any, kind: str) -> pl.Series:
    if isinstance(ids, pl.Series):
        return ids
    # A list goes to polars as it is: NumPy would turn [1, "1"] into two equal strings and cut a trailing NUL.
    try:
        return pl.Series(kind, ids if isinstance(ids, np.ndarray) and len(ids) else list(ids), strict=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{kind} ids must be all integers or all strings: {error}") from None


def _int_or_none(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 and (isinstance(value, str) or value == number) else None


def _as_int64(series: pl.Series, kind: str) -> pl.Series:
    for extreme in (series.min(), series.max()):
        if isinstance(extreme, int) and not -(2**63) <= extreme < 2**63:
            raise DataError(f"{kind} id {extreme} does not fit a signed 64-bit integer; read the column as text")
    return pl.Series(series.cast(pl.Int64))


def _padded(label: str, example: str) -> str:
    """The numbers in an id with as many digits as those of another id have.

    >>> _padded("kunde-29", "kunde-00001")
    'kunde-00029'
    """
    digits = [len(number) for number in re.findall(r"\d+", example)]
    if len(re.findall(r"\d+", label)) != len(digits):
        return label
    widths = iter(digits)
    return re.sub(r"\d+", lambda number: number[0].zfill(next(widths)), label)
