"""One trial of a search: a configuration, trained and validated; its record; and the folder that keeps a search."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from srns.artifacts import MODEL, digest_of, read_run, replacing, shards_of
from srns.config import DATA_FIELDS, RunConfig
from srns.errors import ConfigError, ScoreError, SrnsError, TrainingError
from srns.runs import prepare
from srns.splits import Split
from srns.terms import RESUMABLE
from srns.trainer import Callback, Trainer

SEARCH = "search.json"


@dataclass(frozen=True)
class Trial:
    """A setting that was tried. `state` is complete, pruned, failed, running or waiting; `value` the best on validation so far
    (None: none yet), `start` what the trained model it started from has there (None: there is none), and `best_epoch` 0 if that
    is the best; `note` why it failed, or in which stage it was tried; `refused` whether it failed before it could begin, since
    its values do not go together or do not fit what they are for."""

    number: int
    state: str
    params: dict[str, Any]
    value: float | None = None
    best_epoch: int = 0
    epochs: int = 0
    seconds: float = 0.0
    note: str = ""
    start: float | None = None
    refused: bool = False


class Watcher(Protocol):
    """Who is told how a search goes on."""

    def show(self, trials: list[Trial]) -> None: ...

    def say(self, message: str) -> None: ...


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The best of the complete trials, the first of equals."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    return max(complete, key=lambda trial: trial.value or 0.0, default=None)


def searched_split(data: str, config: RunConfig) -> Split:
    """The data of a search, without their test part: what is not there cannot be looked at.

    Where protocol "paper" draws the negatives it ranks against, it can therefore not leave out the test items.
    """
    if config.noise is not None:
        raise ConfigError(
            "noise feeds positives of the test part to training, so a search with it would look at test data; "
            "`srns.experiments.paper_search` has the stages of the paper's noise experiments, for data set aside for them"
        )
    split = replace(prepare(data, config), test=None)
    if split.valid is None or not len(split.valid):
        raise ConfigError(f"{split.name} has no validation part to choose by; use another --split or --valid-share")
    return split


@lru_cache(maxsize=1)
def _split(data: str, fields: str) -> Split:
    """Read once for all trials of a process."""
    return searched_split(data, RunConfig(**json.loads(fields)))


def start_of(config: RunConfig) -> str | None:
    """What the run holds that trials start from: a digest of its parameters, by the checksums that reading them is held to."""
    if config.init is None:
        return None
    folder = Path(config.init)
    run = read_run(folder)
    if run["status"] != "finished":
        raise ConfigError(f"init: {folder} holds an unfinished run; finish it first")
    digests = [digest_of(shard + MODEL, folder, run) for shard in shards_of(run)]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def require_start(config: RunConfig, start: str | None) -> None:
    """Refuse a run, trained anew meanwhile, that no longer holds what the search is known by."""
    if start is not None and start_of(config) != start:
        raise ConfigError(f"init: {config.init} holds another model than when the search began; begin anew with another --out")


def train_once(
    dataset: str, config: Mapping[str, Any], watch: Callback | None = None, start: str | None = None
) -> dict[str, Any]:
    """Train one configuration (all fields of a run) and say what validation found, as plain data: a job of
    `srns.experiments.store`, and what each trial of Optuna does. `start` is what its `init` has to hold (see `start_of`).

    `values` has the metric after each epoch, None where it was not validated, `start` that of the model it started from, None
    where it was random; `failed` says why training broke down.
    """
    run = RunConfig(**config)
    require_start(run, start)
    split = _split(dataset, json.dumps({name: config[name] for name in DATA_FIELDS if name in config}))
    begun = time.perf_counter()
    try:
        training = Trainer(run, split, callbacks=[] if watch is None else [watch]).run()
    except (TrainingError, ScoreError) as error:
        return {"failed": str(error), "seconds": time.perf_counter() - begun}
    values = [record.valid.get(run.metric) for record in training.history]
    found = {"values": values, "start": training.start.get(run.metric), "best_epoch": training.best_epoch}
    return {**found, "seconds": time.perf_counter() - begun}


def best_value(found: Mapping[str, Any]) -> float:
    """What a trial counts for: its best epoch or, as in training, its start if no epoch was better; -inf where it failed."""
    values = (found.get("start"), *found.get("values", ()))
    return max((value for value in values if value is not None), default=-math.inf)


def threads_for(config: RunConfig, jobs: int) -> int:
    """Threads of each of so many trials at once; what they find does not depend on it."""
    return config.threads or max(1, (os.cpu_count() or 1) // jobs)


def agree(folder: Path, search: Mapping[str, Any]) -> bool:
    """Note what is searched in a folder, or refuse where something else is; whether it had begun before.

    `search` has the fields of the recipe as `config`, and after these the `start` of trials (see `start_of`).
    """
    path, now = folder / SEARCH, json.loads(json.dumps(search))
    if not path.exists():
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return False
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SrnsError(f"{path} is damaged: {error}; choose another --out") from None
    for what, then, value in _differences(before, now):
        if what == "start":  # of the same `init`, which is among what comes before
            other = f"holds a search that started from another model than {now['config']['init']} holds now"
            unknown = "does not say which model its trials started from"
            raise ConfigError(f"{folder} {other if before.get(what) else unknown}; choose another --out")
        raise ConfigError(
            f"{folder} holds a search with {what} = {then}, not {value}; go on with the same values, or choose another --out"
        )
    return True


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for part in dict.fromkeys([*now, *before]):
        one, other = before.get(part), now.get(part)
        if isinstance(one, dict) and isinstance(other, dict):
            for name in dict.fromkeys([*other, *one]):
                if one.get(name) != other.get(name):
                    yield f"{part}: {name}", json.dumps(one.get(name)), json.dumps(other.get(name))
        elif one != other:
            yield part, json.dumps(one), json.dumps(other)


def identity(config: RunConfig) -> dict[str, Any]:
    """The fields of a recipe that decide what trials find."""
    free = {*RESUMABLE} - {"epochs", "patience"}
    return {name: value for name, value in config.model_dump(mode="json").items() if name not in free}
