"""A trained model goes on with new interactions, users and items: what `srns update` does, between one run and the next.

The data of both are merged and divided so that nothing learnt is measured by (`srns.merging`), parameters and memories go to
their new rows (`srns.carrying`), and the one training loop runs a few epochs over all interactions with a fresh optimizer. What
is solved rather than learnt (ease, als, popularity) is solved again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from srns import starts
from srns.carrying import carry_memories, carry_model
from srns.config import MODEL, RunConfig
from srns.databases import is_url, shown
from srns.datasets import load
from srns.errors import ConfigError, DataError
from srns.evaluation import evaluate
from srns.interactions import Interactions
from srns.judging import Abroad
from srns.merging import Merged, merge
from srns.presets import make_config
from srns.readers import read
from srns.recommender import Recommender
from srns.runs import Beginning, data_name, make_run, reading
from srns.samplers import SAMPLERS
from srns.samplers.srns import SRNSState
from srns.scorers import WITHOUT_NEGATIVES, Model
from srns.splits import Split
from srns.terms import resolve_protocol
from srns.trainer import Callback, Trainer

OWN = ("scorer", "init", "noise")  # of the run alone, beside the other fields of its model
RECIPE = ("epochs", "learning_rate")  # what the pace of an update follows from: those of the training that its model began with


def update(
    model: Recommender, data: Any, *, callbacks: Sequence[Callback] = (), split: str | None = None, **fields: Any
) -> Recommender:
    """`model` with what `data` add: Interactions, or anything `srns.read` takes. Returns a new Recommender; `model` stays.

    Settings are those of `model` unless `fields` say otherwise, at the pace of `RunConfig.pace_of_update`. `split` says how the
    new interactions are divided, see `srns.merging.merge`; by default all are learnt from where `model` has held nothing out.

    >>> import numpy as np
    >>> from srns.simulation import simulate
    >>> rows = simulate(n_users=60, n_items=50, n_interactions=900).interactions
    >>> last = rows.time > np.quantile(rows.time, 0.9)
    >>> model = Recommender(dim=8, epochs=3, engine="plain").fit(rows.select(~last))
    >>> newer = update(model, rows.select(last))
    >>> bool(newer.updated_["new"]["interactions"] == last.sum())
    True
    """
    new = data if isinstance(data, Interactions) else read(data)
    config = config_of(model, fields | ({"split": split} if split is not None else {}))
    merged = _merged(model, new, config)
    config = _paced(config, merged, fields)
    begun_with = _begin(model, merged, config)
    training = Trainer(config, begun_with.split, callbacks=callbacks, init=begun_with.init, memories=begun_with.memories).run()
    newer = Recommender(config)._use(training.model, begun_with.split, training)
    newer.updated_ = dict(begun_with.record["updated"])
    return newer


def update_run(
    run: Path,
    data: str | Path,
    fields: Mapping[str, Any],
    *,
    out: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Update the model of the folder `run` with `data`, measure it beside the model before, save it in a folder of its own;
    returns the content of run.json with that folder as `run`. `fields` win over those of `run`."""
    if resume and out is None:
        raise ConfigError("--resume needs --out: the folder of the update to go on with")
    run = run.resolve() if run.is_symlink() else run  # the link may lead elsewhere tomorrow
    model = Recommender.load(run)
    config = config_of(model, {**fields, **_source(model.config, data, fields)}).model_copy(update={"init": str(run)})
    merged = _merged(model, _read_new(data, config), config)
    config = _paced(config, merged, fields)
    called = _name(run, data_name(data, config))
    return make_run(
        shown(data), config, lambda config: _begin(model, merged, config, run), out, resume, callbacks, called=called
    )


def _name(run: Path, data: str) -> str:
    """Of the folder: <run>-<data>, so that one sees what it goes on from; where the run has its name from data called the same,
    as every night, the number that the folder gets tells the two apart."""
    return f"{re.sub(rf'-{re.escape(data)}(-[0-9]+)?$', '', run.resolve().name)[:120]}-{data}"


def config_of(model: Recommender, fields: Mapping[str, Any]) -> RunConfig:
    """The settings of an update but for its pace: those that `model` was trained with, and what `fields` say."""
    before = model.config
    if model.module is not None:
        raise ConfigError("a module of your own cannot be updated: which of its parameters belong to which user is not known")
    if before.noise is not None:
        raise ConfigError("a run with noise is an experiment on its own data, and cannot be updated")
    if before.scorer not in WITHOUT_NEGATIVES and before.scorer not in starts.ABLE:
        raise ConfigError(
            f"scorer {before.scorer!r} cannot be updated: its run holds what it scores with, not all that it trains; train anew"
        )
    kept = {name for name, field in RunConfig.model_fields.items() if field.json_schema_extra == MODEL} | set(OWN)
    if wrong := [name for name in fields if name in kept]:
        raise ConfigError(f"{wrong[0]} cannot be changed by an update, which goes on with the model there is; train anew")
    values = {name: value for name, value in before.model_dump(exclude={"init"}).items() if value is not None}
    if fields.get("sampler", before.sampler) != before.sampler:
        values = {name: value for name, value in values.items() if name not in SAMPLERS[before.sampler].model_fields}
    return make_config({**values, **_recipe(model), **fields})


def _merged(model: Recommender, new: Interactions, config: RunConfig) -> Merged:
    limits = {name: getattr(config, name) for name in ("min_user", "min_item")}
    return merge(model.split_, new, config.split, seed=config.split_seed, **limits)


def _paced(config: RunConfig, merged: Merged, fields: Mapping[str, Any]) -> RunConfig:
    """`config` with the epochs and step size of an update, where `fields` do not say them. Without a new interaction there is
    nothing to learn: the model stays as it is. Validation is once, at the end: where users have few positives, it takes longer
    than an epoch."""
    if config.scorer in WITHOUT_NEGATIVES:
        return config
    train = merged.split.train
    pace = config.pace_of_update(len(train), train.whole.n_active) | ({} if merged.new["interactions"] else {"epochs": 0})
    paced = config.model_copy(update={name: value for name, value in pace.items() if name not in fields})
    return paced if "validate_every" in fields else paced.model_copy(update={"validate_every": max(1, paced.epochs)})


def _source(before: RunConfig, data: str | Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The table or query of a run is for a database, and gives way to another; a fixed split has no columns."""
    kept = {name: getattr(before, name) for name in ("table", "query") if getattr(before, name) is not None}
    if is_url(data) and not {"table", "query"} & fields.keys():
        return kept
    return {name: None for name in kept if name not in fields}


def _read_new(data: str | Path, config: RunConfig) -> Interactions:
    columns, options = reading(config)
    for name in ("min_user", "min_item"):  # of old and new together, see `merge`
        options.pop(name, None)
    if not is_url(data) and (database := [name for name in ("table", "query") if name in options]):
        raise ConfigError(f"--{database[0]} is for databases, named by a URL; {data} is none")
    found = load(data, **columns, **options)
    if isinstance(found, Split):
        raise DataError(f"{shown(data)}: holds a fixed split; an update takes interactions, which it divides itself")
    return found


def _begin(model: Recommender, merged: Merged, config: RunConfig, where: Path | None = None) -> Beginning:
    """What the update of `model`, whose run is in the folder `where`, begins with."""
    before, classical = model.split_.train, config.scorer in WITHOUT_NEGATIVES
    memories: dict[str, Any] = {}
    if classical:
        start, note = None, f"scorer {config.scorer!r} is solved anew on all interactions"
    else:
        start = carry_model(model.model_, before, merged, config)
        memories, note = _memories(model, merged, start, config)
    split = replace(merged.split, notes=(*merged.split.notes, *([note] if note else [])))
    record: dict[str, Any] = {
        "from": None if where is None else str(where),
        "fingerprint": before.fingerprint(),
        "new": merged.new,
        "recipe": _recipe(model),
    }
    if where is not None:  # a run is measured, a model in memory is not
        record["metrics_before"] = _measured(model, split, config)
    return Beginning(split, start, memories, {"updated": record})


def _recipe(model: Recommender) -> dict[str, Any]:
    """Epochs and step size of the training that the model began with, however often it has been updated since."""
    found: dict[str, Any] = model.updated_.get("recipe") or {name: getattr(model.config, name) for name in RECIPE}
    return found


def _memories(model: Recommender, merged: Merged, start: Model, config: RunConfig) -> tuple[dict[str, Any], str]:
    """The sampler's memories under new numbers, or none and the reason."""
    sampler = config.make_sampler()
    if sampler != model.config.make_sampler():
        return {}, "the sampler has other settings than that of the run, and begins without its memories"
    found = model.memories()
    if not found:
        return {}, f"the run keeps no memories of sampler {config.sampler!r}, which begins anew" * (config.sampler == "srns")
    state = sampler.start(merged.split.train, seed=config.seed)
    assert isinstance(state, SRNSState)
    return carry_memories(found, start, state.memory, merged), ""


def _measured(model: Recommender, split: Split, config: RunConfig) -> dict[str, float]:
    """What the model before gives on the new test data, as far as it knows their users and items."""
    if split.test is None or not len(split.test):
        return {}
    abroad = Abroad(model.model_, model.split_.train, split.train)
    return dict(evaluate(abroad, split, on="test", protocol=resolve_protocol(config, split), ks=config.ks))
