"""GMF from one seed on the fused and on the torch engine: negatives, loss curves and test metrics beside each other.

    SRNS_DATA=../shared/data python benchmarks/engines.py [--dataset ml-1m-paper] [--epochs 10]

Settings are those of the paper on ML-1m, with uniform and with SRNS negatives. Which negatives were drawn shows in the loss of
the first epoch and, with SRNS, in the memories that it leaves: these are compared slot by slot.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import srns
from srns.engines import make_engine
from srns.presets import make_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="ml-1m-paper")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    split: Any = srns.load(options.dataset)
    for sampler in ("uniform", "srns"):
        losses, tests, memories, seconds = {}, {}, {}, {}
        for name in ("fused", "torch"):
            engine: Any = make_engine(make_config({"engine": name, "sampler": sampler}, preset="paper-ml-1m"), split.train)
            losses[name], seconds[name] = [], []
            for epoch in range(options.epochs):
                start = time.perf_counter()
                losses[name].append(engine.run_epoch(epoch))
                seconds[name].append(time.perf_counter() - start)
                if epoch == 0 and sampler == "srns":
                    state = engine.state_dict()
                    memories[name] = np.sort(state["memory" if name == "fused" else "sampler.memory"].astype(np.int64))
            tests[name] = srns.evaluate(engine.model, split, protocol="paper", ks=(1, 3))
        apart = np.abs(np.array(losses["torch"]) / np.array(losses["fused"]) - 1)
        print(
            f"{sampler}: losses differ by {apart[0]:.1e} in the first epoch, by {apart.max():.1e} at most in {options.epochs}"
        )
        if memories:
            other = int((memories["torch"] != memories["fused"]).sum())
            print(f"  {other:,} of {memories['fused'].size:,} slots of memories differ after the first epoch")
        for name in ("fused", "torch"):
            found = " ".join(f"{metric} {tests[name][metric]:.4f}" for metric in ("ndcg@1", "ndcg@3", "recall@3"))
            print(f"  {name}: test after {options.epochs} epochs {found}; {np.median(seconds[name]):.2f} s per epoch")


if __name__ == "__main__":
    main()
