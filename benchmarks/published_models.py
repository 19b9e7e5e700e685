"""The eight models that the paper's authors published, on their own split of MovieLens-1m, under the paper's protocol.

    SRNS_DATA=../shared/data python benchmarks/published_models.py

needs ml-1m-paper.npz and ml-1m-paper-models.npz in that folder, and prints the table of docs/evaluation.md.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import srns


def main() -> None:
    folder = Path(os.environ.get("SRNS_DATA", ""))
    models = folder / "ml-1m-paper-models.npz"
    if not models.exists():
        sys.exit("SRNS_DATA does not name a folder with ml-1m-paper-models.npz")
    split = srns.load("ml-1m-paper")
    assert isinstance(split, srns.Split)
    with np.load(models, allow_pickle=False) as arrays:
        for name in ("enmf", "uniform", "nncf", "aobpr", "irgan", "rns", "advir", "srns"):
            items = arrays[f"{name}_items"][: split.train.n_items]  # enmf has one unused row
            model = srns.GMF(arrays[f"{name}_users"], items, arrays[f"{name}_beta"])
            found = srns.evaluate(model, split, on="test", protocol="paper", ks=(1, 3))
            print(f"{name:8} N@1 {found['ndcg@1']:.4f}  N@3 {found['ndcg@3']:.4f}  R@3 {found['recall@3']:.4f}")


if __name__ == "__main__":
    main()
