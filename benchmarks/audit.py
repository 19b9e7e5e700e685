"""How near `srns audit` comes to the truth, in simulated worlds where it is known.

    python benchmarks/audit.py [--worlds 8] [--repeats 100] [--sampler in_batch] [--out docs/audit/worlds.json]

In each world a model is trained with each sampler as an audit trains it. The true label error ratio is the share of drawn
negatives, hidden ones aside, that the user would like, counted over all pairs. Beside it: the audit's estimates from answers
about pairs that are picked blindly, and about those that `srns audit --ask` picks, many times over with other pairs. What is in
the file of results already is not made again.
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
from srns.audit.findings import Sums
from srns.audit.hiding import Answers
from srns.audit.questions import questions
from srns.audit.sweep import contestants
from srns.audit.trial import Trained, asked, train
from srns.runs import environment
from srns.simulation import World

# None of them is one that anything was chosen on. Two differ in nothing but how much users like.
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


NUMBERS = (1_000, 3_000, 10_000)  # of answers
WITHIN = 0.1


def tables(world: World, folder: Path) -> tuple[Path, Path]:
    """Files of the interactions and of the truth about all pairs."""
    data = world.interactions
    frame = {"user": data.user_ids.take(data.users), "item": data.item_ids.take(data.items)}
    pl.DataFrame(frame).write_csv(clicks := folder / "clicks.csv")
    users, items = (each.ravel() for each in np.indices((data.n_users, data.n_items)))
    liked = world.would_like(users, items).astype(np.int64)
    everything = {"user": data.user_ids.take(users), "item": data.item_ids.take(items), "liked": liked}
    pl.DataFrame(everything).write_csv(truth := folder / "truth.csv")
    return clicks, truth


class Picked:
    """Which of all answers are asked for, and what each stands for; the same for all samplers of a world."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], tuple[Any, Any]] = {}

    def __call__(self, done: Trained, by: str, size: int, seed: int) -> tuple[Any, Any]:
        key = by, size, seed
        if key not in self._kept:
            self._kept[key] = blindly(done, size, seed) if by == "blindly" else by_questions(done, size, seed)
        return self._kept[key]


def blindly(done: Trained, size: int, seed: int) -> tuple[Any, Any]:
    assert done.told is not None
    return np.random.default_rng(seed).choice(len(done.told.users), size, replace=False), np.ones(size)


def by_questions(done: Trained, size: int, seed: int) -> tuple[Any, Any]:
    assert done.told is not None
    pairs, n_items = questions(done.data, size, done.config, seed), done.data.n_items
    users, items = done.data.user_ids.indices(pairs["user"]), done.data.item_ids.indices(pairs["item"])
    place = np.searchsorted(done.told.users * n_items + done.told.items, users * n_items + items)
    return place, pairs["weight"].to_numpy()


def estimates(done: Trained, picked: Picked, repeats: int) -> dict[str, Any]:
    """The truth about a training, and how far off estimates of it are."""
    told = done.told
    assert told is not None
    drawn = done.drawn_of(told)
    truth = float(drawn @ told.liked / drawn.sum())
    found: dict[str, Any] = {"true": truth}
    for by in ("blindly", "by --ask"):
        for size in NUMBERS:
            made = []
            for seed in range(repeats):
                place, weight = picked(done, by, size, seed)
                answers = Answers(told.users[place], told.items[place], told.liked[place], weight)
                made.append(Sums([asked(answers, drawn[place])]).ratio("asked_liked", "asked"))
            value, low, high = np.array(made).T
            off = value / truth - 1
            found[f"{size} {by}"] = {
                "first": float(value[0]),
                "bias": float(off.mean()),
                "rms": float(np.sqrt((off**2).mean())),
                "within": float((np.abs(off) <= WITHIN).mean()),
                "covered": float(((low <= truth) & (truth <= high)).mean()),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=len(WORLDS))
    parser.add_argument("--sampler", action="append", help=f"this one, repeatable, instead of {', '.join(SAMPLERS)}")
    parser.add_argument("--repeats", type=int, default=50, help="sets of answers of each kind")
    parser.add_argument("--out", type=Path, help="keep all results in this file, and go on from there")
    options = parser.parse_args()
    plan = Plan("", tuple(options.sampler or SAMPLERS), (5.0,), settings={"dim": 32, "validate_every": 20})
    config = {"worlds": WORLDS, "settings": dict(plan.settings), "hide": plan.hide, "seed": 0, "repeats": options.repeats}
    kept = json.loads(options.out.read_text()) if options.out is not None and options.out.exists() else {}
    found: list[dict[str, Any]] = kept["found"] if kept.get("config") == config else []
    for name, values in list(WORLDS.items())[: options.worlds]:
        missing = [
            each for each in contestants(plan) if (name, each.name) not in {(row["world"], row["sampler"]) for row in found}
        ]
        if not missing:
            continue
        picked = Picked()
        with tempfile.TemporaryDirectory() as folder:
            clicks, truth = tables(srns.simulate(**values), Path(folder))
            for each in missing:
                done = train(str(clicks), dict(each.values), plan.hide, 0, str(truth), look_every=20)
                found.append({"world": name, "sampler": each.name, **estimates(done, picked, options.repeats)})
                off = "  ".join(f"{key} {part['rms']:.1%}" for key, part in found[-1].items() if isinstance(part, dict))
                print(f"{name:18} {each.name:16} true {found[-1]['true']:.4f}  rms of {off}", flush=True)
                if options.out is not None:
                    text = json.dumps({"config": config, "environment": environment(), "found": found}, indent=1)
                    options.out.write_text(text + "\n")
    summarise(found)


def summarise(found: list[dict[str, Any]]) -> None:
    """How near all of them are, for each number of answers and way to pick them."""
    for key in [key for key, part in found[0].items() if isinstance(part, dict)]:
        rms, within, covered = (np.array([row[key][part] for row in found]) for part in ("rms", "within", "covered"))
        first = np.abs([row[key]["first"] / row["true"] - 1 for row in found])
        print(
            f"{key:16} off by {np.sqrt((rms**2).mean()):.1%} (root mean square; in the worst case {rms.max():.1%}), within "
            f"{WITHIN:.0%} in {within.mean():.1%} (worst {within.min():.0%}; first set of answers: "
            f"{(first <= WITHIN).sum()} of {len(first)}), the interval holds the truth in {covered.mean():.1%} "
            f"(worst {covered.min():.0%})"
        )


if __name__ == "__main__":
    main()
