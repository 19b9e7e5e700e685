"""Recommenders from implicit feedback that care which negatives they learn from.

    interactions -> split -> sampler + scorer + loss -> engine -> trainer -> evaluation -> recommender -> report / service

`read` or `load` data, `make_split` it, train a `Recommender` (or a `Trainer`, for the whole record), `evaluate`, `recommend`.
Names are imported when first used, so that `import srns` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srns.config import RunConfig
    from srns.datasets import DATASETS, available, load
    from srns.errors import ArtifactError, ConfigError, DataError, ScoreError, SrnsError, TrainingError, UnknownIdError
    from srns.evaluation import Comparison, Evaluation, evaluate, paired_bootstrap
    from srns.ids import IdMap
    from srns.interactions import Interactions
    from srns.losses import LOSSES
    from srns.presets import PRESETS, make_config
    from srns.readers import read
    from srns.recommender import Recommender
    from srns.runs import train_run
    from srns.samplers import SAMPLERS, SRNS, Negatives, Noise, Sampler, SamplerState, Truth, Uniform
    from srns.scorers import GMF, SCORERS
    from srns.simulation import World, simulate
    from srns.splits import Split, hide_positives, make_split, split_leave_one_out, split_random, split_temporal
    from srns.tracking import MLflow, TensorBoard
    from srns.trainer import Callback, EpochRecord, Trainer, Training
    from srns.updates import update, update_run

__version__ = "0.1.0"

_HOMES = {
    "config": ("RunConfig",),
    "datasets": ("DATASETS", "available", "load"),
    "errors": ("ArtifactError", "ConfigError", "DataError", "ScoreError", "SrnsError", "TrainingError", "UnknownIdError"),
    "evaluation": ("Comparison", "Evaluation", "evaluate", "paired_bootstrap"),
    "ids": ("IdMap",),
    "interactions": ("Interactions",),
    "losses": ("LOSSES",),
    "presets": ("PRESETS", "make_config"),
    "readers": ("read",),
    "recommender": ("Recommender",),
    "runs": ("train_run",),
    "samplers": ("SAMPLERS", "SRNS", "Negatives", "Noise", "Sampler", "SamplerState", "Truth", "Uniform"),
    "scorers": ("GMF", "SCORERS"),
    "simulation": ("World", "simulate"),
    "splits": ("Split", "hide_positives", "make_split", "split_leave_one_out", "split_random", "split_temporal"),
    "tracking": ("MLflow", "TensorBoard"),
    "trainer": ("Callback", "EpochRecord", "Trainer", "Training"),
    "updates": ("update", "update_run"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'srns' has no attribute {name!r}")
    module = import_module(f"srns.{_HOME_OF[name]}")
    globals().update({each: getattr(module, each) for each in _HOMES[_HOME_OF[name]]})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
