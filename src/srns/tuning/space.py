"""What a search varies: for each scorer and sampler, fields of a run and their ranges, in one table; and the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from srns.config import LEARNING, MODEL, RunConfig
from srns.errors import ConfigError
from srns.presets import make_config
from srns.samplers.advir import AdvIR
from srns.scorers import GMF, MLP, WITHOUT_NEGATIVES
from srns.terms import idle

FORM = "expected FIELD=LOW:HIGH, FIELD=LOW:HIGH:log or FIELD=A,B,C"
# Fields under these headings that are no settings to choose among: luck, a starting point, and false negatives from test.
NOT_SEARCHED = ("seed", "init", "noise")
SHAPE = ("scorer", "dim", "hidden_layers")  # what a model must have in common with one that it starts from
PERTURBATION = 0.01  # of advir, as the paper found best on each data set: the default of a run, 0, leaves rns_as


@dataclass(frozen=True)
class Range:
    """Numbers from low to high: `log`, as many between 1 and 2 as between 10 and 20; `whole`, no fractions.

    In the table, `of` names what the bounds are multiples of ("l2": what "auto" comes to on the data, "epochs"), and `least` a
    field below whose value the range must not begin.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False
    of: str = ""
    least: str = ""

    def contains(self, value: Any) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def settle(self, value: Any) -> Any:
        """A number as it is used: whole, or of three digits, which is as exact as a search can be."""
        return int(value) if self.whole else min(max(float(f"{value:.3g}"), self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{', log' * self.log}"


@dataclass(frozen=True)
class Choice:
    """One of several values, in no order."""

    values: tuple[Any, ...]

    def contains(self, value: Any) -> bool:
        return value in self.values

    def settle(self, value: Any) -> Any:
        return value

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))


Entry = Range | Choice
Space = dict[str, Entry]

_L2 = Range(0.1, 10, log=True, of="l2")
_LEARNT: Space = {"learning_rate": Range(5e-4, 5e-2, log=True), "l2": _L2, "dim": Choice((32, 64, 128, 256))}
BY_SCORER: dict[str, Space] = {
    "gmf": _LEARNT,
    "mlp": {**_LEARNT, "hidden_layers": Range(0, 3, whole=True)},
    "lightgcn": {**_LEARNT, "propagation_layers": Range(1, 4, whole=True)},
    "popularity": {},
    "ease": {"l2": Range(0.05, 50, log=True, of="l2")},
    "als": {"dim": Choice((32, 64, 128, 256)), "l2": Range(0.05, 20, log=True, of="l2"), "confidence": Range(1, 100, log=True)},
}
_COUNT = Range(4, 64, log=True, whole=True)
_POOL: Space = {"candidates": Range(16, 256, log=True, whole=True)}
_TEMPERATURE: Space = {"temperature": Range(0.1, 10, log=True)}
_GENERATOR: Space = {**_TEMPERATURE, "generator_learning_rate": Range(1e-4, 1e-2, log=True)}
_FEW: Space = {"candidates": Range(4, 64, log=True, whole=True)}
BY_SAMPLER: dict[str, Space] = {
    "srns": {
        "memory_size": replace(_COUNT, least="negatives"),
        "expansion_size": Range(8, 256, log=True, whole=True),
        "temperature": Range(0.25, 16, log=True),
        "variance_weight": Range(0.1, 50, log=True),
        "warmup_epochs": Range(0, 1, whole=True, of="epochs"),
    },
    "uniform": {"negatives": _COUNT},
    "popularity": {"negatives": _COUNT, "power": Range(0, 1)},
    "nncf": {
        "shared_negatives": Range(32, 2048, log=True, whole=True),
        "positives_per_item": Choice((1, 2, 4)),
        "power": Range(0, 1),
    },
    "aobpr": {"negatives": _COUNT, "rank_scale": Range(5, 2000, log=True)},
    "irgan": _GENERATOR,
    "rns_as": {**_GENERATOR, **_FEW},
    "advir": {**_GENERATOR, **_FEW, "perturbation": Choice((0.0, 0.01, 0.1, 1.0))},
    "dns": _POOL,
    "dns_mn": {"top": Range(16, 64, log=True, whole=True)},  # of 64 candidates, for 16 negatives
    "softmax": {**_POOL, **_TEMPERATURE},
    "bns": {"candidates": Range(8, 128, log=True, whole=True), "risk_weight": Range(0.5, 50, log=True)},
    "ahns": {**_POOL, "hardness_scale": Range(0.1, 10, log=True), "hardness_offset": Range(0, 2)},
    "adasir": {"negatives": _COUNT, "memory_size": Range(64, 512, log=True, whole=True)},
    "mixgcf": _FEW,
    "dens": {**_FEW, "warmup_epochs": Range(0.25, 5, log=True, whole=True, of="epochs")},
    "in_batch": {},
    "enmf": {"negative_weight": Range(0.01, 0.7, log=True), "dropout": Range(0, 0.7)},
}


@dataclass(frozen=True)
class Recipe:
    """What all trials share: explicit values over those of a preset. A trial is this with some values of its own."""

    values: Mapping[str, Any]
    preset: str | None = None

    def config(self, varied: Mapping[str, Any] | None = None) -> RunConfig:
        values = {**self.values, **(varied or {})}
        config = make_config(values, preset=self.preset)
        perturbed = config.sampler == AdvIR.name and config.scorer in (GMF.name, MLP.name)
        if perturbed and not config.perturbation and "perturbation" not in values:
            return make_config({**values, "perturbation": PERTURBATION}, preset=self.preset)
        return config


def default_space(recipe: Recipe, l2: float) -> Space:
    """The table's entries for the recipe's scorer and sampler, without the fields that it fixes; `l2` is its weight on the
    data."""
    config = recipe.config()
    table = BY_SCORER[config.scorer]
    if config.scorer not in WITHOUT_NEGATIVES:
        table = {**table, **BY_SAMPLER[config.sampler]}
    space = {
        name: _resolved(entry, config, l2)
        for name, entry in table.items()
        if name not in recipe.values and name not in idle(config) and not (config.init is not None and name in SHAPE)
    }
    if not space:
        raise ConfigError(
            f"nothing to search: scorer {config.scorer!r} has no settings or all are fixed; --vary says what may vary: {FORM}"
        )
    return space


def _resolved(entry: Entry, config: RunConfig, l2: float) -> Entry:
    if isinstance(entry, Choice):
        return entry
    scale = {"": 1.0, "l2": l2, "epochs": float(config.epochs)}[entry.of]
    low, high = entry.low * scale, entry.high * scale
    if entry.of == "l2":  # round numbers, since people read them
        low, high = float(f"{low:.2g}"), float(f"{high:.2g}")
    if entry.whole:
        low, high = max(float(math.floor(low)), 1.0 if entry.log else 0.0), float(math.ceil(high))
    low = max(low, float(getattr(config, entry.least, low)))
    return Range(low, max(high, low), entry.log, entry.whole)


def parse_space(texts: Sequence[str], recipe: Recipe, fixed: Iterable[str] = ()) -> Space:
    """The user's own ranges, from `--vary`; `fixed` are fields that have their value already."""
    space: Space = {}
    for text in texts:
        name, entry = _parsed(text, recipe)
        require_shape_kept(name, text, recipe)
        if name in fixed:
            raise ConfigError(f"--vary {text}: {name!r} is also fixed, by a flag or --set; leave one of them out")
        if name in space:
            raise ConfigError(f"--vary {text}: {name!r} is varied twice")
        space[name] = entry
    return space


def require_shape_kept(name: str, text: str, recipe: Recipe) -> None:
    """Refuse to vary what all models that start from a run have of it."""
    if name in SHAPE and recipe.config().init is not None:
        raise ConfigError(
            f"--vary {text}: {name!r} is that of the run that trials start from; leave it out, or leave out --init"
        )


def split_vary(text: str) -> tuple[str, str]:
    """The field, named as flags or as fields are, and what follows it."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise ConfigError(f"--vary {text!r}: {FORM}")
    return name.strip().removeprefix("--").replace("-", "_"), values.strip()


def _parsed(text: str, recipe: Recipe) -> tuple[str, Entry]:
    name, values = split_vary(text)
    _refuse(name, text)
    if ":" not in values:
        return name, Choice(_choices(name, text, values.split(","), recipe))
    low, high, *rest = values.split(":")
    if rest not in ([], ["log"]):
        raise ConfigError(f"--vary {text}: {FORM}")
    ends = []
    for end in (low, high):
        value = _value(name, text, end, recipe)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"--vary {text}: {end!r} is no number; {FORM}")
        ends.append(value)
    if ends[0] >= ends[1]:
        raise ConfigError(f"--vary {text}: the range must begin below its end, found {ends[0]!r} and {ends[1]!r}")
    if rest and ends[0] <= 0:
        raise ConfigError(f"--vary {text}: a range on a log scale must begin above 0, found {ends[0]!r}")
    return name, Range(ends[0], ends[1], log=bool(rest), whole=all(isinstance(end, int) for end in ends))


def _choices(name: str, text: str, parts: Sequence[str], recipe: Recipe) -> tuple[Any, ...]:
    values = tuple(_value(name, text, part.strip(), recipe) for part in parts)
    if len(set(values)) < len(values) or len(values) < 2:
        raise ConfigError(f"--vary {text}: expected at least two different values; {FORM}")
    return values


def _value(name: str, text: str, value: str, recipe: Recipe) -> Any:
    """A value as the field has it, after the field's own check."""
    try:
        config = recipe.config({name: value})
    except ConfigError as error:
        raise ConfigError(f"--vary {text}: {error}") from None
    if (reason := idle(config).get(name)) is not None:
        raise ConfigError(f"--vary {text}: {name} decides nothing, since {reason}")
    return getattr(config, name)


def _refuse(name: str, text: str) -> None:
    field = RunConfig.model_fields.get(name)
    if name in NOT_SEARCHED or (field is not None and field.json_schema_extra not in (MODEL, LEARNING)):
        own = [each for each, info in RunConfig.model_fields.items() if info.json_schema_extra in (MODEL, LEARNING)]
        known = ", ".join(each for each in own if each not in NOT_SEARCHED)
        raise ConfigError(f"--vary {text}: {name!r} is not searched; what can be: {known}, and the fields of the sampler")
