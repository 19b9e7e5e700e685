"""`srns report`: many runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from srns.cli.console import Json, command, err, out, print_json


@command("srns report runs/clicks runs/ease --out report.html")
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that hold several, such as `runs`.")
    ],
    path: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    reference: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help=escape("The run to compare others with. [default: the best on validation data]")),
    ] = None,
    title: Annotated[str, typer.Option(help="The title of the page.")] = "",
    as_json: Json = False,
) -> None:
    """Put runs side by side on one HTML page: metrics with intervals, significance, curves, costs, commands."""
    from srns.display import announce_compiling
    from srns.page import refuse_other
    from srns.report import make_page, make_report, numbers

    refuse_other(path)
    announce_compiling(err)
    with err.status("reading runs") as status:
        found = make_report(runs, reference, say=lambda text: status.update(text))
        make_page(found, title).write(path)
    for problem in found.problems:
        err.print(f"left out: {problem.folder}: {problem.reason}", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        print_json({"report": str(path), **numbers(found)})
        return
    counted = f"{len(found.runs)} run{'s' * (len(found.runs) > 1)}"
    out.print(f"{counted} on one page: {path}", highlight=False, markup=False, soft_wrap=True)
