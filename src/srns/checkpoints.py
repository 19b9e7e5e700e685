"""Checkpoints of a training run: one file where there is one process, a file per rank where there are several.

The files of several ranks carry their epoch in their names, and the newest epoch of which all files are there counts: a rank
that dies while they are written costs the newest, never the one before. Tensors with a row per user are joined and cut anew
when a run goes on with another number of ranks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns import artifacts
from srns.errors import ArtifactError
from srns.ranks import Ranks

Tensors = dict[str, NDArray[Any]]


def write(
    path: Path, tensors: Tensors, note: Mapping[str, Any], ranks: Ranks, users: tuple[int, int], by_user: Set[str]
) -> None:
    """Write what this rank knows; `users`: the first of its users and their number, `by_user`: the tensors with their rows."""
    epoch = len(note["history"])
    new = [path] if ranks.size == 1 else [_part(path, epoch, rank, ranks.size) for rank in range(ranks.size)]
    mine, problem = new[ranks.rank], None
    try:
        artifacts.write_tensors(mine, tensors, json.dumps({**note, "users": users, "by_user": sorted(by_user)}))
    except ArtifactError as error:
        problem = error
    if ranks.any(problem is not None):
        if ranks.size > 1:
            mine.unlink(missing_ok=True)
        raise problem or ArtifactError(f"cannot write {mine}: another rank could not write its part")
    for each in _files(path):  # all of the new ones are there
        if each not in new:
            each.unlink(missing_ok=True)


def exists(path: Path) -> bool:
    return path.exists() or bool(_sets(path))


def remove(path: Path) -> None:
    for each in _files(path):
        each.unlink(missing_ok=True)


def read(path: Path, users: tuple[int, int]) -> tuple[Tensors, dict[str, Any]]:
    """The newest checkpoint: tensors of the users that are asked for (the first, and how many), and the note."""
    files = _newest(path)
    if not files:
        raise ArtifactError(f"{path} is missing")
    parts: dict[str, list[NDArray[Any]]] = {}
    tensors: Tensors = {}
    first, count = users
    note: dict[str, Any] = {}
    for file in files:
        theirs, text = artifacts.read_tensors(file)
        note = json.loads(text)
        begin, n = note.get("users", users)
        low, high = (min(max(bound - begin, 0), n) for bound in (first, first + count))
        for name, tensor in theirs.items():
            if name in note.get("by_user", ()):
                parts.setdefault(name, []).append(tensor[low:high].copy())  # of a file of others, only what is asked for
            else:
                tensors[name] = tensor
    return tensors | {name: np.concatenate(pieces) for name, pieces in parts.items()}, note


def engine_of(path: Path) -> str | None:
    """The engine that wrote the newest checkpoint, if there is one."""
    files = _newest(path)
    engine: str | None = _note(files[0]).get("engine") if files else None
    return engine


def _newest(path: Path) -> list[Path]:
    """The files, by rank, of the checkpoint with the most epochs; empty where there is none."""
    found = [*([[path]] if path.exists() else []), *_sets(path)]
    if len(found) < 2:
        return found[0] if found else []
    return max(found, key=lambda files: len(_note(files[0]).get("history", ())))


def _note(path: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(artifacts.read_note(path))
    return note


def _part(path: Path, epoch: int, rank: int, size: int) -> Path:
    return path.with_name(f"{path.stem}-{epoch:06d}-{rank}-of-{size}{path.suffix}")


def _files(path: Path) -> list[Path]:
    return [each for each in [path, *path.parent.glob(f"{path.stem}-*-of-*{path.suffix}")] if each.exists()]


def _sets(path: Path) -> list[list[Path]]:
    """The files of several ranks, by rank, of each epoch of which all are there."""
    found: dict[tuple[int, int], dict[int, Path]] = {}
    for each in _files(path):
        if match := re.fullmatch(rf"{re.escape(path.stem)}-(\d+)-(\d+)-of-(\d+)", each.stem):
            epoch, rank, size = map(int, match.groups())
            found.setdefault((epoch, size), {})[rank] = each
    return [[files[rank] for rank in range(size)] for (_, size), files in sorted(found.items()) if len(files) == size]
