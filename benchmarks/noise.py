"""Does variance tell false negatives from hard ones? The paper's synthetic experiments (section 4.2), with intervals.

    SRNS_DATA=../shared/data python benchmarks/noise.py [--dataset ml-100k-paper] [--sigma 1] [--seeds 5] [--epochs 400]

One slot of every memory holds a hidden positive. Negatives taken by P_pos and variance are compared with negatives taken by
P_pos alone, everything else equal: test NDCG@3 averaged over the last 50 epochs, with a paired bootstrap over users, and the
label error ratio, the share of drawn negatives that are hidden positives, with a t interval over seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from srns.experiments.figure2 import BY
from srns.experiments.noise import SETUPS
from srns.experiments.noise_runs import train
from srns.experiments.outcome import PAPER_EPOCHS, difference_over_users
from srns.runs import environment

# For Ecom-toy the paper names alpha at sigma = .5 only. Of those tried on the tuning split this one is ahead of difficulty on
# both counts, NDCG@3 and label errors; by NDCG@3 alone, as figure 2 chooses, a larger one is.
CHOSEN = {("ecom-toy-paper", 1.0): {"variance_weight": 5.0}}
FIXED = ("epochs", "noise", "seed", "strategy", "threads", "valid_share")  # options of their own, or the same in every run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", action="append", choices=list(SETUPS))
    parser.add_argument("--sigma", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=PAPER_EPOCHS)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", dest="settings")
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    if wrong := [setting for setting in options.settings if "=" not in setting or setting.split("=")[0] in FIXED]:
        parser.error(f"--set {wrong[0]}: expected FIELD=VALUE, and none of {', '.join(FIXED)}")
    values = {**BY, **dict(setting.split("=", 1) for setting in options.settings)}
    results = []
    for name in options.dataset or SETUPS:
        for sigma in options.sigma or [1.0]:
            runs: dict[str, list[dict[str, Any]]] = {"variance": [], "difficulty": []}
            for seed in range(options.seeds):
                for strategy, found in runs.items():
                    chosen = {**CHOSEN.get((name, sigma), {}), **values, "seed": seed, "noise": sigma, "strategy": strategy}
                    found.append(train(name, SETUPS[name].preset, chosen, options.epochs))
                shown = "  ".join(
                    f"{strategy} {found[-1]['last']['ndcg@3']:.4f} (false {found[-1]['label_error_ratio']:.4f})"
                    for strategy, found in runs.items()
                )
                print(f"{name} sigma {sigma:g} seed {seed}: NDCG@3 {shown}", flush=True)
            ndcg = {strategy: [each["last"]["ndcg@3"] for each in found] for strategy, found in runs.items()}
            gain = difference_over_users(*([each["users"] for each in found] for found in runs.values()))
            errors = np.array([[each["label_error_ratio"] for each in found] for found in runs.values()])  # (2, seeds)
            low, high = stats.ttest_rel(*errors).confidence_interval(0.95)
            print(
                f"{name} sigma {sigma:g}: NDCG@3 {np.mean(ndcg['variance']):.4f} with variance, "
                f"{np.mean(ndcg['difficulty']):.4f} without, "
                f"difference {gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]; label errors {errors[0].mean():.4f} "
                f"and {errors[1].mean():.4f}, difference {np.mean(errors[0] - errors[1]):+.4f} [{low:+.4f}, {high:+.4f}]",
                flush=True,
            )
            ratios = dict(zip(runs, errors.tolist(), strict=True))
            results.append({"dataset": name, "sigma": sigma, "ndcg@3": ndcg, "label_error_ratio": ratios})
    if options.out is not None:
        options.out.write_text(json.dumps({"settings": values, "environment": environment(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
