"""What pruners of Optuna would have saved and lost: settings drawn at random from the default space are trained to the end,
then each pruner goes over the kept validation curves, in many orders, as if it had been there.

    python benchmarks/pruners.py ml-100k-paper --seed 1 --out ml-100k.jsonl
    python benchmarks/pruners.py synthetic --seed 2 --out synthetic.jsonl

Runs that are in the file already are not trained again.
"""

from __future__ import annotations

import argparse
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from scipy.stats import spearmanr

from srns.tuning.space import Recipe, default_space
from srns.tuning.tpe import distribution
from srns.tuning.trial import searched_split, train_once

EPOCHS, RUNS, TRIALS, ORDERS = 20, 48, 30, 150
PRUNERS: dict[str, Callable[[], BasePruner]] = {
    "none": NopPruner,
    **{f"median from {n}": lambda n=n: MedianPruner(5, n_warmup_steps=n) for n in (1, 2, 5, 7, 10)},
    "successive halving, 1/4 from 1": lambda: SuccessiveHalvingPruner(min_resource=1, reduction_factor=4),
    "successive halving, 1/2 from 5": lambda: SuccessiveHalvingPruner(min_resource=5, reduction_factor=2),
    "Hyperband, 1/3 from 1": lambda: HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=3),
}


def collect(data: str, seed: int, path: Path) -> list[dict[str, Any]]:
    recipe = Recipe({"threads": 1, "epochs": EPOCHS})
    config = recipe.config()
    train = searched_split(data, config).train
    space = default_space(recipe, config.l2_for(train.whole.n, train.whole.n_active))
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=seed))
    kept = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for number in range(RUNS):
        trial = study.ask({name: distribution(entry) for name, entry in space.items()})
        study.tell(trial, 0.0)
        if number < len(kept):
            continue
        params = {name: entry.settle(trial.params[name]) for name, entry in space.items()}
        kept.append({"params": params, **train_once(data, recipe.config(params).model_dump(mode="json"))})
        with path.open("a") as file:
            file.write(json.dumps(kept[-1]) + "\n")
    return [run for run in kept if "values" in run]


def replay(make: Callable[[], BasePruner], curves: np.ndarray[Any, Any], order: list[int], name: str) -> tuple[float, float]:
    """The share of epochs that a search of these runs takes with a pruner, and how far below the best of them it ends."""
    study = optuna.create_study(study_name=name, direction="maximize", pruner=make())
    epochs, best = 0, 0.0
    for run in order:
        trial, state = study.ask(), optuna.trial.TrialState.COMPLETE
        for epoch, value in enumerate(curves[run], 1):
            epochs += 1
            trial.report(float(value), epoch)
            if epoch < EPOCHS and trial.should_prune():
                state = optuna.trial.TrialState.PRUNED
                break
        complete = state == optuna.trial.TrialState.COMPLETE
        study.tell(trial, float(curves[run].max()) if complete else None, state)
        best = max(best, float(curves[run].max()) if complete else 0.0)
    return epochs / (EPOCHS * len(order)), 1 - best / float(curves[order].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    curves = np.array([run["values"] for run in collect(options.data, options.seed, options.out)])
    print(f"{options.data}: {len(curves)} runs; rank correlation of the best epoch so far with the best of all")
    print("  " + ", ".join(f"epoch {n}: {spearmanr(curves[:, :n].max(1), curves.max(1)).statistic:.2f}" for n in (1, 2, 5, 10)))
    orders = [random.Random(number).sample(range(len(curves)), TRIALS) for number in range(ORDERS)]
    for name, make in PRUNERS.items():
        found = [replay(make, curves, order, f"s{number}") for number, order in enumerate(orders)]
        used, lost = np.array(found).T
        kept = np.count_nonzero(lost == 0)
        print(
            f"{name:32} epochs {used.mean():4.0%}  best kept {kept} of {ORDERS}  lost {lost.mean():.2%}, most {lost.max():.1%}"
        )


if __name__ == "__main__":
    main()
