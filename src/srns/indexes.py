"""Factors for use elsewhere: as tables and arrays, or as an index of nearest neighbours with its recall measured.

The score of GMF is an inner product once beta is folded into the users, and graphs of items are searched by it. Making norms
equal first with one number more, which turns inner products into angles (Bachrach et al., RecSys 2014), was tried: the recall
of 10 fell from .975 to .73 on 20,000 items, since that number comes to outweigh the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from srns.artifacts import replacing
from srns.errors import ConfigError
from srns.recommender import Recommender
from srns.runs import environment

Floats = NDArray[np.float32]
FORMATS = ("parquet", "npz", "faiss", "usearch")
K = 10  # length of the lists by which an index is judged
RECALL = 0.95  # below which a search is widened
QUERIES, SECONDS = 1_000, 0.5  # how many users ask, and for how long at most they are timed
WIDTHS = (32, 64, 128, 256, 512, 1024)  # candidates that a search keeps, in the order in which they are tried
LINKS, CARE = 32, 200  # of an item in the graph, and candidates looked at when it is put there
Search = Callable[[Floats], NDArray[np.int64]]  # a query (1, F) -> the K nearest (1, K), dense ids


class Measured(NamedTuple):
    """How an index did: recall of the exact K, queries per second one at a time, and the width of its search (0: exact)."""

    recall: float
    queries_per_second: float
    width: int


def export(recommender: Recommender, kind: str, out: Path) -> dict[str, Any]:
    """Write to the folder `out`; returns what is in its export.json."""
    if kind not in FORMATS:
        raise ConfigError(f"format {kind!r} is unknown; expected one of: {', '.join(FORMATS)}")
    users, items = recommender.user_factors, recommender.item_factors  # refuses scorers without factors
    out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"format": kind, "items": len(items), "dim": int(items.shape[1])}
    if kind in ("parquet", "npz"):
        record |= {"users": len(users), "files": _tables(recommender, kind, out)}
    else:
        record |= _index(recommender, kind, out)
    record["environment"] = environment()
    with replacing(out / "export.json") as path:
        path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _tables(recommender: Recommender, kind: str, out: Path) -> list[str]:
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
        return ["factors.npz"]
    for name, (labels, factors) in parts.items():
        width = pl.Array(pl.Float32, factors.shape[1])
        with replacing(out / f"{name}.parquet") as path:
            pl.DataFrame({"id": labels, "vector": pl.Series(factors, dtype=width)}).write_parquet(path)
    return [f"{name}.parquet" for name in parts]


def _plain(labels: pl.Series) -> NDArray[Any]:
    """Ids as an array that loads without pickle: numbers, or text of fixed width."""
    return labels.to_numpy() if labels.dtype.is_numeric() else np.array(labels.cast(pl.String).to_list(), np.str_)


def _index(recommender: Recommender, kind: str, out: Path) -> dict[str, Any]:
    train = recommender.split_.train
    with replacing(out / "items.parquet") as path:
        pl.DataFrame({"position": np.arange(train.n_items, dtype=np.int64), "id": train.item_ids.labels}).write_parquet(path)
    active = np.flatnonzero(train.user_counts)
    chosen = np.random.default_rng(0).permutation(active)[:QUERIES]
    queries = recommender.user_factors[chosen]
    name = f"items.{kind}"
    with replacing(out / name) as path:
        approximate, exact = (_faiss if kind == "faiss" else _usearch)(recommender.item_factors, queries, path)
    kept = "approximate" if approximate.queries_per_second > exact.queries_per_second else "exact"
    return {
        "files": [name, "items.parquet"],
        "kind": kept,
        "k": K,
        "recall": approximate.recall if kept == "approximate" else 1.0,
        "search_width": approximate.width if kept == "approximate" else 0,
        "queries_per_second": {"approximate": approximate.queries_per_second, "exact": exact.queries_per_second},
    }


def _exact(items: Floats, queries: Floats) -> tuple[NDArray[np.int64], Measured]:
    """The K best by brute force, and how quickly they are found."""
    k = min(K, len(items))

    def search(query: Floats) -> NDArray[np.int64]:
        scores = query @ items.T
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        return best

    truth = np.concatenate([search(query) for query in np.array_split(queries, max(1, len(queries) // 64))])
    return truth, Measured(1.0, _rate(search, queries), 0)


def _rate(search: Search, queries: Floats) -> float:
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


def _widened(search_of: Callable[[int], Search], queries: Floats, truth: NDArray[np.int64]) -> Measured:
    """The narrowest search whose recall suffices, or the widest."""
    measured = Measured(0.0, 0.0, 0)
    for width in WIDTHS:
        search = search_of(width)
        found = np.concatenate([search(query[None]) for query in queries])
        hits = [len(np.intersect1d(mine, theirs)) for mine, theirs in zip(found, truth, strict=True)]
        measured = Measured(float(np.sum(hits) / truth.size), _rate(search, queries), width)
        if measured.recall >= RECALL:
            break
    return measured


def _faiss(items: Floats, queries: Floats, path: Path) -> tuple[Measured, Measured]:
    """An HNSW graph of faiss, or its flat index where that is quicker."""
    try:
        import faiss
    except ImportError:
        raise _missing("faiss") from None
    faiss.omp_set_num_threads(1)  # one query at a time, as when it is used
    truth, exact = _exact(items, queries)
    graph = faiss.IndexHNSWFlat(items.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = CARE
    graph.add(items)

    def search_of(width: int) -> Search:
        def search(query: Floats) -> NDArray[np.int64]:
            ids: NDArray[np.int64] = graph.search(query, truth.shape[1])[1]
            return ids

        graph.hnsw.efSearch = width
        return search

    approximate = _widened(search_of, queries, truth)
    index: Any = graph
    if approximate.queries_per_second <= exact.queries_per_second:
        index = faiss.IndexFlatIP(items.shape[1])
        index.add(items)
    faiss.write_index(index, str(path))
    return approximate, exact


def _usearch(items: Floats, queries: Floats, path: Path) -> tuple[Measured, Measured]:
    """An HNSW graph of usearch; it has no flat index to save, so that the graph is kept where exact search is quicker too."""
    try:
        from usearch.index import Index
    except ImportError:
        raise _missing("usearch") from None
    truth, exact = _exact(items, queries)
    index = Index(ndim=items.shape[1], metric="ip", dtype="f32", connectivity=LINKS, expansion_add=CARE)
    index.add(np.arange(len(items)), items, threads=1)

    def search_of(width: int) -> Search:
        index.expansion_search = width  # type: ignore[misc] # its stubs forget the setter
        return lambda query: np.atleast_2d(index.search(query, truth.shape[1], threads=1).keys).astype(np.int64)

    approximate = _widened(search_of, queries, truth)
    index.save(str(path))
    return approximate, exact


def _missing(name: str) -> ConfigError:
    return ConfigError(f"format {name!r} needs {name}, which is not installed: pip install 'srns[ann]'")
