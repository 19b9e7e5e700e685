"""Named sets of values, the paper's among them, and how a run is put together from a preset, a file and explicit values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from srns.config import RunConfig
from srns.errors import ConfigError, explain
from srns.samplers import SAMPLERS
from srns.scorers import WITHOUT_NEGATIVES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What a preset does not name keeps its default. The paper's values: its appendix B.4 with tables 4 and 5.
_PAPER = {
    "learn_beta": True, "init_std": 0.01, "loss": "bpr", "learning_rate": 0.001, "schedule": "constant", "batch_size": 1024,
    "epochs": 400, "patience": 100, "moving_average": 0.0, "metric": "ndcg@3", "sampler": "srns", "negatives": 1,
}  # fmt: skip
# The synthetic experiments choose nothing on validation data: they run to the end.
_NOISE = {**_PAPER, "patience": 0, "valid_share": 0.0, "temperature": 1.0,
          "memory_size": 20, "expansion_size": 20, "noise": 1.0}  # fmt: skip


def _srns(s1: int, s2: int, temperature: float, alpha: float, t0: int) -> dict[str, Any]:
    return {"memory_size": s1, "expansion_size": s2, "temperature": temperature, "variance_weight": alpha, "warmup_epochs": t0}


PRESETS: dict[str, dict[str, Any]] = {
    "paper": _PAPER,
    "paper-ml-1m": {**_PAPER, "dim": 32, "l2": 0.01, "candidates_size": 3000, **_srns(8, 64, 10.0, 5.0, 50)},
    "paper-pinterest": {**_PAPER, "dim": 16, "l2": 0.0, "candidates_size": 600, **_srns(16, 64, 10.0, 5.0, 50)},
    "paper-ecom": {**_PAPER, "dim": 8, "l2": 0.001, "candidates_size": 600, **_srns(8, 16, 2.0, 0.0, 25)},
    "paper-ml-100k": {**_NOISE, "dim": 8, "l2": 0.001, "variance_weight": 20.0, "warmup_epochs": 100},
    "paper-ecom-toy": {**_NOISE, "dim": 32, "l2": 0.0, "variance_weight": 10.0, "warmup_epochs": 50},
}

# What the paper found best for the other methods on each data set (its table 6), where that is not the preset's own value.
BASELINES: dict[str, dict[str, dict[str, Any]]] = {
    "paper-ml-1m": {
        "nncf": {"l2": 0.0, "shared_negatives": 2048, "positives_per_item": 2},
        "enmf": {"learning_rate": 0.01, "l2": 1e-4, "negative_weight": 0.3},
        "aobpr": {"learning_rate": 5e-4, "rank_scale": 1000.0},
        "irgan": {"learning_rate": 5e-4, "l2": 1e-3, "temperature": 1.0},
        "rns_as": {"learning_rate": 5e-4, "l2": 1e-3, "temperature": 0.5, "candidates": 10},
        "advir": {"learning_rate": 5e-4, "l2": 1e-4, "temperature": 1.0, "candidates": 10, "perturbation": 0.01},
    },
    "paper-pinterest": {
        "nncf": {"shared_negatives": 2048, "positives_per_item": 2},
        "enmf": {"learning_rate": 0.005, "negative_weight": 0.01},
        "aobpr": {"learning_rate": 5e-4, "rank_scale": 2000.0},
        "irgan": {"learning_rate": 5e-4, "l2": 1e-3, "temperature": 1.0},
        "rns_as": {"learning_rate": 5e-4, "l2": 0.01, "temperature": 0.5, "candidates": 10},
        "advir": {"learning_rate": 5e-4, "l2": 1e-3, "temperature": 1.0, "candidates": 10, "perturbation": 0.01},
    },
    "paper-ecom": {
        "nncf": {"l2": 0.0, "shared_negatives": 32, "positives_per_item": 2},
        "enmf": {"learning_rate": 0.01, "negative_weight": 0.1},
        "aobpr": {"learning_rate": 5e-4, "rank_scale": 10.0},
        "irgan": {"learning_rate": 5e-4, "temperature": 2.0},
        "rns_as": {"l2": 0.0, "temperature": 1.0, "candidates": 10},
        "advir": {"learning_rate": 5e-4, "l2": 0.0, "temperature": 1.0, "candidates": 10, "perturbation": 0.01},
    },
}


def make_config(
    values: dict[str, Any] | None = None, *, preset: str | None = None, file: str | Path | None = None
) -> RunConfig:
    """A run from a preset, overridden by a TOML file, overridden by explicit values.

    >>> make_config({"dim": 8}, preset="paper-ml-1m").epochs
    400
    """
    merged: dict[str, Any] = {}
    if preset is not None:
        if preset not in PRESETS:
            raise ConfigError(f"unknown preset {preset!r}; presets: {', '.join(PRESETS)}")
        merged |= PRESETS[preset]
    explicit = {**(read_toml(Path(file)) if file is not None else {}), **(values or {})}
    if explicit.get("scorer") in WITHOUT_NEGATIVES:  # what presets say is about learning from negatives, but for the metric
        merged = {name: value for name, value in merged.items() if name in ("sampler", "metric", "valid_share")}
    sampler = str(explicit.get("sampler", merged.get("sampler")))
    if preset is not None and sampler != merged["sampler"]:
        merged = _for_sampler(sampler, merged, preset)
    merged |= explicit
    try:
        return RunConfig(**merged)
    except ValidationError as error:
        raise ConfigError("; ".join(explain(part) for part in error.errors())) from None


def _for_sampler(sampler: str, values: dict[str, Any], preset: str) -> dict[str, Any]:
    """The values of a preset for another sampler than its own: what it says to that one is not meant for this, but for the
    number of negatives."""
    fields = SAMPLERS[sampler].model_fields if sampler in SAMPLERS else {}
    own = {"noise", *SAMPLERS[values["sampler"]].model_fields} - ({"negatives"} & fields.keys())
    return {name: value for name, value in values.items() if name not in own} | BASELINES.get(preset, {}).get(sampler, {})


def read_toml(path: Path) -> dict[str, Any]:
    """The fields that a file sets."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return values
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is not valid TOML: {error}") from None
