"""Factors for use elsewhere: as tables and arrays, or as an index of nearest neighbours with its recall measured.

The score of GMF is an inner product once beta is folded into the users, and a graph of items (HNSW) is searched by it. Whether
that is any good is measured, on one thread, with users of the model as queries: a graph is preferred to exact search only where
it finds RECALL of the best K and is quicker. How good and how quick on 200,000 items is in docs/export.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from srns.artifacts import file_digest, replacing, staging
from srns.errors import ConfigError
from srns.recommender import Recommender
from srns.runs import environment

Floats = NDArray[np.float32]
FILES = {  # by format
    "parquet": ("users.parquet", "items.parquet"),
    "npz": ("factors.npz",),
    "faiss": ("items.faiss", "items.parquet"),
    "usearch": ("items.usearch", "items.parquet"),
}
RECORD = "export.json"
K = 10  # length of the lists by which an index is judged
RECALL = 0.95  # below which a search is widened
QUERIES, SECONDS = 1_000, 0.5  # how many users ask, and for how long at most they are timed
WIDTHS = (32, 64, 128, 256, 512, 1024)  # candidates that a search keeps, in the order in which they are tried
LINKS, CARE = 32, 200  # of an item in the graph, and candidates looked at when it is put there
Search = Callable[[Floats, int], NDArray[np.int64]]  # queries (B, F), k -> the k nearest (B, k), dense ids


@dataclass(frozen=True)
class Index:
    """What a library makes of items: a graph to be searched, exact search beside it, and the file.

    `widen` sets how many candidates a search of the graph keeps. `save` writes the graph or, asked for that, the flat index,
    where the library has one (`flat`).
    """

    search: Search
    exact: Search
    widen: Callable[[int], None]
    save: Callable[[Path, bool], None]
    flat: bool


def export(recommender: Recommender, kind: str, out: Path) -> dict[str, Any]:
    """Write to the folder `out`; returns what is in its export.json, which comes last. Of another format that was exported
    there, nothing stays. A failure leaves what was there; a process killed between two files leaves some that are not those
    whose digests export.json has."""
    if kind not in FILES:
        raise ConfigError(f"format {kind!r} is unknown; expected one of: {', '.join(FILES)}")
    users, items = recommender.user_factors, recommender.item_factors  # refuses scorers without factors
    library = _library(kind) if kind in LIBRARIES else None
    files = FILES[kind]
    record: dict[str, Any] = {"format": kind, "items": len(items), "dim": int(items.shape[1]), "files": list(files)}
    before = _files_of(out)
    with staging(out, (*files, RECORD)) as stage:
        if library is not None:
            record |= _index(recommender, LIBRARIES[kind](library, items), stage / files[0])
        else:
            record["users"] = len(users)
            _tables(recommender, kind, stage)
        record["sha256"] = {name: file_digest(stage / name) for name in files}
        record["environment"] = environment()
        if library is not None:
            record["environment"]["packages"][kind] = import_module(kind).__version__
        with replacing(stage / RECORD) as path:
            path.write_text(json.dumps(record, indent=1) + "\n")
    for other in before - set(files):
        (out / other).unlink(missing_ok=True)
    return record


def _files_of(out: Path) -> set[str]:
    """The files of the export that is there, if any; others in its folder are not ours."""
    try:
        found = json.loads((out / RECORD).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for names in FILES.values() for name in names} & set(found)


def _tables(recommender: Recommender, kind: str, out: Path) -> None:
    """Ids and factors of users and items."""
    train = recommender.split_.train
    parts = {
        "users": (train.user_ids.labels, recommender.user_factors),
        "items": (train.item_ids.labels, recommender.item_factors),
    }
    if kind == "npz":
        arrays: dict[str, Any] = {name: factors for name, (_, factors) in parts.items()}
        arrays |= {f"{name}_ids": _plain(labels) for name, (labels, _) in parts.items()}
        with replacing(out / "factors.npz") as path, path.open("wb") as file:
            np.savez(file, **arrays)
        return
    for name, (labels, factors) in parts.items():
        width = pl.Array(pl.Float32, factors.shape[1])
        with replacing(out / f"{name}.parquet") as path:
            pl.DataFrame({"id": labels, "vector": pl.Series(factors, dtype=width)}).write_parquet(path)


def _plain(labels: pl.Series) -> NDArray[Any]:
    """Ids as an array that loads without pickle: numbers, or text of fixed width."""
    return labels.to_numpy() if labels.dtype.is_numeric() else np.array(labels.cast(pl.String).to_list(), np.str_)


def _library(kind: str) -> Any:
    """The module to index with, before anything is worked out or written."""
    try:
        return import_module("usearch.index" if kind == "usearch" else kind)
    except ImportError:
        raise ConfigError(f"format {kind!r} needs {kind}, which is not installed: pip install 'srns[ann]'") from None


def _index(recommender: Recommender, index: Index, file: Path) -> dict[str, Any]:
    """Measure an index and save what is better, the graph or exact search; ids of its positions beside it."""
    train = recommender.split_.train
    active = np.flatnonzero(train.user_counts)
    queries = recommender.user_factors[np.random.default_rng(0).permutation(active)[:QUERIES]]
    found = measure(index, recommender.item_factors, queries)
    with replacing(file) as path:
        try:
            index.save(path, found["kind"] == "exact")
        except RuntimeError as error:  # what both libraries make of a full disk
            raise OSError(str(error)) from None
    with replacing(file.with_name("items.parquet")) as path:
        pl.DataFrame({"position": np.arange(train.n_items, dtype=np.int64), "id": train.item_ids.labels}).write_parquet(path)
    return found


def measure(index: Index, items: Floats, queries: Floats) -> dict[str, Any]:
    """Recall of the exact K by brute force, queries per second one at a time on one thread, and what is to be preferred.

    `kind`, `recall` and `search_width`, 0 for exact search, are those of what is to be saved; `graph` has the graph's.
    """
    k = min(K, len(items))
    with threadpool_limits(1):
        blocks = np.array_split(queries, max(1, len(queries) // 64))
        truth = np.concatenate([by_numpy(items, block, k) for block in blocks])
        recall, width = _widened(index, queries, truth)
        rates = {
            "approximate": rate(lambda query: index.search(query, k), queries),
            "exact": rate(lambda query: index.exact(query, k), queries),
            "numpy": rate(lambda query: by_numpy(items, query, k), queries),
        }
    kept, note = _chosen(recall, rates, index.flat)
    flat = kept == "exact"
    return {
        "kind": kept,
        "note": note,
        "k": K,
        "recall": 1.0 if flat else recall,
        "search_width": 0 if flat else width,
        "graph": {"recall": recall, "search_width": width},
        "queries_per_second": rates,
    }


def _chosen(recall: float, rates: dict[str, float], flat: bool) -> tuple[str, str]:
    """What is saved, and why. A graph's rival is what would be saved in its place; where nothing can be, any exact search."""
    rival = "exact" if flat or rates["exact"] >= rates["numpy"] else "numpy"
    if recall < RECALL:
        why = f"even the widest search of a graph has a recall of {recall:.4f}, below {RECALL}"
    elif rates["approximate"] <= rates[rival]:
        why = f"exact search{' by numpy' if rival == 'numpy' else ''} is quicker for a catalogue of this size"
    else:
        return "approximate", "a graph is searched"
    if flat:
        return "exact", f"{why}, and exact search is what the index does"
    return "approximate", f"{why}; the graph is kept, and search(..., exact=True) is exact"


def by_numpy(items: Floats, queries: Floats, k: int) -> NDArray[np.int64]:
    """The k best (B, k) by brute force, in any order."""
    scores = queries @ items.T
    best: NDArray[np.int64] = np.argpartition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k :]
    return best


def rate(search: Callable[[Floats], Any], queries: Floats) -> float:
    """Queries per second, one at a time, as a service asks; the best of three rounds."""
    rates = []
    for _ in range(3):
        start = time.perf_counter()
        done = 0
        for query in queries:
            search(query[None])
            done += 1
            if time.perf_counter() - start > SECONDS / 3:
                break
        rates.append(done / (time.perf_counter() - start))
    return max(rates)


def _widened(index: Index, queries: Floats, truth: NDArray[np.int64]) -> tuple[float, int]:
    """Set the narrowest search of the graph whose recall suffices, or the widest: its recall and width."""
    recall = 0.0
    for width in WIDTHS:
        index.widen(width)
        found = index.search(queries, truth.shape[1])
        hits = [len(np.intersect1d(mine, theirs)) for mine, theirs in zip(found, truth, strict=True)]
        recall = float(np.sum(hits) / truth.size)
        if recall >= RECALL:
            break
    return recall, width


def _faiss(faiss: Any, items: Floats) -> Index:
    """An HNSW graph, which keeps the width of its search in the file, and a flat index."""
    graph = faiss.IndexHNSWFlat(items.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = CARE
    flat = faiss.IndexFlatIP(items.shape[1])
    with threadpool_limits(1):  # the same graph each time
        graph.add(items)
    flat.add(items)

    def widen(width: int) -> None:
        graph.hnsw.efSearch = width

    return Index(
        search=lambda queries, k: np.asarray(graph.search(queries, k)[1], np.int64),
        exact=lambda queries, k: np.asarray(flat.search(queries, k)[1], np.int64),
        widen=widen,
        save=lambda path, exactly: faiss.write_index(flat if exactly else graph, str(path)),
        flat=True,
    )


def _usearch(usearch: Any, items: Floats) -> Index:
    """An HNSW graph; the file keeps no width, and the same file is searched exactly with `exact=True`."""
    graph = usearch.Index(ndim=items.shape[1], metric="ip", dtype="f32", connectivity=LINKS, expansion_add=CARE)
    graph.add(np.arange(len(items)), items, threads=1)

    def search(queries: Floats, k: int, exact: bool) -> NDArray[np.int64]:
        keys = graph.search(queries, k, exact=exact, threads=1).keys
        return np.asarray(keys, np.int64).reshape(len(queries), -1)

    def widen(width: int) -> None:
        graph.expansion_search = width

    return Index(
        search=lambda queries, k: search(queries, k, False),
        exact=lambda queries, k: search(queries, k, True),
        widen=widen,
        save=lambda path, exactly: graph.save(str(path)),
        flat=False,
    )


LIBRARIES: dict[str, Callable[[Any, Floats], Index]] = {"faiss": _faiss, "usearch": _usearch}
