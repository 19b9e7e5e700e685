"""What mattered in a search: PED-ANOVA, the evaluator of Optuna that needs nothing besides NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import optuna

from srns.tuning.space import Space
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
