"""Runs become one HTML page that stands alone: what was compared, what came out and how sure that is, how training went, what
samplers did, and how to make it all again. The numbers are those of `srns.comparison`, the blocks those of `srns.page`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from srns import __version__
from srns.comparison import OWN_SPLIT, Configuration, Group, Problem, Run, compare, find_runs, read_runs, short
from srns.config import DATA_FIELDS
from srns.errors import ArtifactError
from srns.options import command_of
from srns.page import Page
from srns.report import accuracy, origins, training

NAMED_RUNS = 8  # of a group, where it is described


class Report(NamedTuple):
    """Groups of comparable runs, and folders that could not be used."""

    groups: list[Group]
    problems: list[Problem]

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in _all_runs(group)]


def make_report(paths: Sequence[Path], reference: Path | None = None, say: Callable[[str], None] = lambda text: None) -> Report:
    """Read, measure and compare runs: folders of runs, or folders that hold several."""
    runs, problems = read_runs(find_runs(paths), say)
    if not runs:
        reasons = "; ".join(f"{problem.folder}: {problem.reason}" for problem in problems)
        raise ArtifactError(f"there is no finished run to report on: {reasons}")
    say("comparing")
    return Report(compare(runs, reference), problems)


def make_page(report: Report, title: str = "") -> Page:
    """The page of a report."""
    n, names = len(report.runs), ", ".join(dict.fromkeys(group.data for group in report.groups))
    page = Page(
        title or f"{n} run{'s' * (n > 1)} on {names}",
        f"Made by srns {__version__} from the folders of runs; the models in them were measured again on test data.",
    )
    add_report(page, report)
    return page


def add_report(page: Page, report: Report) -> None:
    """The sections of a report, at the end of a page."""
    names = _names(report.groups)
    _overview(page, report, names)
    for group, name in zip(report.groups, [f": {name}" if name else "" for name in names], strict=True):
        accuracy.add(page, group, name)
        training.add_curves(page, group, name)
        training.add_sampling(page, group, name)
        origins.add_settings(page, group, name)
    groups = [name for group, name in zip(report.groups, names, strict=True) for _ in _all_runs(group)]
    training.add_costs(page, report.runs, groups if len(names) > 1 else [])
    origins.add_commands(page, report.runs)
    origins.add_environments(page, report.runs)


def _names(groups: Sequence[Group]) -> list[str]:
    """What to call each group in headings: data, split, protocol where there are several, and what else of how the data were
    read and divided tells it from others; a number where nothing does. Nothing where there is one group."""
    if len(groups) == 1:
        return [""]
    protocols = len({group.protocol for group in groups}) > 1
    plain = [f"{group.data}, {group.split}" + f", protocol {group.protocol}" * protocols for group in groups]
    found: list[str] = []
    for group, name in zip(groups, plain, strict=True):
        alike = [other for other, its in zip(groups, plain, strict=True) if its == name]
        called = ", ".join([name, *(next(iter(_values(group, field))) for field in DATA_FIELDS if _tells_apart(alike, field))])
        again = sum(other == called or other.startswith(f"{called} #") for other in found)
        found.append(f"{called} #{again + 1}" if again else called)
    return found


def _values(group: Group, field: str) -> set[str]:
    name = field.replace("_", " ")
    return {f"no {name}" if (value := getattr(run.config, field)) is None else f"{name} {short(value)}" for run in group.runs}


def _tells_apart(groups: Sequence[Group], field: str) -> bool:
    """Whether each run of a group has one value of a field, and not all groups the same; `split` is in their names anyway."""
    values = [_values(group, field) for group in groups]
    return field != "split" and all(len(each) == 1 for each in values) and len(set[str]().union(*values)) > 1


def _all_runs(group: Group) -> list[Run]:
    return [*group.runs, *(again for again, _ in group.repeated)]


def _overview(page: Page, report: Report, names: Sequence[str]) -> None:
    page.section("What was compared")
    configurations, groups = sum(len(group.configurations) for group in report.groups), len(report.groups)
    page.cards(
        [
            ("runs", str(len(report.runs)), f"of {configurations} configuration{'s' * (configurations > 1)}, seeds aside"),
            ("groups", str(groups), "each of one data set, split and protocol" if groups > 1 else "one data set and split"),
            ("training", training.duration(sum(run.seconds for run in report.runs)), "without validation"),
            *([("left out", str(len(report.problems)), "unfinished or damaged")] if report.problems else []),
        ]
    )
    page.points([_described(group, name) for group, name in zip(report.groups, names, strict=True)])
    if groups > 1:
        page.text(
            "These runs are on different data, or on data that were split or ranked in different ways. Numbers of one group "
            "say nothing beside those of another: runs are compared within a group alone."
        )
    repeated = [pair for group in report.groups for pair in group.repeated]
    page.points(
        [f"{run.folder} repeats {same.folder}, with the same settings and seed, and is not counted" for run, same in repeated]
        + [f"{run.folder}, measured again: {run.changed}" for run in report.runs if run.changed]
    )
    if report.problems:
        page.table(["folder", "what is wrong"], report.problems, "Left out of this report")


def _described(group: Group, name: str) -> str:
    """One group: what its data are, and where there are several, which runs are in it."""
    data = group.runs[0].record["data"]
    sizes = ", ".join(f"{data[name]:,} {name}" for name in ("users", "items", "train", "valid", "test") if name in data)
    runs = [str(run.folder) for run in _all_runs(group)]
    more = f" and {len(runs) - NAMED_RUNS} more, listed under “{training.COSTS}”" if len(runs) > NAMED_RUNS else ""
    listed = f"; run{'s' * (len(runs) > 1)} {', '.join(runs[:NAMED_RUNS])}{more}" if name else ""
    divided = group.split if group.split == OWN_SPLIT else f"split {group.split}"
    facts = f"{sizes}; protocol {group.protocol}{listed}; fingerprint of the split {group.fingerprint[:12]}"
    return f"{name}: {facts}" if name else f"{group.data}, {divided}: {facts}"


def numbers(report: Report) -> dict[str, Any]:
    """What the page says, as plain data."""
    return {
        "groups": [_group_numbers(group) for group in report.groups],
        "runs": [_run_numbers(run) for run in report.runs],
        "left_out": [problem._asdict() for problem in report.problems],
    }


def _group_numbers(group: Group) -> dict[str, Any]:
    return {
        "data": group.data,
        "fingerprint": group.fingerprint,
        "protocol": group.protocol,
        "split": group.split,
        "metric": group.metric,
        "reference": group.reference.label,
        "configurations": [_configuration_numbers(each, group.metric) for each in group.configurations],
        "popularity": group.runs[0].record.get("metrics_popularity", {}),
    }


def _configuration_numbers(each: Configuration, metric: str) -> dict[str, Any]:
    compared = {} if each.difference is None else {**asdict(each.difference), "p_holm": each.p_holm, "verdict": each.verdict}
    return {
        "label": each.label,
        "runs": [str(run.folder) for run in each.runs],
        "seeds": [run.config.seed for run in each.runs],
        "validation": each.validation(metric),
        "metrics": {name: asdict(found) for name, found in each.estimates.items()},
        "difference": compared,
    }


def _run_numbers(run: Run) -> dict[str, Any]:
    record = run.record
    return {
        "run": str(run.folder),
        "data": record["data"]["name"],
        "seed": run.config.seed,
        "metrics": run.metrics,
        "best_epoch": record["best_epoch"],
        "epochs": len(run.history),
        "seconds": run.seconds,
        "seconds_per_epoch": record.get("seconds_per_epoch"),
        "peak_rss_mb": record.get("peak_rss_mb"),
        "engine": record.get("engine"),
        "command": command_of(record, run.config),
    }
