"""The fields of a run as options of the command line: one flag each, made of its name, default and description."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from srns.config import RunConfig, sampler_fields
from srns.errors import ConfigError

TRIALS = 30  # of `srns tune`, where neither their number nor a time is given


def metavar(name: str, default: Any) -> str:
    """What a value of a field looks like, for --help."""
    if isinstance(default, tuple):
        return "N,N,..."
    return {int: "N", float: "X"}.get(type(default), "X" if name == "min_weight" else "TEXT")


def shown_default(variants: Mapping[str, FieldInfo]) -> str:
    """The default of a field, or its defaults where samplers differ in them."""
    defaults = {
        name: ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        for name, field in variants.items()
    }
    if set(defaults.values()) == {None}:
        return ""
    same = _alike(defaults)
    return f" [default: {'; '.join(f'{value} with {who}' if who else str(value) for value, who in same.items())}]"


def _alike(values: Mapping[str, Any]) -> dict[Any, str]:
    """Values, each with the names of those that have it; nothing where all have the same."""
    names: dict[Any, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    return {value: ", ".join(who) if len(names) > 1 else "" for value, who in names.items()}


def with_config_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag per field of RunConfig and of the samplers, so that names, help and defaults live there alone.

    The values given arrive as the dict `fields`.
    """
    described = _described(RunConfig.model_fields)
    for name, by_sampler in sampler_fields().items():
        samplers = ", ".join(by_sampler)
        meanings = _alike({sampler: field.description or "" for sampler, field in by_sampler.items()})
        description = "; ".join(f"{who}: {meaning}" if who else meaning for meaning, who in meanings.items())
        described[name] = description, f"Sampler: {samplers}", by_sampler
    return _with_flags(function, described, shown_default)


def with_flags_of(*names: str, defaults: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same for some fields of RunConfig; without `defaults` in a command that takes those of another run."""
    some = {name: RunConfig.model_fields[name] for name in names}
    return lambda function: _with_flags(function, _described(some), shown_default if defaults else lambda _: "")


Described = dict[str, tuple[str, str, Mapping[str, FieldInfo]]]  # by field: its meaning, panel and variants


def _described(fields: Mapping[str, FieldInfo]) -> Described:
    return {
        name: (field.description or "", str((field.json_schema_extra or {})["panel"]), {"": field})  # type: ignore[index]
        for name, field in fields.items()
    }


def _with_flags(
    function: Callable[..., None], described: Described, default_of: Callable[[Mapping[str, FieldInfo]], str]
) -> Callable[..., None]:
    flags = []
    for name, (description, panel, variants) in described.items():
        default = next(iter(variants.values())).default
        flag = f"--{name.replace('_', '-')}"
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if isinstance(default, bool) else flag,
            help=escape(f"{description}{default_of(variants)}"),
            show_default=False,
            metavar=None if isinstance(default, bool) else metavar(name, default),
            rich_help_panel=panel,
        )
        kind: Any = Annotated[bool | None, option] if isinstance(default, bool) else Annotated[str | None, option]
        flags.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind))

    @functools.wraps(function)
    def wrapped(**kwargs: Any) -> None:
        fields = {name: kwargs.pop(name) for name in described}
        function(**kwargs, fields={name: value for name, value in fields.items() if value is not None})

    own = [
        parameter for parameter in inspect.signature(function, eval_str=True).parameters.values() if parameter.name != "fields"
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    signature = inspect.Signature([*own, *flags])
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return wrapped


def parse_settings(settings: list[str]) -> dict[str, str]:
    pairs = dict(setting.partition("=")[::2] for setting in settings)
    wrong = [setting for setting in settings if "=" not in setting]
    if wrong:
        raise ConfigError(f"--set {wrong[0]!r}: expected field=value")
    return pairs


def as_text(value: Any) -> str:
    """The value of a field as its flag takes it.

    >>> as_text((1, 3)), as_text(0.5), as_text(True)
    ('1,3', '0.5', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def flags_of(fields: Mapping[str, Any]) -> list[str]:
    """Fields as words of a command.

    >>> flags_of({"dim": 64, "learn_beta": False, "user_column": "-"})
    ['--dim', '64', '--no-learn-beta', '--user-column=-']
    """
    flags = []
    for name, value in fields.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif (text := as_text(value)).startswith("-"):  # which would be taken for a flag itself
            flags.append(f"--{flag}={text}")
        else:
            flags += [f"--{flag}", text]
    return flags


def command_of(record: Mapping[str, Any], config: RunConfig) -> str:
    """The command that made a run, by the content of its run.json."""
    name = record["data"]["name"]
    if "updated" not in record:
        return train_command(name, config, record.get("shards", 1))
    fields = {"epochs": config.epochs, "learning_rate": config.learning_rate, "split": config.split, "seed": config.seed}
    return shlex.join(["srns", "update", str(record["updated"].get("from")), name, *flags_of(fields)])


def train_command(data: str, config: RunConfig, processes: int = 1) -> str:
    """The command that makes a run, for a shell: flags for those fields alone whose value is not what it is without a flag.

    >>> train_command("my clicks.csv", RunConfig(dim=64, learn_beta=True))
    "srns train 'my clicks.csv' --dim 64 --learn-beta"
    """
    chosen = {"scorer": config.scorer, "sampler": config.sampler}  # on which other defaults depend
    defaults = {**RunConfig(**chosen).model_dump(), **{name: RunConfig.model_fields[name].default for name in chosen}}
    flags = flags_of({name: value for name, value in config.model_dump().items() if value != defaults[name]})
    start = ["srns"] if processes == 1 else ["torchrun", "--nproc-per-node", str(processes), "-m", "srns"]
    words = [data, *flags] if not data.startswith("-") else [*flags, "--", data]
    return shlex.join([*start, "train", *words])
