"""What mattered in a search: PED-ANOVA, the evaluator of Optuna that needs nothing besides NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import optuna

from srns.tuning.space import Choice, Space
from srns.tuning.tpe import distribution
from srns.tuning.trial import Trial

TOP = 0.25  # the best quarter of trials is what importance is about
FEWEST = 8  # trials, below which it would be guessing


def importance(trials: Sequence[Trial], space: Space) -> dict[str, float]:
    """How much each field decides whether a trial is among the best quarter (PED-ANOVA), most first; shares of 1.

    Pruned trials count by their best epoch: they are not among the best, and to leave them out would hide what kept them from
    it. Empty where there are too few trials to tell, or all found the same.
    """
    ended = [trial for trial in trials if trial.state in ("complete", "pruned") and trial.value is not None]
    if len(ended) < FEWEST or len({trial.value for trial in ended}) < 2:
        return {}
    distributions = {name: distribution(entry) for name, entry in space.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize")
        study.add_trials(
            [optuna.trial.create_trial(params=each.params, distributions=distributions, value=each.value) for each in ended]
        )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=TOP)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def importance_by_stage(trials: Sequence[Trial]) -> dict[str, float]:
    """The same for trials in stages, which their notes name: each field by the first stage that tells of it, shares of 1 in it.
    Stages of the scorer searched for, which comes last, go before those of another that was tried on the way to it.

    All stages together would mislead: later ones have what was best before them, and are better for other reasons. Within a
    stage every value meets every other, once `expansion_size` is told as the multiple of `memory_size` that it is.
    """
    found: dict[str, float] = {}
    complete = [replace(trial, params=_factors(trial)) for trial in trials if trial.state == "complete"]
    other = {trial.note: trial.params.get("scorer") != trials[-1].params.get("scorer") for trial in complete}
    for stage in sorted(other, key=lambda note: other[note]):
        mine = [trial for trial in complete if trial.note == stage]
        values = {name: {trial.params[name] for trial in mine} for name in mine[0].params}
        space: Space = {name: Choice(tuple(sorted(values[name]))) for name in values if len(values[name]) > 1}
        if space.keys() - found.keys():
            shares = importance([replace(trial, params={n: trial.params[n] for n in space}) for trial in mine], space)
            found |= {name: share for name, share in shares.items() if name not in found}
    return found


def _factors(trial: Trial) -> dict[str, Any]:
    params = dict(trial.params)
    if "expansion_size" in params:
        params["expansion_size"] //= params["memory_size"]
    return params
