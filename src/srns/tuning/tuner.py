"""A whole search, from the name of the data to the compared winner; what `srns tune` does."""

from __future__ import annotations

import importlib.util
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from srns import starts
from srns.artifacts import read_run, replacing
from srns.config import DATA_FIELDS, LEARNING, MODEL, RunConfig
from srns.display import Progress
from srns.drawing import save
from srns.errors import ConfigError, SrnsError
from srns.experiments.store import refuse_database
from srns.locks import owned
from srns.options import flags_of, train_command
from srns.presets import make_config
from srns.ranks import ALONE
from srns.runs import environment, short_name
from srns.scorers import MLP
from srns.splits import Split
from srns.trainer import Trainer
from srns.tuning.finish import Finalist, compare
from srns.tuning.grid import RESULTS
from srns.tuning.plans import TPE, Asked, Paper, Result
from srns.tuning.plot import draw
from srns.tuning.space import SHAPE
from srns.tuning.trial import SEARCH, Trial, agree, identity, require_start, searched_split

SEARCHES: dict[str, type[TPE] | type[Paper]] = {"tpe": TPE, "paper": Paper}
RESULT, PICTURE = "result.json", "search"


def tune(asked: Asked, console: Console | None = None) -> dict[str, Any]:
    """Search, train the winner and the default recipe, compare them on test data; returns all of it as plain data, which is
    also kept in the folder. Progress goes to `console`."""
    console = console or Console(quiet=True)
    if asked.search not in SEARCHES:
        raise ConfigError(f"--search {asked.search!r}: expected {' or '.join(SEARCHES)}")
    refuse_database(asked.data)
    plan = SEARCHES[asked.search](asked)
    split = searched_split(asked.data, plan.config)
    Trainer(plan.config, split)  # what cannot begin, for want of torch for instance, says so before anything is kept
    known = {"search": asked.search, "data": asked.data, "config": identity(plan.config), "fingerprint": split.fingerprint()}
    known |= plan.prepare(split)
    require_fit(plan.config, split)
    folder = folder_of(asked, plan.config)
    with owned(folder):
        if agree(folder, known):
            console.print(f"going on with the search in {folder}", highlight=False, markup=False, soft_wrap=True)
        try:
            result = plan.run(folder, console)
        except SrnsError:
            if isinstance(plan, Paper) and not any((folder / RESULTS).glob("*.json")):
                (folder / SEARCH).unlink(missing_ok=True)  # nothing to go on from, and other values may be what it takes
            raise
        if isinstance(plan, TPE) and result.trials and all(trial.refused for trial in result.trials):
            # Its folder would refuse the command that is mended, and there is nothing in it to go on from.
            plan.forget(folder)
            (folder / SEARCH).unlink(missing_ok=True)
            raise ConfigError(f"no trial could begin, and none is kept; the first: {result.trials[0].note}")
        require_start(plan.config, plan.start)
        best = _best(result)
        default = Finalist("default", asked.recipe().config())
        winner = default if result.config == default.config else Finalist(f"trial-{best.number}", result.config)
        answer = _answer(asked, folder, result, best, winner) | {"default": _recipe(asked, default.config)}
        if asked.seeds:
            with Progress(console) as progress:
                answer["test"] = compare(asked.data, folder, winner, default, asked.seeds, [progress])
        drawn = _drawn(folder, result, best, plan.config.metric) if asked.plot else []
        answer["plots"] = [str(path) for path in drawn]
        with replacing(folder / RESULT) as path:
            path.write_text(json.dumps(answer | {"environment": environment()}, indent=1) + "\n", encoding="utf-8")
    return answer


def require_fit(config: RunConfig, split: Split) -> None:
    """Refuse a run to start from that is of another shape or of other data, naming the flags that it was trained with: else
    each trial would find it out by itself."""
    if config.init is None:
        return
    run = read_run(Path(config.init))
    theirs, ours = run["config"], config.model_dump(mode="json")
    if not run.get("module"):  # which has no flags to name
        names = [name for name in SHAPE if name != "hidden_layers" or config.scorer == MLP.name]
        if other := {name: theirs[name] for name in names if name in theirs and theirs[name] != ours[name]}:
            was = ", ".join(f"{name} = {value!r}, not {ours[name]!r}" for name, value in other.items())
            raise ConfigError(f"init: {config.init} was trained with {was}; search with {shlex.join(flags_of(other))}")
    try:
        starts.parameters(config, split, None, ALONE)
    except ConfigError as error:
        other = {name: theirs[name] for name in DATA_FIELDS if name in theirs and theirs[name] != ours[name]}
        given = {name: value for name, value in other.items() if value is not None}  # no flag says None
        raise ConfigError(f"{error}; it had {shlex.join(flags_of(given))}" if given else str(error)) from None


def folder_of(asked: Asked, config: RunConfig) -> Path:
    """tuning/<data>-<sampler>, where no other is asked for; always the same, so that the same command goes on."""
    return asked.out or Path("tuning") / (short_name(asked.data, config) + "-paper" * (asked.search == "paper"))


def _best(result: Result) -> Trial:
    if result.best is None:
        reasons = [trial.note for trial in result.trials if trial.state == "failed"]
        why = f"; the first: {reasons[0]}" if reasons else ""
        raise SrnsError(f"no trial came to a result: {len(reasons)} of {len(result.trials)} failed{why}")
    return result.best


def _answer(asked: Asked, folder: Path, result: Result, best: Trial, winner: Finalist) -> dict[str, Any]:
    default = next((trial.value for trial in result.trials if trial.note == "default"), None)
    start = None
    if best.start is not None and best.value is not None:
        start = {"run": result.config.init, "value": best.start, "beaten": best.value > best.start}
    return {
        "data": asked.data,
        "search": asked.search,
        "out": str(folder),
        "metric": result.config.metric,
        "space": {name: str(entry) for name, entry in result.space.items()},
        "best": {**asdict(best), "is_default": winner.name == "default", "default_value": default},
        "start": start,
        "config": result.config.model_dump(mode="json"),
        # Where the run that trials started from stays, there is nothing to train.
        "command": train_command(asked.data, winner.config) if start is None or start["beaten"] else None,
        "importance": result.importance,
        "trials": [asdict(trial) for trial in result.trials],
    }


def _recipe(asked: Asked, config: RunConfig) -> dict[str, Any]:
    """What the winner is compared with, beside what `srns train` does without flags: the `fixed` fields of the model and of
    learning whose value is another than by default, or than that of the `preset`; the `flags` that say so; the value by default
    of each, as `instead`; and the command `plain` without them all."""
    method = {"scorer": config.scorer, "sampler": config.sampler}  # on which other defaults depend
    before = {
        **make_config(method, preset=asked.preset).model_dump(),
        **{name: getattr(make_config(preset=asked.preset), name) for name in method},
    }
    without = {**RunConfig(**method).model_dump(), **{name: getattr(RunConfig(), name) for name in method}}
    mine = {name: getattr(config, name) for name in dict.fromkeys([*_fields(config, True), *(config.model_extra or {})])}
    # Chance is no part of a recipe.
    fixed = {name: value for name, value in mine.items() if name != "seed" and value is not None and value != before[name]}
    rest = {name: getattr(config, name) for name in _fields(config, False)} | {"seed": config.seed}
    named = {"preset": asked.preset} if asked.preset is not None else {}
    return {
        "preset": asked.preset,
        "fixed": fixed,
        "instead": {name: without[name] for name in fixed},
        "flags": shlex.join(flags_of(named | fixed)),
        "plain": train_command(asked.data, RunConfig(**rest)),
    }


def _fields(config: RunConfig, recipe: bool) -> list[str]:
    """The fields of a run that are part of a recipe, or those that are not: about data, measuring and running."""
    fields = type(config).model_fields.items()
    return [name for name, field in fields if (field.json_schema_extra in (MODEL, LEARNING)) == recipe]


def _drawn(folder: Path, result: Result, best: Trial, metric: str) -> list[Path]:
    """The figure of a search, where matplotlib is there to draw it."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    return save(draw(result, metric, best), folder / PICTURE)
