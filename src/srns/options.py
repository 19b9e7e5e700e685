"""The fields of a run as options of the command line: one flag each, made of its name, default and description."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from srns.config import RunConfig, sampler_fields
from srns.errors import ConfigError


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
    flags = []
    described = {
        name: (field.description or "", str((field.json_schema_extra or {})["panel"]), {"": field})  # type: ignore[index]
        for name, field in RunConfig.model_fields.items()
    }
    for name, by_sampler in sampler_fields().items():
        samplers = ", ".join(by_sampler)
        meanings = _alike({sampler: field.description or "" for sampler, field in by_sampler.items()})
        description = "; ".join(f"{who}: {meaning}" if who else meaning for meaning, who in meanings.items())
        described[name] = description, f"Sampler: {samplers}", by_sampler
    for name, (description, panel, variants) in described.items():
        default = next(iter(variants.values())).default
        flag = f"--{name.replace('_', '-')}"
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if isinstance(default, bool) else flag,
            help=escape(f"{description}{shown_default(variants)}"),
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
