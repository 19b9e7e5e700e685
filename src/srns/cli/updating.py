"""`srns update`: a run that goes on from another with new interactions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from srns.cli.console import Json, RunFolder, command, err
from srns.cli.training import show_run
from srns.config import DATA_FIELDS
from srns.display import Progress
from srns.options import parse_settings, with_flags_of

LEARNING_FIELDS = ("epochs", "learning_rate", "patience", "seed", "threads", "engine", "ks", "metric")


@command("srns update runs/clicks today.csv --out runs/clicks-2")
@with_flags_of(*LEARNING_FIELDS, *(name for name in DATA_FIELDS if name != "valid_share"), defaults=False)
def update(
    run: RunFolder,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="New interactions, or all of them again: a path or a database's URL, as for train."
        ),
    ],
    fields: dict[str, Any],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set any field that does not shape the model; repeatable."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help=escape("Folder for the new run. [default: runs/RUN-DATA]"))
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the update in --out from its last checkpoint.")] = False,
    as_json: Json = False,
) -> None:
    """Go on from a trained model with new interactions, users and items; RUN stays as it is.

    Settings are those of RUN, but for fewer epochs and a step size to suit them; flags win over both.
    """
    from srns.updates import update_run

    with Progress(err) as progress:
        given = {**parse_settings(settings or []), **fields}
        record = update_run(run, data, given, out=folder, resume=resume, callbacks=[progress])
    show_run(record, as_json)
