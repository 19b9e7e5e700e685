"""`srns bench` and `srns reproduce`: the paper's questions, asked again."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.rule import Rule
from rich.text import Text

from srns.cli.console import Json, command, err, out, print_json
from srns.config import FILE_FIELDS
from srns.display import WIDE, Sweep, plain_table
from srns.errors import ConfigError
from srns.experiments.outcome import Asked
from srns.experiments.reproduce import ALL, BEYOND, TARGETS
from srns.options import flags_of, with_flags_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from srns.experiments.reproduce import Target
    from srns.page import Page

NOISE = ("figure2", "figure3", "figure5", "warmup-tables")  # targets that only the paper's splits have the false negatives for
WHAT = (
    f"{', '.join(TARGETS)}; {ALL} of these; or, beyond the paper: {', '.join(BEYOND)}. Without one: what each is, and of "
    f"which data. All take a file of your own (--dataset) but {', '.join(NOISE)}; table1 needs no data."
)


@command("srns bench samplers --plot costs.png")
def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="samplers: the time per positive of each, table 1 of the paper.")],
    sampler: Annotated[
        list[str] | None, typer.Option("--sampler", help=escape("Measure this one; repeatable. [default: all]"))
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curves to this file (.png, .svg, .pdf; a name without ending: .png and .svg).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how the cost of samplers grows with the size of embeddings, catalogue and candidate set."""
    from srns.drawing import require_matplotlib, require_place, save, styled
    from srns.experiments import sampler_costs, table1_runs
    from srns.runs import environment
    from srns.samplers import SAMPLERS

    if what != "samplers":
        raise ConfigError(f"{what!r} cannot be measured; expected: samplers")
    names = list(dict.fromkeys(["uniform", *(sampler or SAMPLERS)]))
    if plot is not None:
        require_matplotlib()
        require_place(plot)
    if left_out := [name for name in names if not table1_runs.measurable(name)]:
        err.print(f"left out, since torch is not installed: {', '.join(left_out)}", highlight=False)
    err.print("measuring; a few seconds for each sampler ...", highlight=False)
    found = []
    with err.status("measuring") as status:
        for cell in table1_runs.cells(names):
            found.append(cell)
            status.update(f"measuring {cell.sampler}: {cell.microseconds:.2f} microseconds per positive")
    rows = sampler_costs.summary(found)
    plots: list[str] = []
    if plot is not None:
        with styled():
            plots = [str(path) for path in save(sampler_costs.plot(found), plot)]
    if as_json:
        print_json(
            {"samplers": rows, "plots": plots, "cells": [cell._asdict() for cell in found], "environment": environment()}
        )
        return
    columns, cells = sampler_costs.table(rows, formulas=out.width >= WIDE)
    out.print(plain_table("Time per positive, and by which power of F, |I| and N it grows", columns, cells))
    if out.width < WIDE:
        out.print(plain_table("What that is by its formula", *sampler_costs.formulas(rows)))
    if plots:
        out.print(f"drawn to {' and '.join(plots)}", highlight=False, markup=False)


@command("srns reproduce figure2 --quick")
@with_flags_of(*FILE_FIELDS)
def reproduce(
    fields: dict[str, Any],
    targets: Annotated[list[str] | None, typer.Argument(metavar="TARGET", help=WHAT)] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help=escape("Use these data, by name or path; repeatable. [default: those of the paper]")),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help=escape(f"Runs of each setting. [default: {Asked.seeds}; 1 with --quick]"))
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help=escape("Passes at most. [default: the paper's 400; of field, those of its settings]")),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look in minutes: small data, one seed, few epochs.")] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Runs side by side; 0: one per core.")] = 0,
    folder: Annotated[Path, typer.Option("--out", help="Folder for runs, tables and figures.")] = Path("reproduction"),
    as_json: Json = False,
) -> None:
    """Make tables and figures of the paper again: train what they need, draw them, set them beside the published numbers.

    Runs are kept in the folder: a second call reuses them, and an interrupted one goes on where it stopped.
    """
    from srns.datasets import available
    from srns.drawing import require_matplotlib
    from srns.experiments import noise, real
    from srns.experiments import reproduce as reproduction

    if not targets:
        if dataset or seeds or epochs or quick or fields:
            raise ConfigError(f"nothing is named that these options are for: name a target, or {ALL}")
        _list_targets(as_json)
        return
    require_matplotlib()
    modules = reproduction.chosen(targets)
    if ALL in targets and dataset and not set(dataset) <= noise.SETUPS.keys():
        modules = {name: module for name, module in modules.items() if name in targets or name not in NOISE}
        err.print(f"left out, since only the paper's splits have the false negatives: {', '.join(NOISE)}", highlight=False)
    if quick and seeds not in (None, 1):
        raise ConfigError(f"a quick look makes one run of each setting: leave out --quick, or --seeds {seeds}")
    asked = Asked(tuple(dict.fromkeys(dataset or ())), seeds or Asked.seeds, epochs, quick, tuple(fields.items()))
    named = {each.name for each in available()} | set(real.SETUPS) | set(noise.SETUPS)
    if fields and (not dataset or named.intersection(dataset)):
        raise ConfigError(
            f"{flags_of(fields)[0]} says how files of your own are read: name them, and no others, with --dataset"
        )
    short = next(filter(None, (reproduction.short_of(module, asked) for module in modules.values())), "")
    if short:  # beside the real thing, not in its place
        folder = folder / "-".join(["quick"] * quick + [f"{epochs}-epochs"] * (epochs is not None))
    asides = [
        *(f"--dataset={name}" for name in asked.datasets),
        *flags_of(fields),
        *([] if quick else [f"--seeds={asked.seeds}"]),
        *([f"--epochs={epochs}"] if epochs else []),
    ]
    said = shlex.join(["srns", "reproduce", *targets, *asides, *(["--quick"] if quick else [])])
    reading = _reading_notes(modules, asked)
    for note in reading:
        err.print(note, highlight=False, markup=False, soft_wrap=True)
    try:
        with Sweep(err) as watcher:
            outcomes, failed = reproduction.reproduce(modules, asked, folder, jobs or os.cpu_count() or 1, watcher, said)
        shown = reproduction.page(folder, short, failed, partial(_add_runs, short=short)) if outcomes else None
    except KeyboardInterrupt:
        err.print(f"interrupted; what is done is kept in {folder}, and the same command goes on from there", highlight=False)
        raise typer.Exit(130) from None
    for name, outcome in () if as_json else outcomes.items():
        out.print(Rule(reproduction.title_of(modules[name], asked), align="left"))
        for table in outcome.tables:
            out.print(plain_table(table.title, table.columns, table.rows))
        for check in outcome.checks:
            style = {True: "green", False: "red", None: "yellow"}[check.holds]
            out.print(Text.assemble((f"{check.mark:>4}  ", style), f"{check.claim}: {check.detail}"))
        for note in outcome.notes:
            if note in reading:  # said once, before the runs
                continue
            out.print(Text(f"note: {note}", style="dim"))
    for name, reason in failed.items():
        err.print(f"[red]error:[/red] {escape(name)}: {escape(reason)}", soft_wrap=True, highlight=False)
    ending, _ = reproduction.called(folder, asked)
    answer = {
        name: {"checks": [check._asdict() for check in outcome.checks], "files": str(folder / f"{name}{ending}")}
        for name, outcome in outcomes.items()
    }
    if as_json:
        print_json({"folder": str(folder), "page": str(shown), "targets": answer, "failed": failed})
    elif shown:
        out.print(
            f"tables and figures are in {escape(str(folder))}; on one page: [bold]{escape(str(shown))}[/bold]", highlight=False
        )
    if failed:
        raise typer.Exit(2)


def _reading_notes(modules: Mapping[str, Target], asked: Asked) -> list[str]:
    """How files of the user's own are read: a column of times that is not used is seen before hours are spent on it."""
    from srns.experiments.reproduce import first_jobs, reading_notes

    if not asked.datasets:
        return []
    return reading_notes([job for target in modules.values() for job in first_jobs(target, asked)], asked)


def _add_runs(page: Page, runs: list[Path], short: str) -> None:
    """What `srns report` says of whole runs of `srns train`, which may have been `short` ones."""
    from srns.report import add_report, make_report

    if runs:
        if short:
            page.section(f"The runs themselves: {short}")
            page.points(["What is better or worse among such runs says little of methods that are trained to the end."])
        with err.status("comparing runs") as status:
            add_report(page, make_report(runs, say=lambda text: status.update(text)))


def _list_targets(as_json: bool) -> None:
    """What can be reproduced, from which data."""
    from srns.experiments.reproduce import chosen

    data = {"table1": "none", **dict.fromkeys(NOISE, "in $SRNS_DATA")}
    targets = chosen([ALL, *BEYOND])
    rows = [[name, target.TITLE, data.get(name, "in $SRNS_DATA, or --dataset")] for name, target in targets.items()]
    if as_json:
        print_json({"targets": [dict(zip(("name", "title", "data"), row, strict=True)) for row in rows]})
        return
    out.print(plain_table("What can be reproduced", ["target", "what", "data"], rows))
    out.print(f"all of the paper's, as a first look in minutes: srns reproduce {ALL} --quick", highlight=False)
