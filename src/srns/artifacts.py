"""A run or model on disk: safetensors for arrays, JSON for the rest, never pickle; loading executes nothing.

A folder holds `run.json` (format version, config, results, digests), `model.safetensors` (parameters), `ids.safetensors` (the
caller's ids) and `interactions.safetensors` (what each user is known to have touched, by part, and when where that is known);
where the sampler remembers something that `srns update` goes on with, also `memories.safetensors`, which nothing else reads.
Every file is written beside its final name and moved there once complete and on disk, `run.json` last: a reader meets the old
file or the new, never half.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import safe_open

from srns.errors import ArtifactError
from srns.ids import IdMap
from srns.interactions import Interactions
from srns.splits import Split

FORMAT, VERSION = "srns-run", 1
RUN, MODEL, IDS, INTERACTIONS, MEMORIES, CHECKPOINT = (
    "run.json",
    "model.safetensors",
    "ids.safetensors",
    "interactions.safetensors",
    "memories.safetensors",
    "checkpoint.safetensors",
)
# NumPy's names of the types that are saved, and safetensors'.
DTYPES = {"<f4": "F32", "<f8": "F64", "<i4": "I32", "<i8": "I64", "<u8": "U64", "|u1": "U8", "|b1": "BOOL"}
# What the parts of run.json are where they are there; those in REQUIRED always are.
SHAPE: dict[str, type | tuple[type, ...]] = {
    "status": str,
    "config": dict,
    "data": dict,
    "files": dict,
    "protocol": str,
    "metrics": dict,
    "metrics_full": dict,
    "metrics_popularity": dict,
    "test_users": int,
    "best_epoch": int,
    "epochs": int,
    "seconds_per_epoch": (int, float),
    "engine": str,
    "notes": list,
    "history": list,
    "start": dict,
    "updated": dict,
    "shards": int,
    "user_tensors": list,
    "module": bool,
    "launch": str,
    "environment": dict,
    "peak_rss_mb": (int, float),
}
REQUIRED = ("status", "config", "data", "files")
Tensors = Mapping[str, NDArray[Any]]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that becomes `path` if the block succeeds and vanishes if it fails (full disk, no permission, ...)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        reason = f"{path.parent} is not a folder" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise ArtifactError(f"cannot write {path}: {reason}") from None
    finally:
        _remove(temporary)


@contextmanager
def staging(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """A temporary folder for files that move to `folder` in the order of `names` if the block succeeds.

    So a run that cannot be written, for instance on a full disk, leaves the one before it whole.
    """
    stage = folder / f".run.{os.getpid()}.part"
    try:
        yield stage
        for name in names:
            (stage / name).replace(folder / name)
        _sync_folder(folder)
    except OSError as error:
        raise ArtifactError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        _remove(stage)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left unfinished in a run's folder."""
    for name in ("run", RUN, MODEL, IDS, INTERACTIONS, MEMORIES, CHECKPOINT, "checkpoint-*"):
        for path in folder.glob(f".{name}.*.part"):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # most often it has been moved to its place
            path.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and the move itself is durable enough
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _digest(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape};".encode())
        digest.update(np.ascontiguousarray(tensor).data if tensor.size else b"")
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Tensors, note: str = "{}") -> str:
    """Write arrays and a note (JSON text) atomically; returns their SHA-256, which is stored with them."""
    digest = _digest(tensors)
    # The note is hashed too: a checkpoint keeps its bookkeeping there.
    metadata = {"note": note, "note_sha256": hashlib.sha256(note.encode()).hexdigest(), "sha256": digest}
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(_safetensors(tensors, metadata))
    return digest


def _safetensors(tensors: Tensors, metadata: dict[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, without a copy of the arrays.

    The library's own writer puts metadata in random order, so that equal models are unequal files, and leaves a temporary file
    of its own behind where it is killed.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))  # the widest first: all are aligned
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        tensor, start = tensors[name], end
        end += tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype.str], "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        if tensors[name].size:
            yield np.ascontiguousarray(tensors[name]).data


def _read(path: Path, with_tensors: bool) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays, if they are asked for, and the header of a file, of which the note is checked."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in (file.keys() if with_tensors else ())}
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing") from None
    except Exception as error:  # damaged headers make safetensors and NumPy raise many kinds of exception
        raise ArtifactError(f"{path} is damaged or not a safetensors file: {error}") from None
    if "sha256" not in metadata or hashlib.sha256(metadata.get("note", "").encode()).hexdigest() != metadata.get("note_sha256"):
        raise ArtifactError(f"{path} is damaged: its header does not match its checksum")
    return tensors, metadata


def read_note(path: Path) -> str:
    """The note of a file alone, without reading its arrays."""
    return _read(path, with_tensors=False)[1]["note"]


def read_tensors(path: Path, expected: str | None = None) -> tuple[dict[str, NDArray[Any]], str]:
    """The arrays and the note of a file, checked against the digest stored in it and against `expected`."""
    tensors, metadata = _read(path, with_tensors=True)
    found = _digest(tensors)
    if found != metadata["sha256"]:
        raise ArtifactError(f"{path} is damaged: checksum {found[:12]}... instead of {metadata['sha256'][:12]}...")
    if expected is not None and found != expected:
        raise ArtifactError(f"{path} does not belong to this run: checksum {found[:12]}..., {RUN} says {expected[:12]}...")
    return tensors, metadata["note"]


def file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):  # a file may be larger than what is left of the memory
            digest.update(block)
    return digest.hexdigest()


def json_digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Write run.json with format version and checksum."""
    content = json.loads(json.dumps({"format": FORMAT, "version": VERSION, **run}))
    with replacing(folder / RUN) as temporary:
        temporary.write_text(json.dumps({**content, "checksum": json_digest(content)}, indent=1) + "\n", encoding="utf-8")


def read_run(folder: Path) -> dict[str, Any]:
    """The content of run.json, checked."""
    path = folder / RUN
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        why = f"it has no {RUN}" if folder.exists() else "there is no such folder"
        raise ArtifactError(f"{folder} is not a run: {why}") from None
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is damaged: {error}") from None
    if not isinstance(run, dict) or run.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a run of srns: expected format {FORMAT!r}")
    if run.get("version") != VERSION:
        raise ArtifactError(f"{path} has format version {run.get('version')!r}; this srns reads version {VERSION}")
    checksum = run.pop("checksum", None)
    if checksum != json_digest(run):
        raise ArtifactError(f"{path} is damaged: it does not match its checksum")
    for name, kind in SHAPE.items():
        if name in REQUIRED and name not in run:
            raise ArtifactError(f"{path} is not a whole run: it lacks field {name!r}")
        if name in run and not isinstance(run[name], kind):
            raise ArtifactError(f"{path} is not a whole run: field {name!r} is {run[name]!r:.40}")
    if not isinstance(run["data"].get("name"), str):
        raise ArtifactError(f"{path} is not a whole run: field 'data' lacks the name of the data")
    return run


def digest_of(name: str, folder: Path, run: Mapping[str, Any]) -> str:
    """What run.json says the SHA-256 of a file is."""
    digest = run["files"].get(name)
    if not isinstance(digest, str):
        raise ArtifactError(f"{folder / RUN} has no checksum of {name}")
    return digest


def write_data(folder: Path, parts: Mapping[str, Interactions], negatives: NDArray[Any] | None = None) -> dict[str, str]:
    """Write id maps and interactions (train, valid, test: those there are); returns the digests by file name."""
    train = parts["train"]
    ids = {
        f"{kind}.{name}": b
        for kind, m in (("user", train.user_ids), ("item", train.item_ids))
        for name, b in m.buffers().items()
    }
    tensors: dict[str, NDArray[Any]] = {}
    for name, part in parts.items():
        tensors |= {f"{name}.indptr": part.indptr, f"{name}.items": part.items}
        if part.time is not None:  # so that what users had can be shown in its order
            tensors[f"{name}.time"] = part.time
    if negatives is not None:
        tensors["negatives"] = negatives
    return {IDS: write_tensors(folder / IDS, ids), INTERACTIONS: write_tensors(folder / INTERACTIONS, tensors)}


def shard_name(rank: int, size: int) -> str:
    """The folder within a run that holds the files of one of several ranks, with a slash; empty where there is one."""
    return "" if size == 1 else f"shard-{rank}-of-{size}/"


def remove_shards(folder: Path, but: int) -> None:
    """Remove the shards that an earlier attempt with another number of ranks left."""
    for path in folder.glob("shard-*-of-*"):
        if not path.name.endswith(f"-of-{but}"):
            _remove(path)


def shards_of(run: Mapping[str, Any]) -> list[str]:
    """Where the files of a run are, by rank: `shard_name` of each."""
    size = run.get("shards", 1)
    return [shard_name(rank, size) for rank in range(size)]


def read_data(folder: Path, run: Mapping[str, Any], shards: Sequence[str]) -> Split:
    """The split a run was made from, of the users in `shards` (of a saved Recommender, some parts are None)."""
    parts = [_read_shard(folder, run, shard) for shard in shards]
    if len(parts) == 1:
        return parts[0]

    def joined(name: str) -> Interactions | None:
        each = [getattr(part, name) for part in parts]
        if any(part is None for part in each):
            return None
        starts = np.cumsum([0, *(len(part) for part in each)])
        indptr = np.concatenate([[0], *(part.indptr[1:] + start for part, start in zip(each, starts, strict=False))])
        ids = IdMap(pl.concat([part.user_ids.labels for part in each]), "user")
        times = [part.time for part in each if part.time is not None]
        time = np.concatenate(times) if len(times) == len(each) else None
        return Interactions(indptr, np.concatenate([part.items for part in each]), ids, each[0].item_ids, time=time)

    train, negatives = joined("train"), [part.negatives for part in parts if part.negatives is not None]
    assert train is not None
    return Split(
        parts[0].name, train, joined("valid"), joined("test"), negatives=np.concatenate(negatives) if negatives else None
    )


def read_model(folder: Path, run: Mapping[str, Any], shards: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The parameters of a run, with the rows of the users in `shards`."""
    parts = [read_tensors(folder / (shard + MODEL), digest_of(shard + MODEL, folder, run))[0] for shard in shards]
    by_user = run.get("user_tensors", ()) if len(parts) > 1 else ()
    return {**parts[0], **{name: np.concatenate([part[name] for part in parts]) for name in by_user}}


def _read_shard(folder: Path, run: Mapping[str, Any], shard: str) -> Split:
    ids, _ = read_tensors(folder / (shard + IDS), digest_of(shard + IDS, folder, run))
    tensors, _ = read_tensors(folder / (shard + INTERACTIONS), digest_of(shard + INTERACTIONS, folder, run))
    try:
        maps = {
            kind: IdMap.from_buffers({name.split(".", 1)[1]: b for name, b in ids.items() if name.startswith(kind)}, kind)
            for kind in ("user", "item")
        }
        parts = {
            name: Interactions(
                tensors[f"{name}.indptr"],
                tensors[f"{name}.items"],
                maps["user"],
                maps["item"],
                time=tensors.get(f"{name}.time"),
            )
            for name in ("train", "valid", "test")
            if f"{name}.indptr" in tensors
        }
        return Split(
            run["data"]["name"],
            parts["train"],
            parts.get("valid"),
            parts.get("test"),
            negatives=tensors.get("negatives"),
        )
    except Exception as error:  # the bytes are those that were written, but not by this package
        raise ArtifactError(f"{folder / IDS} and {folder / INTERACTIONS} are no whole run: {error!r}") from None
