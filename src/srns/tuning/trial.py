"""One trial of a search: a configuration, trained and validated; its record; and the folder that keeps a search."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from srns.artifacts import replacing
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
    (None: none yet); `note` why it failed, or in which stage it was tried."""

    number: int
    state: str
    params: dict[str, Any]
    value: float | None = None
    best_epoch: int = 0
    epochs: int = 0
    seconds: float = 0.0
    note: str = ""


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


def train_once(dataset: str, config: Mapping[str, Any], watch: Callback | None = None) -> dict[str, Any]:
    """Train one configuration (all fields of a run) and say what validation found, as plain data: a job of
    `srns.experiments.store`, and what each trial of Optuna does.

    `values` has the metric after each epoch, None where it was not validated; `failed` says why training broke down.
    """
    run = RunConfig(**config)
    split = _split(dataset, json.dumps({name: config[name] for name in DATA_FIELDS if name in config}))
    start = time.perf_counter()
    try:
        training = Trainer(run, split, callbacks=[] if watch is None else [watch]).run()
    except (TrainingError, ScoreError) as error:
        return {"failed": str(error), "seconds": time.perf_counter() - start}
    values = [record.valid.get(run.metric) for record in training.history]
    return {"values": values, "best_epoch": training.best_epoch, "seconds": time.perf_counter() - start}


def best_value(found: Mapping[str, Any]) -> float:
    """What a trial counts for: its best epoch, as in training; -inf where it failed."""
    return max((value for value in found.get("values", ()) if value is not None), default=-math.inf)


def threads_for(config: RunConfig, jobs: int) -> int:
    """Threads of each of so many trials at once; what they find does not depend on it."""
    return config.threads or max(1, (os.cpu_count() or 1) // jobs)


def agree(folder: Path, search: Mapping[str, Any]) -> bool:
    """Note what is searched in a folder, or refuse where something else is; whether it had begun before."""
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
