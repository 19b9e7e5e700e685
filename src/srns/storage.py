"""Trained models on disk, whole or not at all; the format is that of `srns.artifacts`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srns import artifacts
from srns.config import RunConfig
from srns.engines import Factory
from srns.errors import ArtifactError, ConfigError
from srns.presets import make_config
from srns.ranks import ALONE, Ranks
from srns.scorers import SCORERS, Model
from srns.splits import Split


def save_model(
    folder: Path,
    model: Model,
    split: Split,
    run: dict[str, Any],
    ranks: Ranks = ALONE,
    memories: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Write a whole run folder, or leave it as it was; of several ranks each writes its users, and the first run.json.

    `memories` are those of the sampler (`srns.trainer.Training`), for an update; without any, there is no file of them.
    """
    parts = {
        name: part for name, part in (("train", split.train), ("valid", split.valid), ("test", split.test)) if part is not None
    }
    shard = artifacts.shard_name(ranks.rank, ranks.size)
    names = (artifacts.IDS, artifacts.INTERACTIONS, *([artifacts.MEMORIES] if memories else []), artifacts.MODEL)
    with artifacts.staging(folder / shard, names if ranks.size > 1 else (*names, artifacts.RUN)) as stage:
        files = artifacts.write_data(stage, parts, split.negatives)
        files[artifacts.MODEL] = artifacts.write_tensors(stage / artifacts.MODEL, model.tensors())
        if memories:
            files[artifacts.MEMORIES] = artifacts.write_tensors(stage / artifacts.MEMORIES, memories)
        if ranks.size == 1:
            artifacts.write_run(stage, {"data": {"name": split.name}, **run, "files": files})
    if ranks.size == 1:
        return
    every = {of + name: digest for of, theirs in ranks.gather((shard, files)) for name, digest in theirs.items()}
    if ranks.rank == 0:
        artifacts.write_run(folder, {**run, "files": every, "shards": ranks.size})
        artifacts.remove_shards(folder, ranks.size)
    ranks.gather(None)  # nobody goes on before the run is there


def load_model(
    folder: Path, scorer: Factory | None = None, share: tuple[int, int] = (0, 1)
) -> tuple[RunConfig, Model, Split, tuple[int, int]]:
    """What `save_model` wrote, for `Recommender.load`, and what share of the users in it is the caller's own."""
    run = artifacts.read_run(folder)
    if run.get("status") != "finished":
        raise ArtifactError(f"{folder} holds an unfinished run; finish it with `srns train ... --out {folder} --resume`")
    if run.get("module", False) != (scorer is not None):
        needed = "a module of your own, and needs" if scorer is None else "no module of your own, and takes no"
        raise ArtifactError(f"{folder} holds {needed} scorer=...: what makes the module from the training data")
    config = saved_config(folder, run)
    shards, left = _share(artifacts.shards_of(run), *share)
    split = artifacts.read_data(folder, run, shards)
    tensors = artifacts.read_model(folder, run, shards)
    if scorer is not None:
        return config, _own_model(scorer, split, tensors), split, left
    kind, where = SCORERS[config.scorer], folder / artifacts.MODEL
    shapes = kind.shapes(split.train.n_users, split.train.n_items, config.dim, config.hidden_layers)
    for name, shape in shapes.items():
        dtype = np.dtype(getattr(kind, "dtypes", {}).get(name, np.float32))
        if name not in tensors or tensors[name].shape != shape or tensors[name].dtype != dtype:
            raise ArtifactError(f"{where} does not fit its run: tensor {name!r} is not {dtype} of shape {shape}")
    try:
        model = kind.from_tensors(tensors)
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{where} does not fit its run: {error}") from None
    return config, model, split, left


def load_memories(folder: Path) -> dict[str, NDArray[Any]]:
    """What the sampler of a run remembered at its end; empty where it kept nothing."""
    run = artifacts.read_run(folder)
    if artifacts.MEMORIES not in run["files"]:
        return {}
    return artifacts.read_tensors(folder / artifacts.MEMORIES, artifacts.digest_of(artifacts.MEMORIES, folder, run))[0]


def _share(shards: list[str], rank: int, size: int) -> tuple[list[str], tuple[int, int]]:
    """The shards that the r-th of several readers takes, and what share of the users in them is its own: where there are fewer
    shards than readers, each reads all and takes a share."""
    if size > len(shards):
        return shards, (rank, size)
    return [shards[each] for each in np.array_split(np.arange(len(shards)), size)[rank]], (0, 1)


def _own_model(scorer: Factory, split: Split, tensors: dict[str, NDArray[Any]]) -> Model:
    from srns.scorers.modules import ModuleModel

    try:
        return ModuleModel(scorer(split.train)).from_tensors(tensors)
    except RuntimeError as error:
        raise ArtifactError(f"the saved parameters do not fit the module that scorer=... made: {error}") from None


def saved_config(folder: Path, run: dict[str, Any]) -> RunConfig:
    """The configuration in run.json."""
    try:
        return make_config({name: value for name, value in run["config"].items() if value is not None})
    except ConfigError as error:
        raise ArtifactError(f"{folder / artifacts.RUN}: {error}") from None
