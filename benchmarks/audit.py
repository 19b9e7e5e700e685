"""How near `srns audit` comes to the truth, in simulated worlds where it is known.

    python benchmarks/audit.py [--answers 10000] [--worlds 8] [--out found.json]

In each world models are trained with each sampler as an audit trains them. The true label error ratio is the share of drawn
negatives, hidden ones aside, that the user would like, counted over all pairs. Beside it: the audit's estimate from so many
answers about random pairs, and what it has without any, the share of hidden positives and its multiple of chance.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import srns
from srns.audit import Plan
from srns.audit.findings import conclude
from srns.audit.sweep import contestants
from srns.audit.trial import trial
from srns.runs import environment
from srns.simulation import World

# Not those that anything was chosen on. Two differ in nothing but how much users like.
WORLDS: dict[str, dict[str, Any]] = {
    "plain": {"seed": 101},
    "liked .05": {"seed": 102, "liked": 0.05},
    "liked .3": {"seed": 102, "liked": 0.3},
    "sparse": {"seed": 103, "n_users": 1500, "n_items": 1500, "n_interactions": 30_000},
    "dense": {"seed": 104, "n_users": 600, "n_items": 800, "n_interactions": 50_000, "liked": 0.2},
    "exposure by taste": {"seed": 105, "tilt": 5.0},
    "careless clicks": {"seed": 106, "noise": 0.1},
    "flat popularity": {"seed": 107, "skew": 1.0},
}
SAMPLERS = ("uniform", "popularity", "dns", "srns-difficulty", "srns-variance")


def tables(world: World, folder: Path, answers: int) -> tuple[Path, Path, Path]:
    """Files of the interactions, of answers about random pairs, and of the truth about all pairs."""
    data = world.interactions
    frame = {"user": data.user_ids.take(data.users), "item": data.item_ids.take(data.items)}
    pl.DataFrame(frame).write_csv(clicks := folder / "clicks.csv")
    users, items = (each.ravel() for each in np.indices((data.n_users, data.n_items)))
    everything = pl.DataFrame(
        {
            "user": data.user_ids.take(users),
            "item": data.item_ids.take(items),
            "liked": world.would_like(users, items).astype(np.int64),
        }
    )
    everything.write_csv(truth := folder / "truth.csv")
    everything.sample(answers, seed=0).write_csv(asked := folder / "answers.csv")
    return clicks, asked, truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--worlds", type=int, default=len(WORLDS))
    parser.add_argument("--out", type=Path, help="write all results as JSON")
    options = parser.parse_args()
    found, off = [], []
    for name, values in list(WORLDS.items())[: options.worlds]:
        with tempfile.TemporaryDirectory() as folder:
            clicks, asked, truth = tables(srns.simulate(**values), Path(folder), options.answers)
            plan = Plan(str(clicks), SAMPLERS, (5.0,), seeds=1, settings={"dim": 32})
            each = contestants(plan)
            by_answers, by_truth = (
                conclude(each, {c.name: [trial(plan.dataset, dict(c.values), plan.hide, 0, str(path), "")] for c in each})
                for path in (asked, truth)
            )
        for estimate, exact in zip(by_answers.each, by_truth.each, strict=True):
            assert estimate.errors is not None
            assert exact.errors is not None
            error = estimate.errors.value / exact.errors.value - 1
            covered = estimate.errors.low <= exact.errors.value <= estimate.errors.high
            off.append((error, covered))
            row = {
                "world": name,
                "sampler": estimate.contestant.name,
                "true": exact.errors.value,
                "estimate": estimate.errors.value,
                "low": estimate.errors.low,
                "high": estimate.errors.high,
                "hidden": estimate.hidden.value,
                "times_chance": estimate.to_chance.value,
            }
            found.append(row)
            print(
                f"{name:18} {row['sampler']:16} true {row['true']:.4f}  estimate {row['estimate']:.4f} "
                f"({row['low']:.4f} to {row['high']:.4f}) {error:+6.1%}  hidden {row['hidden']:.4f}, "
                f"{row['times_chance']:.2f} x chance",
                flush=True,
            )
    errors = np.abs([error for error, _ in off])
    print(
        f"{options.answers:,} answers, {len(off)} cases: off by {np.median(errors):.1%} in the median, {errors.max():.1%} at "
        "most; "
        f"within 10 % in {np.mean(errors <= 0.1):.0%}; the interval holds the truth in {np.mean([c for _, c in off]):.0%}"
    )
    if options.out is not None:
        options.out.write_text(json.dumps({"answers": options.answers, "environment": environment(), "found": found}, indent=1))


if __name__ == "__main__":
    main()
