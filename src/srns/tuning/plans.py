"""The two ways to search, from what was asked for to the trials: by Optuna, or as the paper did."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from srns.config import RunConfig
from srns.errors import ConfigError
from srns.experiments import paper_search
from srns.experiments.paper_search import paper_stages
from srns.options import TRIALS
from srns.presets import read_toml
from srns.samplers import SAMPLERS
from srns.splits import Split
from srns.tuning import grid
from srns.tuning.progress import SearchProgress
from srns.tuning.space import SHAPE, Choice, Recipe, Space, default_space, parse_space, require_shape_kept, split_vary
from srns.tuning.trial import Trial, best_of, start_of


@dataclass(frozen=True)
class Asked:
    """What is searched: `values` are fields of a run that are fixed, over those of a TOML `file` and a `preset`; `vary`
    replaces the default space (see `srns tune --help`). At most so many `trials` in all, or `minutes` of this call; so many
    `jobs` at once; the winner is trained with so many `seeds`, 0: not at all. `plot`: draw it, if matplotlib is there."""

    data: str
    values: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    file: Path | None = None
    vary: Sequence[str] = ()
    search: str = "tpe"
    out: Path | None = None
    trials: int | None = None
    minutes: float | None = None
    jobs: int = 1
    seeds: int = 1
    plot: bool = True

    def recipe(self) -> Recipe:
        return Recipe({**(read_toml(self.file) if self.file is not None else {}), **self.values}, self.preset)


@dataclass(frozen=True)
class Result:
    """What a search came to: all trials, the best of them and its configuration, and how much each field mattered: shares of 1,
    of all trials together or, if `staged`, of those of its stage."""

    trials: list[Trial]
    best: Trial | None
    config: RunConfig
    space: Space
    importance: dict[str, float]
    staged: bool = False


class TPE:
    """Optuna's search over a space."""

    def __init__(self, asked: Asked) -> None:
        from srns.tuning import tpe  # which needs Optuna
        from srns.tuning.importance import importance

        self.tpe, self.importance, self.asked = tpe, importance, asked
        self.recipe = asked.recipe()
        self.config = self.recipe.config()
        self.space = parse_space(asked.vary, self.recipe, asked.values)

    def prepare(self, split: Split) -> dict[str, Any]:
        """Fit the space to the data; returns what makes this search another than others."""
        self.start = start_of(self.config)
        l2 = self.config.l2_for(split.train.whole.n, split.train.whole.n_active)
        self.space = self.space or default_space(self.recipe, l2)
        self.default = self.tpe.default_params(self.recipe, self.space, l2)
        return {"start": self.start, "space": {name: asdict(entry) for name, entry in self.space.items()}}

    def run(self, folder: Path, console: Console) -> Result:
        asked = self.asked
        trials = asked.trials or (TRIALS if asked.minutes is None else None)
        deadline = None if asked.minutes is None else time.time() + 60 * asked.minutes
        search = self.tpe.Search(folder, asked.data, self.recipe, self.space, asked.jobs, trials, deadline, self.start)
        with SearchProgress(console, self.config.metric, trials, deadline) as progress:
            found = self.tpe.run(search, self.default, progress)
        best = best_of(found)
        # The default is tried with its own l2 to three digits; as a winner it is the recipe itself.
        config = self.config if best is None or best.note == self.tpe.DEFAULT else self.recipe.config(best.params)
        return Result(found, best, config, self.space, self.importance(found, self.space))

    def forget(self, folder: Path) -> None:
        """Remove what is kept of trials."""
        self.tpe.forget(folder)


class Paper:
    """The paper's stages, on its own recipe where no other is asked for."""

    def __init__(self, asked: Asked) -> None:
        if asked.trials is not None or asked.minutes is not None:
            raise ConfigError("--trials and --minutes go with --search tpe; the paper's search ends with its last stage")
        self.asked = asked
        given = asked.recipe().values
        if "expansion_size" in given:
            raise ConfigError("the paper searches S2/S1, not expansion_size; fix it with --vary expansion_ratio=N")
        self.recipe = Recipe({"metric": paper_search.METRIC, **given}, asked.preset or "paper")
        self.config = self.recipe.config()
        kind: Any = "real"
        method = (kind, self.config.scorer, self.config.sampler)
        tables = paper_stages(*method)
        known = {**tables.ranges, **tables.mlp}
        kept = SHAPE if self.config.init is not None else ()
        fixed = {name: (getattr(self.config, name),) for name in known if name in given or name in kept}
        varied = dict(_values(text, self.recipe, known) for text in asked.vary)
        for text in asked.vary:
            require_shape_kept(split_vary(text)[0], text, self.recipe)
        if twice := [name for name in varied if name in fixed]:
            raise ConfigError(f"--vary {twice[0]}: it is also fixed, by a flag, --set or --config; leave one of them out")
        self.search = paper_stages(*method, ranges={**fixed, **varied})

    def prepare(self, split: Split) -> dict[str, Any]:
        self.start = start_of(self.config)
        ranges = {**self.search.ranges, **self.search.mlp}
        return {"start": self.start, "space": {name: list(values) for name, values in ranges.items()}}

    def run(self, folder: Path, console: Console) -> Result:
        if SAMPLERS[self.config.sampler].learns and self.config.init is None:
            console.print(
                f"note: the paper starts {self.config.sampler} from a model trained with uniform negatives: --init RUN; "
                "without it all settings start at random",
                highlight=False,
            )
        with SearchProgress(console, self.config.metric, self.search.most) as progress:
            data, jobs = self.asked.data, self.asked.jobs
            found, best = grid.run(folder, data, self.config_of, self.start, self.search, jobs, progress)
        names = {name for trial in found for name in trial.params}
        space: Space = {name: Choice(_seen(name, found)) for name in sorted(names)}
        config = self.config_of(best.params) if best is not None else self.config
        return Result(found, best, config, space, _importance(found), staged=True)

    def config_of(self, setting: Mapping[str, Any]) -> RunConfig:
        """The recipe with a setting; what it says to SRNS is not meant for uniform negatives, and neither the scorer searched
        for nor a model of it to start from for GMF, which is tried on the way."""
        fields = {"scorer": "gmf", **setting}
        sampler = SAMPLERS[fields["sampler"]].model_fields
        own = {n: value for n, value in self.recipe.values.items() if n in RunConfig.model_fields or n in sampler}
        if fields["scorer"] != self.config.scorer:
            own.pop("init", None)
        return Recipe(own, self.recipe.preset).config(fields)


def _importance(trials: Sequence[Trial]) -> dict[str, float]:
    """What mattered in each stage; nothing without Optuna, which this search does not need otherwise."""
    if importlib.util.find_spec("optuna") is None:
        return {}
    from srns.tuning.importance import importance_by_stage

    return importance_by_stage(trials)


def _seen(name: str, trials: Sequence[Trial]) -> tuple[Any, ...]:
    return tuple(sorted({trial.params[name] for trial in trials if name in trial.params}))


def _values(text: str, recipe: Recipe, known: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Values that replace a range of the paper's tables."""
    name, values = split_vary(text)
    if name not in known:
        raise ConfigError(f"--vary {text}: the paper's search has no range of {name!r}; it has {', '.join(known)}")
    parts = [part.strip() for part in values.split(",")]
    if name == "expansion_ratio":
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise ConfigError(f"--vary {text}: expected whole numbers, such as expansion_ratio=1,2,4")
        return name, tuple(map(int, parts))
    try:
        return name, tuple(getattr(recipe.config({name: part}), name) for part in parts)
    except ConfigError as error:
        raise ConfigError(f"--vary {text}: {error}; the paper's search takes lists of values, such as {name}=A,B,C") from None
