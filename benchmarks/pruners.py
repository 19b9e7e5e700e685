"""What pruners of Optuna would have saved and lost: settings drawn at random from the default space are trained to the end,
then each pruner goes over the kept validation curves, in many orders, as if it had been there.

    python benchmarks/pruners.py ml-100k-paper --seed 1 --out ml-100k.json
    python benchmarks/pruners.py synthetic --seed 2 --out synthetic.json

Runs that are in the file already are not trained again; what came out for each pruner stands beside them.
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

from srns.runs import environment
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
    before = json.loads(path.read_text()) if path.exists() else {}
    made = {"data": data, "seed": seed, "epochs": EPOCHS}
    kept = before["runs"] if before and all(before[name] == value for name, value in made.items()) else []
    for number in range(RUNS):
        trial = study.ask({name: distribution(entry) for name, entry in space.items()})
        study.tell(trial, 0.0)
        if number < len(kept):
            continue
        params = {name: entry.settle(trial.params[name]) for name, entry in space.items()}
        kept.append({"params": params, **train_once(data, recipe.config(params).model_dump(mode="json"))})
        path.write_text(json.dumps({**made, "environment": environment(), "runs": kept}) + "\n")
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
    parser.add_argument("--out", type=Path, required=True, help="keep runs and results in this file, and go on from there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    curves = np.array([run["values"] for run in collect(options.data, options.seed, options.out)])
    print(f"{options.data}: {len(curves)} runs; rank correlation of the best epoch so far with the best of all")
    correlations = {n: float(spearmanr(curves[:, :n].max(1), curves.max(1)).statistic) for n in (1, 2, 5, 10)}
    print("  " + ", ".join(f"epoch {n}: {found:.2f}" for n, found in correlations.items()))
    rows = {}
    orders = [random.Random(number).sample(range(len(curves)), TRIALS) for number in range(ORDERS)]
    for name, make in PRUNERS.items():
        found = [replay(make, curves, order, f"s{number}") for number, order in enumerate(orders)]
        used, lost = np.array(found).T
        kept = np.count_nonzero(lost == 0)
        print(
            f"{name:32} epochs {used.mean():4.0%}  best kept {kept} of {ORDERS}  lost {lost.mean():.2%}, most {lost.max():.1%}"
        )
        rows[name] = {"epochs": used.mean(), "best_kept": int(kept), "lost": lost.mean(), "most_lost": lost.max()}
    record = json.loads(options.out.read_text())
    text = json.dumps({**record, "orders": ORDERS, "trials": TRIALS, "correlations": correlations, "pruners": rows})
    options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
