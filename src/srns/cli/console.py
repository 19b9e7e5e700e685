"""What all commands share: the application, how errors end it, and where output goes."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from srns import __version__
from srns.databases import without_userinfo
from srns.errors import ConfigError, SrnsError
from srns.ranks import world_size

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train recommenders from implicit feedback (clicks, purchases, watches), measure them honestly, and use them.\n\n"
    "Start with [bold]srns demo[/bold], then [bold]srns train my-clicks.csv[/bold].",
)
out, err = Console(), Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, as `srns train` prints it.")]
K = Annotated[int, typer.Option("-k", "--k", min=1, help="Length of the list.")]


def example(text: str) -> str:
    """The epilog that gives a command its example."""
    return f"[bold]Example:[/bold]  {text}"


def command(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command: its example under --help, and errors as one line instead of a stack trace."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            try:
                if world_size() > 1 and function.__name__ not in ("train", "recommend"):
                    raise ConfigError(f"`srns {function.__name__}` runs in one process; start it without torchrun")
                function(*args, **kwargs)
            except (SrnsError, OSError, MemoryError, UnicodeError) as error:  # the last: an argument that is no UTF-8
                message = without_userinfo(str(error) or type(error).__name__)
                err.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True, highlight=False)
                if kwargs.get("as_json"):
                    with suppress(OSError):  # standard output itself may be what failed
                        print_json({"error": message})
                raise typer.Exit(2) from None
            except KeyboardInterrupt as interrupt:
                reason = f": {interrupt.args[0]}; the same command with --resume goes on from there" if interrupt.args else ""
                err.print(f"interrupted{reason}", highlight=False, soft_wrap=True)
                raise typer.Exit(130) from None

        app.command(function.__name__.strip("_"), epilog=example(text))(run)
        return run

    return register


def print_json(value: Any) -> None:
    """One JSON object; numbers that JSON lacks (infinity, NaN) become null."""

    def clean(part: Any) -> Any:
        if isinstance(part, dict):
            return {str(name): clean(each) for name, each in part.items()}
        if isinstance(part, list | tuple):
            return [clean(each) for each in part]
        if hasattr(part, "tolist"):
            return clean(part.tolist())
        return None if isinstance(part, float) and not math.isfinite(part) else part

    sys.stdout.write(json.dumps(clean(value)) + "\n")


def show_version(value: bool) -> None:
    if value:
        out.print(f"srns {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...
