"""How good and how quick are the indexes of `srns export` on a large catalogue, on one thread?

    python benchmarks/exporting.py --out docs/export/indexes.json      # 200,000 items, F = 64 and 128, faiss and usearch

Two kinds of factors: `trained`, by the default recipe on simulated interactions, whose users and items share structure as those
of real data do; and `noise`, independent normal numbers, the hardest there is for a graph, since nothing is near anything.

The bar is a recall@10 of .95 against exact search at 5 times its query rate. Exact search is the library's own (IndexFlatIP of
faiss); NumPy's matrix multiply with argpartition stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import srns
from srns.indexes import CARE, LIBRARIES, LINKS, QUERIES, Floats, measure
from srns.runs import environment

EPOCHS = 5  # enough for structure; more make better recommendations, not harder searches


def trained(n_items: int, dim: int) -> tuple[Floats, Floats]:
    data = srns.simulate(n_items // 5, n_items, 10 * n_items, seed=1).interactions
    model = srns.Recommender(dim=dim, epochs=EPOCHS, seed=1).fit(data)
    active = np.random.default_rng(0).permutation(np.flatnonzero(data.user_counts))
    return model.item_factors, model.user_factors[active[:QUERIES]]


def noise(n_items: int, dim: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n_items, dim), np.float32), rng.standard_normal((QUERIES, dim), np.float32)


FACTORS = {"trained": trained, "noise": noise}


def index(kind: str, items: Floats, queries: Floats) -> dict[str, Any]:
    library = import_module("usearch.index" if kind == "usearch" else kind)
    begin = time.process_time()
    with threadpool_limits(1):
        made = LIBRARIES[kind](library, items)
    seconds = time.process_time() - begin
    found = measure(made, items, queries)
    rates = found["queries_per_second"]
    times = {f"times_{other}": rates["approximate"] / rates[other] for other in ("exact", "numpy")}
    return {"format": kind, "version": import_module(kind).__version__, "build_seconds": seconds, **found, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--factors", nargs="+", choices=list(FACTORS), default=list(FACTORS))
    parser.add_argument("--formats", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--out", type=Path, help="write all results as JSON; what is there for other cases stays")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["results"] if options.out is not None and options.out.exists() else []
    for factors in options.factors:
        for dim in options.dims:
            items, queries = FACTORS[factors](options.items, dim)
            for kind in options.formats:
                case = {"factors": factors, "items": options.items, "dim": dim, "format": kind}
                row = {**case, **index(kind, items, queries), "load": os.getloadavg()[0]}
                rows = [other for other in rows if any(other[name] != value for name, value in case.items())] + [row]
                rates, graph = row["queries_per_second"], row["graph"]
                print(
                    f"{factors}, {options.items:,} x {dim}, {kind}: graph recall@10 {graph['recall']:.4f} at width "
                    f"{graph['search_width']}, {rates['approximate']:,.0f} queries a second: {row['times_exact']:.1f} x exact "
                    f"({rates['exact']:,.0f}), {row['times_numpy']:.1f} x numpy ({rates['numpy']:,.0f}); {row['note']}",
                    flush=True,
                )
                if options.out is not None:
                    record = {"links": LINKS, "care": CARE, "queries": QUERIES, "environment": environment(), "results": rows}
                    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
