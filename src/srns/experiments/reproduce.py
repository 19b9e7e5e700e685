"""`srns reproduce`: the tables and figures of the paper, from the runs they need to files that people look at."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from srns.artifacts import replacing
from srns.charts import Curve
from srns.config import meant
from srns.drawing import save, styled
from srns.errors import ConfigError, DataError, ScoreError, SrnsError
from srns.experiments.outcome import PAPER_EPOCHS, Asked, Check, Outcome
from srns.experiments.store import FAILED, Found, Job, Store, Watcher, code_digest, reason_of, stamp
from srns.page import Cell, Page

TARGETS = {
    name: name.replace("-", "_")
    for name in (
        "table1", "table2", "table3", "figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "figure7",
        "warmup-tables", "tuning",
    )
}  # fmt: skip
BEYOND = {"field": "field"}  # what the paper does not have: made when it is asked for by name
ALL = "all"


class Target(Protocol):
    """A module of this package; see `srns.experiments.outcome`. One is made in spite of runs that failed with errors of
    the kinds that it names in `BEARS`."""

    TITLE: str

    def jobs(self, asked: Asked, found: Found) -> list[Job]: ...

    def outcome(self, asked: Asked, found: Found) -> Outcome: ...


def chosen(names: Sequence[str]) -> dict[str, Target]:
    """The targets of these names."""
    known = TARGETS | BEYOND
    unknown = [name for name in names if name not in (*known, ALL)]
    if unknown or not names:
        what = f"{unknown[0]!r} is none of what can be reproduced" if unknown else "nothing is named"
        raise ConfigError(f"{what}; {meant(unknown[0] if unknown else '', [*known, ALL])}")
    wanted = [name for name in known if name in names or (ALL in names and name in TARGETS)]
    modules: dict[str, Any] = {name: import_module(f"srns.experiments.{known[name]}") for name in wanted}
    return modules


def short_of(target: Target, asked: Asked) -> str:
    """How the runs of a target are kept shorter than its own; empty where they are not."""
    return asked.short(getattr(target, "MOST_EPOCHS", PAPER_EPOCHS))


def reproduce(
    targets: Mapping[str, Target], asked: Asked, out: Path, workers: int, watcher: Watcher, command: str
) -> tuple[dict[str, Outcome], dict[str, str]]:
    """Make the runs that are not in `out` yet, then tables and figures beside them; returns these, and why others failed."""
    store = Store(out / "runs")
    found: dict[Job, dict[str, Any]] = {}
    failed: dict[Job, BaseException] = {}
    wrong: dict[str, str] = {}

    def borne(name: str, job: Job) -> bool:
        return isinstance(failed[job], getattr(targets[name], "BEARS", ()))

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        try:
            yield
        except SrnsError as error:
            wrong[name] = str(error)

    def known(name: str) -> Found:
        return {**found, **{job: {FAILED: reason_of(each)} for job, each in failed.items() if borne(name, job)}}

    needed: dict[str, list[Job]] = {}

    def naming(done: Found) -> list[Job]:
        """The runs that targets need, as far as they can be named; none of targets of which a run went wrong."""
        found.update(done)
        for name, target in targets.items():
            if name not in wrong:
                with noting(name):
                    needed[name] = target.jobs(asked, known(name))
        for name, jobs in needed.items():
            if broken := [job for job in jobs if job in failed and not borne(name, job)]:
                wrong[name] = _went_wrong(broken[0], failed[broken[0]])
        return [job for name, jobs in needed.items() if name not in wrong for job in jobs]

    store.complete(naming, workers, watcher, failed)
    outcomes: dict[str, Outcome] = {}
    with styled():
        for name, target in targets.items():
            if name not in wrong:
                with noting(name):
                    outcomes[name] = target.outcome(asked, known(name))
    for name, outcome in outcomes.items():
        made_of = {job: found[job] for job in needed[name] if job in found}
        if short := short_of(targets[name], asked):
            look = short.partition(":")[0]
            outcome.checks = [each.left_open(look) if each.about_training else each for each in outcome.checks]
            open_ones = any(each.why for each in outcome.checks)
            no_verdict = f": {look} passes no verdict" if open_ones else ""
            outcome.notes.insert(0, f"{short.capitalize()}. It shows that things work, not how well{no_verdict}.")
            for figure in outcome.figures.values():
                figure.suptitle(look, fontsize="small", color="gray")
        outcome.notes += reading_notes(made_of, asked)
        write(out, name, title_of(targets[name], asked), outcome, asked, command, made_of, store.environment(made_of))
    return outcomes, wrong


def title_of(target: Target, asked: Asked) -> str:
    """What a target is, and is of a quick look where that is something else."""
    return str(getattr(target, "QUICK_TITLE", target.TITLE)) if asked.quick else target.TITLE


def first_jobs(target: Target, asked: Asked) -> list[Job]:
    """The runs that can be named before there are any; none where something is wrong, which the target itself will tell."""
    try:
        return target.jobs(asked, {})
    except SrnsError:
        return []


def reading_notes(jobs: Iterable[Job], asked: Asked) -> list[str]:
    """How files of the user's own were read for these runs: columns that were used and that were not, rows that were left out,
    and how they were divided, where runs divide them as `srns.experiments.real` says."""
    from srns.experiments import noise_runs, real  # here and below: of use to those who reproduce alone

    divided: dict[str, bool] = {}
    for job in jobs:
        if job.function.partition(":")[0] != noise_runs.__name__:  # these have splits of their own
            arguments = json.loads(job.arguments)
            dataset = arguments.get("dataset", "")
            divided[dataset] = divided.get(dataset, False) or "values" in arguments
    setups = real.setups(asked) if any(dataset in divided for dataset in asked.datasets) else {}
    return [
        f"{asked.title(dataset)}: {note}"
        for dataset, setup in setups.items()
        for note in (*setup.read, *(setup.parted if divided.get(dataset) else ()))
        if dataset in divided
    ]


def _went_wrong(job: Job, error: BaseException) -> str:
    """Why a run failed. Data that cannot be read are no matter of one run, whose settings would only stand in the way; and of
    data that only the authors have, what can be made without them is said."""
    from srns.experiments import field, noise, real

    reason = reason_of(error)
    if not isinstance(error, DataError) or isinstance(error, ScoreError):
        return f"{job.label}: {reason}"
    dataset = str(json.loads(job.arguments).get("dataset", ""))
    if dataset.removesuffix("-tuning") in {*real.SETUPS, *noise.SETUPS, *field.DATASETS}:
        return f"{reason}; on a file of your own (--dataset clicks.csv): figure1, table3, field"
    return reason


def called(out: Path, asked: Asked) -> tuple[str, list[str]]:
    """How the names of files about the data asked for end (-clicks), and what the data are called in titles; nothing where they
    are those of the paper. Where files so called were made of other data, a number is added, so that these stay."""
    if not asked.datasets:
        return "", []
    mine, plain = origins(asked.datasets), "".join(f"-{stem}" for stem in asked.stems.values())
    for ending in chain([plain], (f"{plain}-{number}" for number in count(2))):
        files = [file for name in TARGETS | BEYOND if (file := out / f"{name}{ending}.json").exists()]
        if all(_same(mine, json.loads(file.read_text(encoding="utf-8")).get("datasets", mine)) for file in files):
            break
    return ending, [asked.title(dataset) if ending == plain else dataset for dataset in asked.datasets]


def origins(datasets: Sequence[str]) -> list[dict[str, str]]:
    """Which data these are: as they were named, and digests of where they are and of what they hold ("": not known)."""
    places = [str(Path(dataset).resolve()) if Path(dataset).exists() else dataset for dataset in datasets]
    return [
        {"dataset": dataset, "place": _digest(place), "contents": _digest(stamp(dataset))}
        for dataset, place in zip(datasets, places, strict=True)
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def _same(mine: Sequence[Mapping[str, str]], theirs: Sequence[Mapping[str, str]]) -> bool:
    """Whether data are the same: in the same place, whatever they held before, or with the same contents elsewhere."""
    return len(mine) == len(theirs) and all(
        one["place"] == other["place"] or (one["contents"] == other["contents"] != "")
        for one, other in zip(mine, theirs, strict=True)
    )


def write(
    out: Path, name: str, title: str, outcome: Outcome, asked: Asked, command: str, made_of: Found, made_by: dict[str, Any]
) -> None:
    """NAME.md to read, NAME.json with the numbers, and the figures."""
    out.mkdir(parents=True, exist_ok=True)
    ending, told = called(out, asked)
    title += f" ({', '.join(told)})" if told else ""
    figures = {f"{each}{ending}": figure for each, figure in outcome.figures.items()}
    lines = [f"# {title}", "", f"    {command}", "", *(table.markdown() for table in outcome.tables)]
    lines += [f"![{title}]({each}.png)\n" for each in figures]
    lines += ["| the paper's finding | here | measured |", "|---|---|---|"] if outcome.checks else []
    lines += [f"| {check.claim} | {check.mark} | {check.detail} |" for check in outcome.checks]
    lines += ["", *(f"- {note}" for note in outcome.notes)]
    record = {
        "title": title,
        "command": command,
        "datasets": origins(asked.datasets),
        "seeds": len({job.seed for job in made_of} - {None}),
        # of the targets that are made of whole runs alone; where others are among them, those say little by themselves
        "runs": sorted({found["run"] for found in made_of.values()}) if all("run" in each for each in made_of.values()) else [],
        "code": code_digest(),
        "tables": [table._asdict() for table in outcome.tables],
        "figures": list(figures),
        "charts": [chart._asdict() for chart in outcome.charts],
        "checks": [check._asdict() for check in outcome.checks],
        "notes": outcome.notes,
        "environment": made_by,
        "data": outcome.data,
    }
    for kind, text in ((".md", "\n".join(lines) + "\n"), (".json", json.dumps(_clean(record)) + "\n")):
        with replacing(out / f"{name}{ending}{kind}") as path:
            path.write_text(text, encoding="utf-8")
    for each, figure in figures.items():
        save(figure, out / each)


def page(
    out: Path, short: str, wrong: Mapping[str, str], add_more: Callable[[Page, list[Path]], None] = lambda made, runs: None
) -> Path:
    """All that was made in a folder, by this call and earlier ones, on one page, `out`/report.html; what went `wrong` in this
    one; and what `add_more` adds in the end of the folders of whole runs that it was made from. `short`: how runs in this
    folder are kept short."""
    records = {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for name in TARGETS | BEYOND
        for file in sorted([*out.glob(f"{name}.json"), *out.glob(f"{name}-*.json")])
    }
    checks = [(name, Check(**check)) for name, record in records.items() for check in record["checks"]]
    told = [check for _, check in checks if check.holds is not None]
    made = Page(
        "The SRNS paper, reproduced",
        "Tables and figures of Ding et al., Simplify and Robustify Negative Sampling for Implicit Collaborative Filtering "
        "(NeurIPS 2020), made again by srns" + (f": {short}, which shows that things work, not how well." if short else "."),
    )
    seeds = ", ".join(map(str, sorted({record["seeds"] for record in records.values()} - {0})))
    if checks:
        made.section("What the paper found, and what was found here")
        kept = f"{sum(bool(check.holds) for check in told)} of {len(told)}" if told else "\N{EN DASH}"
        whys = [check.why for _, check in checks if check.holds is None]
        rest = [f"{whys.count(why)} not judged: {why}" for why in dict.fromkeys(filter(None, whys))]
        rest += [f"{whys.count('')} cannot be told from these runs"] * ("" in whys)
        made.cards([("findings confirmed", kept, "; ".join(rest)), ("seeds", seeds, "")])
        marks = {True: "good", False: "bad", None: "faint"}
        rows: list[list[str | float | Cell]] = [
            [name, check.claim, Cell(check.mark, mark=marks[check.holds]), check.detail] for name, check in checks
        ]
        made.table(["where", "the paper's finding", "here", "measured"], rows)
    for name, record in records.items():
        made.section(record["title"])
        seen = "; ".join(f"{check.claim}: {check.mark}, {check.detail}" for where, check in checks if where == name)
        for each in record["figures"]:
            made.picture(out / f"{each}.svg", alt=seen or f"{record['title']}, as in the tables", caption=record["title"])
        for chart in record.get("charts", ()):  # not there in what earlier versions wrote
            lines = [Curve(*each) for each in chart["curves"]]
            made.curves(lines, chart["x_label"], chart["y_label"], chart["caption"])
        for table in record["tables"]:
            made.table(table["columns"], [list(map(_sortable, row)) for row in table["rows"]], table["title"])
        made.points(record["notes"])
    if wrong:
        made.section("What could not be made")
        made.points([f"{name}: {why}" for name, why in wrong.items()])
    made.section("How this was made")
    made.code("\n".join(dict.fromkeys(record["command"] for record in records.values())))
    facts = [[name, *_made_with(record["environment"])] for name, record in records.items()]
    made.table(["target", "date", "versions", "machine"], facts)
    runs = sorted({out / "runs" / run for record in records.values() for run in record.get("runs", ())})
    add_more(made, [run for run in runs if run.exists()])
    path = out / "report.html"
    made.write(path)
    return path


def _sortable(text: str) -> Cell:
    """A cell that is sorted by the number that it begins with, if it does.

    >>> [_sortable(text).sort for text in ("-.0073", ".1860 ± .0011", "1,024", "24, 24, 20", "srns")]
    [-0.0073, 0.186, 1024.0, 24.0, None]
    """
    number = re.match(r"[+-]?(\d{1,3}(,\d{3})+|\d*\.\d+|\d+)(?![\w.])", text)
    return Cell(text, float(number[0].replace(",", "")) if number else None)


def _made_with(found: dict[str, Any]) -> tuple[str, str, str]:
    """Date, versions and machine of one target."""
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    return str(found["date"]), f"Python {found['python']}, {packages}", f"{found['machine']}, {found['cores']} cores"


def _clean(value: Any) -> Any:
    """The same with what JSON lacks (NaN, infinity) as null."""
    if isinstance(value, dict):
        return {str(name): _clean(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
