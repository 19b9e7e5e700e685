"""`srns serve`: a trained model over HTTP, for programs and for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srns.cli.console import Json, RunFolder, command, err, out, print_json
from srns.serving.settings import Limits, ServerSettings, require

LIMITS = Limits()
DEFAULT = {name: field.default for name, field in ServerSettings.model_fields.items()}


@command("srns serve runs/clicks --items films.csv --port 8000")
def serve(
    run: RunFolder,
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine reaches 127.0.0.1.")] = DEFAULT["host"],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = DEFAULT["port"],
    workers: Annotated[int, typer.Option(min=1, help="Processes that answer, each with the model.")] = DEFAULT["workers"],
    items: Annotated[Path | None, typer.Option(help="Table of items with ids and titles: CSV, TSV, Parquet, .item.")] = None,
    item_column: Annotated[str | None, typer.Option(help="Its column of ids, if it is not recognised.")] = None,
    title_column: Annotated[str | None, typer.Option(help="Its column of titles, if it is not recognised.")] = None,
    reload_seconds: Annotated[
        float, typer.Option(min=0, help="How often to look for a newer model in RUN; 0 never.")
    ] = DEFAULT["reload_seconds"],
    max_k: Annotated[int, typer.Option(min=1, help="Longest list that may be asked for.")] = LIMITS.k,
    max_batch: Annotated[int, typer.Option(min=1, help="Most users in one request.")] = LIMITS.batch,
    max_body: Annotated[int, typer.Option(min=1, help="Largest body of a request, in bytes.")] = LIMITS.body,
    client_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time a client has to send headers, and again for the body.")
    ] = LIMITS.client_seconds,
    access_log: Annotated[bool, typer.Option(help="Log a line for each request.")] = DEFAULT["access_log"],
    as_json: Json = False,
) -> None:
    """Answer over HTTP: recommendations, similar items, and a page to look at them. Ends with Ctrl-C or SIGTERM."""
    require()
    from srns.serving.server import is_local, serve

    limits = Limits(k=max_k, batch=max_batch, body=max_body, client_seconds=client_seconds)
    settings = ServerSettings(
        run=run,
        host=host,
        port=port,
        workers=workers,
        items=items,
        item_column=item_column,
        title_column=title_column,
        reload_seconds=reload_seconds,
        access_log=access_log,
        limits=limits,
    )
    if not is_local(host):
        err.print(f"[yellow]warning:[/yellow] {host} can be reached from other machines, and there is no authentication")

    def ready(url: str) -> None:
        if as_json:
            print_json({"run": str(run), "url": url, "docs": f"{url}/docs"})
        else:
            out.print(f"serving {run} at {url} (interface: {url}/docs)", highlight=False, markup=False, soft_wrap=True)
        out.file.flush()

    serve(settings, ready)
