"""Starting from a trained model: `--init RUN`. The paper starts adversarial samplers so (its section 4.3), and SRNS in its
figure 4(a-c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns import artifacts
from srns.config import RunConfig
from srns.errors import ConfigError
from srns.interactions import Interactions
from srns.ranks import Ranks
from srns.scorers import GMF, MLP, SCORERS, Model
from srns.splits import Split

Tensors = dict[str, NDArray[Any]]
ABLE = (GMF.name, MLP.name)  # a run with another scorer holds what it scores with, not all that it trains


def check(config: RunConfig, model: Model | None, own: bool) -> None:
    """Refuse what cannot start from a trained model, or from two."""
    if own or config.scorer not in ABLE:
        what = "a module of your own" if own else f"scorer {config.scorer!r}"
        raise ConfigError(f"init: {what} cannot start from a run; scorers that can: {', '.join(ABLE)}")
    if config.init is not None and model is not None:
        raise ConfigError(f"init names the run {config.init!r}, and a model is given to start from; expected one of them")


def parameters(config: RunConfig, split: Split, model: Model | None, ranks: Ranks) -> Tensors:
    """The parameters of `model` or of the run `config.init`, checked, with the rows of this rank's users."""
    tensors = model.tensors() if model is not None else _read(Path(str(config.init)), config, split, ranks)
    where = f"the run {config.init!r}" if model is None else "the model that init=... names"
    first, n_users = split.train.whole.first_user, split.train.whole.n_users
    for name, shape in SCORERS[config.scorer].shapes(n_users, split.train.n_items, config.dim, config.hidden_layers).items():
        found = tensors[name].shape if name in tensors else None
        if found != shape:
            raise ConfigError(f"init: {where} has {name!r} of shape {found}; this run expects {shape}")
    return {**tensors, "users": tensors["users"][first : first + split.train.n_users]}


def require_same(theirs: Interactions, ours: Interactions, where: str) -> None:
    """Refuse a model of other training data: its rows would be those of others, or it may know what is to be measured."""
    if theirs.fingerprint() != ours.fingerprint():
        raise _other_data(where)


def _read(folder: Path, config: RunConfig, split: Split, ranks: Ranks) -> Tensors:
    run = artifacts.read_run(folder)
    if run["status"] != "finished":
        raise ConfigError(f"init: {folder} holds an unfinished run; finish it first")
    if run.get("module"):
        raise ConfigError(f"init: {folder} holds a module of your own, not scorer {config.scorer!r}")
    for name in ("scorer", "dim", *(["hidden_layers"] if config.scorer == MLP.name else [])):
        if run["config"].get(name) != getattr(config, name):
            raise ConfigError(
                f"init: {folder} was trained with {name} = {run['config'].get(name)!r}, not {getattr(config, name)!r}"
            )
    shards = artifacts.shards_of(run)
    theirs = run["data"].get("fingerprint") or artifacts.read_data(folder, run, shards).train.fingerprint()
    if theirs != split.train.fingerprint(ranks.sum):
        raise _other_data(str(folder))
    return {name: np.array(tensor) for name, tensor in artifacts.read_model(folder, run, shards).items()}


def _other_data(where: str) -> ConfigError:
    return ConfigError(f"init: {where} was trained on other data; expected the same users, items and training interactions")
