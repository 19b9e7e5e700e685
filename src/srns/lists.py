"""Recommendations to files, whole or not at all, in memory that does not grow with their number.

Parquet has to be closed with a table of contents, so lists are first written in parts beside the file, of some users each, and
joined at the end. The parts of a long job are kept where it is interrupted: each is there whole or not at all, and a job that
goes on after the last of them ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

import polars as pl

from srns import artifacts
from srns.errors import ConfigError
from srns.locks import LOCK, owned
from srns.recommender import Recommender
from srns.streams import gathered, write_parquet

ENDINGS = (".parquet", ".csv", ".jsonl")
PART_ROWS = 500_000  # at most, where a single block of users does not have more: 12 MB, and a row group of the file
MANIFEST = "manifest.json"


class Track(Protocol):
    """Passes frames through and counts their users; `done` were done before."""

    def __call__(self, frames: Iterable[pl.DataFrame], *, done: int) -> Iterable[pl.DataFrame]: ...


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> int:
    """Write frames one after another to .parquet, .csv or .jsonl, whole or not at all; returns the number of rows."""
    _ending(path)
    rows = 0
    if path.suffix.lower() != ".parquet":
        with artifacts.replacing(path) as temporary, temporary.open("wb") as file:
            for number, frame in enumerate(frames):
                _append(file, frame, path, first=number == 0)
                rows += len(frame)
        return rows
    with artifacts.replacing(path) as temporary:
        folder = temporary.with_name(f"{temporary.name}s")
        try:
            folder.mkdir()
            parts = []
            for number, frame in enumerate(gathered(frames, PART_ROWS)):
                parts.append(_part(folder, number))
                write_parquet(frame, parts[-1])
                rows += len(frame)
            _join_parquet(parts, temporary)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return rows


def write_all_users(
    recommender: Recommender,
    run: Path,
    path: Path,
    k: int,
    *,
    exclude_seen: bool = True,
    resume: bool = False,
    anew: bool = False,
    track: Track = lambda frames, done: frames,
) -> int:
    """Recommendations for all users of `recommender`, which `run` holds, to a file; returns the number of rows.

    With `resume`, parts that an interrupted call with the same arguments left in the folder FILE.partial are kept; they are
    thrown away only with `anew`. One process at a time works in it.
    """
    _ending(path)
    folder = path.with_name(f"{path.name}.partial")
    if (
        folder.exists()
        and not (folder / MANIFEST).is_file()
        and not all(each.name.startswith(LOCK) for each in folder.iterdir())
    ):
        raise ConfigError(f"{folder} is in the way, and holds no parts of recommendations: move it, or choose another --out")
    with owned(folder):
        try:
            rows = _write_parts(recommender, run, path, folder, k, exclude_seen, resume, anew, track)
        except KeyboardInterrupt:
            raise
        except BaseException:
            if not _done(folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return rows


def _write_parts(
    recommender: Recommender,
    run: Path,
    path: Path,
    folder: Path,
    k: int,
    exclude_seen: bool,
    resume: bool,
    anew: bool,
    track: Track,
) -> int:
    frames_per_part = max(1, PART_ROWS // (recommender.block * k))
    users = recommender.block * frames_per_part  # of a part
    total = max(1, -(-recommender.n_recommended // users))
    files = json.dumps(artifacts.read_run(run)["files"], sort_keys=True)
    begun = {
        "model": hashlib.sha256(files.encode()).hexdigest(),
        "k": k,
        "exclude_seen": exclude_seen,
        "share": [recommender.n_recommended, *recommender.share],
        "users_per_part": users,
    }
    done = _begin(folder, begun, resume, anew)
    lists = recommender.recommend_frames(k=k, exclude_seen=exclude_seen, skip=done * users)
    frames = iter(track(lists, done=min(done * users, recommender.n_recommended)))
    try:
        for number in range(done, total):
            with artifacts.replacing(_part(folder, number)) as temporary:
                write_parquet(pl.concat(islice(frames, frames_per_part)), temporary)
        next(frames, None)  # for who counts them to come to the end
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{_done(folder)} of {total} parts are in {folder}") from None
    return _join([_part(folder, number) for number in range(total)], path)


def _begin(folder: Path, begun: dict[str, Any], resume: bool, anew: bool) -> int:
    """Empty the folder of the parts, or go on with those that are there; returns how many there are."""
    manifest = folder / MANIFEST
    if resume and manifest.is_file():
        try:
            found = json.loads(manifest.read_text(encoding="utf-8"))
        except ValueError:
            raise ConfigError(f"{manifest} is damaged; --replace without --resume begins anew") from None
        differs = [name for name in begun if not isinstance(found, dict) or found.get(name) != begun[name]]
        if differs:
            raise ConfigError(f"{folder} was begun with another {differs[0]}; --replace without --resume begins anew")
        return _done(folder)
    if not anew and (done := _done(folder)):
        raise ConfigError(
            f"an interrupted call left {done} parts in {folder}: --resume goes on with them, --replace begins anew"
        )
    for old in folder.iterdir():
        if not old.name.startswith(LOCK):
            old.unlink()
    with artifacts.replacing(manifest) as temporary:
        temporary.write_text(json.dumps(begun), encoding="utf-8")
    return 0


def _part(folder: Path, number: int) -> Path:
    return folder / f"_{number:06d}.parquet"  # a name that readers of whole folders pass over


def _done(folder: Path) -> int:
    number = 0
    while _part(folder, number).exists():
        number += 1
    return number


def _ending(path: Path) -> str:
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"cannot write {path}: expected a name that ends in .parquet, .csv or .jsonl")
    return path.suffix.lower()


def _join(parts: list[Path], path: Path) -> int:
    """Make one file of parts; returns the number of rows."""
    with artifacts.replacing(path) as temporary:
        if _ending(path) == ".parquet":
            _join_parquet(parts, temporary)
        else:
            with temporary.open("wb") as file:
                for number, part in enumerate(parts):
                    _append(file, pl.read_parquet(part, glob=False), path, first=number == 0)
    return int(pl.scan_parquet(parts, glob=False).select(pl.len()).collect().item())


def _append(file: IO[bytes], frame: pl.DataFrame, path: Path, *, first: bool) -> None:
    if _ending(path) == ".csv":
        frame.write_csv(file, include_header=first)
    else:
        frame.write_ndjson(file)


def _join_parquet(parts: list[Path], path: Path) -> None:
    try:
        pl.scan_parquet(parts, glob=False).sink_parquet(path, row_group_size=PART_ROWS)
    except pl.exceptions.PolarsError as error:
        raise OSError(str(error)) from None
