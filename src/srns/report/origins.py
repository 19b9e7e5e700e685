"""The part of a report on where its numbers come from: settings, commands, environments and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from srns.comparison import Group, Run, differing, short
from srns.markup import DASH
from srns.options import command_of
from srns.page import Cell, Page, Row

MOST_COLUMNS = 8  # of configurations, before fields are the columns


def add_settings(page: Page, group: Group, name: str) -> None:
    """The fields in which configurations differ, and those alone."""
    page.section(f"Settings that differ{name}")
    found = differing([configuration.config for configuration in group.configurations])
    if not found:
        page.text("These runs differ in nothing but their seed." if len(group.runs) > 1 else "There is one run.")
        return
    labels = [configuration.label for configuration in group.configurations]
    rows: list[Row] = [[name, *map(_value, values)] for name, values in found.items()]
    columns = ["field", *labels]
    if len(labels) > MOST_COLUMNS:
        rows = [[label, *(_value(values[n]) for values in found.values())] for n, label in enumerate(labels)]
        columns = ["configuration", *found]
    page.table(columns, rows, f"{DASH}: the configuration has no such field, or leaves it open")


def _value(value: Any) -> Cell:
    if value is None:
        return Cell(DASH, math.nan)  # the last, and no reason to take a column of numbers for text
    return Cell(short(value), float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None)


def add_commands(page: Page, runs: Sequence[Run]) -> None:
    """For each run the command that makes it again."""
    page.section(
        "How to make these runs again",
        "Run where they were made, so that paths lead to the same files, each command gives the same model, bit for bit on the "
        "same machine, in a new folder under runs/.",
    )
    commands = [command_of(run.record, run.config) for run in runs]
    if len(runs) > 1:
        page.code("\n".join(commands), "All of them")
    with page.details("One by one"):
        for run, command in zip(runs, commands, strict=True):
            page.code(command, str(run.folder))


def add_environments(page: Page, runs: Sequence[Run]) -> None:
    """Versions and machines, dates, and the notes that runs left."""
    page.section("Where they were made, and their notes")
    made: dict[str, list[Run]] = {}
    for run in runs:
        made.setdefault(_environment(run.record["environment"]), []).append(run)
    rows = []
    for environment, those in made.items():
        dates = sorted({str(run.record["environment"].get("date", DASH)) for run in those})
        rows.append([environment, _listed(those, runs), " to ".join(dict.fromkeys((dates[0], dates[-1])))])
    page.table(["environment", "runs", "dates"], rows)
    if len(made) > 1:
        page.text("Times and memory of different machines or versions cannot be compared.")
    notes: dict[str, list[Run]] = {}
    for run in runs:
        for note in [*run.record["data"].get("notes", []), *run.record.get("notes", [])]:
            notes.setdefault(str(note), []).append(run)
    if notes:
        page.table(["note", "runs"], [[note, _listed(those, runs)] for note, those in notes.items()])


def _environment(made: dict[str, Any]) -> str:
    """
    >>> _environment({"python": "3.12.1", "packages": {"srns": "0.1.0"}, "system": "Linux", "machine": "x86_64", "cores": 2})
    'Python 3.12.1, srns 0.1.0; Linux x86_64, 2 cores'
    """
    versions = {"Python": made.get("python", DASH), **made.get("packages", {})}
    machine = f"{made.get('system', '')} {made.get('machine', '')}, {made.get('cores', DASH)} cores"
    return f"{', '.join(f'{name} {version}' for name, version in versions.items())}; {machine.strip()}"


def _listed(some: Sequence[Run], all_of: Sequence[Run]) -> str:
    return "all" if len(some) == len(all_of) > 1 else ", ".join(str(run.folder) for run in some)
