"""`srns audit`: how often samplers take for a negative what a user likes, on data of one's own."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace as replaced  # `replace` is an option here
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from srns.audit import VARIANCE, Plan
from srns.cli.console import Json, command, err, out, print_json
from srns.config import FILE_FIELDS
from srns.display import Sweep, plain_table
from srns.errors import ConfigError
from srns.options import as_text, flags_of, parse_settings, with_flags_of
from srns.page import refuse_other

if TYPE_CHECKING:
    from srns.audit.findings import Findings

DEFAULTS = Plan("")
QUESTIONS = 3_000
KEPT = Path("audit-runs")


@command("srns audit clicks.csv --out audit.html")
@with_flags_of(*FILE_FIELDS)
def audit(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A data set name (see `srns datasets`) or a path, as of `srns train`.")
    ],
    fields: dict[str, Any],
    sampler: Annotated[
        list[str] | None,
        typer.Option(
            "--sampler",
            help="Audit this one; repeatable. Any sampler, or srns-difficulty and srns-variance, which select from a memory. "
            + escape(f"[default: {', '.join(DEFAULTS.samplers)}]"),
        ),
    ] = None,
    variance_weight: Annotated[
        list[float] | None,
        typer.Option(
            "--variance-weight",
            min=0,
            help="Try srns-variance with this weight; repeatable. "
            + escape(f"[default: {', '.join(f'{weight:g}' for weight in DEFAULTS.variance_weights)}]"),
        ),
    ] = None,
    hide: Annotated[float, typer.Option(help="Share of the positives to hide.")] = DEFAULTS.hide,
    seeds: Annotated[
        int, typer.Option(min=1, help="Trainings of each sampler, each with other hidden positives.")
    ] = DEFAULTS.seeds,
    answers: Annotated[
        Path | None,
        typer.Option(
            help="A table of user, item and liked (1 or 0) about pairs picked at random, as --ask picks them, from which to "
            "measure how many of all negatives are false."
        ),
    ] = None,
    ask: Annotated[
        Path | None,
        typer.Option(help="Write a table of pairs to ask users about, for --answers, and stop: .csv, .parquet or .jsonl."),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --ask: how many. With 3,000 answers 93% of estimates are within 10%, with 10,000 99.9%. "
            + escape(f"[default: {QUESTIONS}]"),
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="With --ask: in the place of a table that is there.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set a field of every training, such as dim=64; repeatable."),
    ] = None,
    page: Annotated[Path | None, typer.Option("--out", "-o", help="Write an HTML page that explains what was found.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=0, help=escape("Trainings side by side; 0: one per core. [default: 0]"))
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help=escape(f"Folder that keeps trainings: the same command goes on from there. [default: {KEPT}]")),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find out how often each sampler draws what users like as a negative, and which sampler fits your data.

    Some positives are hidden; models are trained on the rest; each time a hidden one is drawn as a negative is a mistake.
    """
    from srns.audit import sweep, words
    from srns.audit.page import make_page
    from srns.experiments.store import Store

    chosen = parse_settings(settings or [])
    for name, value in fields.items():
        if name in chosen:
            raise ConfigError(f"{flags_of({name: value})[0]} and --set {name}={chosen[name]} both say it: keep one")
    if variance_weight and VARIANCE not in (sampler or DEFAULTS.samplers):
        raise ConfigError(f"--variance-weight goes with --sampler {VARIANCE}, which is not audited here")
    plan = Plan(
        data,
        tuple(sampler or DEFAULTS.samplers),
        tuple(dict.fromkeys(variance_weight or DEFAULTS.variance_weights)),
        hide,
        seeds,
        None if answers is None else str(answers),
        {**fields, **chosen},
    )
    if ask is not None:
        if answers is not None:
            raise ConfigError("--ask picks questions and --answers takes what came back: give one of them")
        training = {"--out": page, "--jobs": jobs, "--runs": runs}
        if idle := [flag for flag, value in training.items() if value is not None]:
            raise ConfigError(f"{', '.join(idle)}: not with --ask, which trains nothing")
        if ask.exists() and not replace:
            raise ConfigError(f"{ask} is there already, perhaps with answers: --replace puts new questions in its place")
        _ask(plan, questions or QUESTIONS, ask, as_json)
        return
    if questions is not None or replace:
        raise ConfigError("--questions and --replace go with --ask FILE")
    kept = runs or KEPT
    if page is not None:
        refuse_other(page)
    notes = _reading(plan)
    with Sweep(err) as watcher:
        found = sweep.audit(plan, Store(kept), jobs or os.cpu_count() or 1, watcher)
    found = replaced(found, notes=tuple(dict.fromkeys([*notes, *found.notes])))
    train = None if found.alone else words.to_train(found, data)
    following = train or said(with_others(plan))
    if page is not None:
        make_page(found, data, said(plan), following).write(page)
    if as_json:
        places = {"page": None if page is None else str(page), "runs": str(kept)}
        print_json({"data": data, **places, "train": train, "next": following, **words.numbers(found)})
        return
    out.print(table(found, data))
    for line in words.answer(found):
        out.print(Text(f"- {line}"))
    if page is not None:
        out.print(Text(f"explained on {page}"))
    out.print(Text(f"trainings are kept in {kept}: the same command reuses them"), soft_wrap=True)
    out.print(Text(f"next: {following}"), soft_wrap=True)


def _reading(plan: Plan) -> tuple[str, ...]:
    """How the data are read, told before the trainings begin: which columns, and which rows are left out."""
    from srns.audit.hiding import observed
    from srns.audit.sweep import contestants
    from srns.experiments.store import refuse_database
    from srns.presets import make_config

    refuse_database(plan.dataset)
    notes = observed(plan.dataset, make_config(dict(contestants(plan)[0].values))).notes
    for note in notes:
        err.print(note, highlight=False, markup=False, soft_wrap=True)
    return notes


def with_others(plan: Plan) -> Plan:
    """The audit that compares the samplers of this one with those of an audit by default."""
    others = (*DEFAULTS.samplers, *plan.samplers)
    return replaced(plan, samplers=tuple(dict.fromkeys(others)))


def _ask(plan: Plan, size: int, path: Path, as_json: bool) -> None:
    from srns.audit.hiding import observed
    from srns.audit.questions import questions
    from srns.audit.sweep import contestants
    from srns.experiments.store import refuse_database
    from srns.lists import write_frames
    from srns.presets import make_config

    refuse_database(plan.dataset)
    config = make_config(dict(contestants(plan)[0].values))
    written = write_frames([questions(observed(plan.dataset, config), size, config)], path)
    if as_json:
        print_json({"data": plan.dataset, "questions": written, "path": str(path)})
        return
    out.print(
        Text(f"{written:,} questions in {path}: add a column liked, 1 or 0, leave out what nobody answered, and give it to")
    )
    out.print(Text(f"{said(plan)} --answers {shlex.quote(str(path))}"))


def table(found: Findings, data: str) -> Group:
    """A row for each sampler."""
    with_answers = found.each[0].errors is not None
    compared = [] if found.alone else ["over uniform", "verdict"]
    columns = ["sampler", "hidden", "x chance", *["liked"] * with_answers, found.facts["metric"], *compared]
    rows = []
    for each in found.each:
        verdict = "use" if each is found.recommendation.chosen else "behind" if each.worse else "no different"
        errors = [] if each.errors is None else [f"{each.errors.value:.1%}"]
        gain = "" if each.to_uniform is None else f"{each.to_uniform.value:+.4f}"
        cells = [f"{each.hidden.value:.2%}", f"{each.to_chance.value:.2f}", *errors, f"{each.metric.value:.4f}"]
        rows.append([each.contestant.name, *cells, *([] if found.alone else [gain, verdict])])
    liked = " and liked ones" if with_answers else ""
    return plain_table(f"{data}: hidden{liked} among drawn negatives, and how good the models are", columns, rows)


def said(plan: Plan) -> str:
    """The command that makes the same audit."""
    words = ["srns", "audit", plan.dataset]
    words += [word for name in plan.samplers for word in ("--sampler", name)] if plan.samplers != DEFAULTS.samplers else []
    if plan.variance_weights != DEFAULTS.variance_weights:
        words += [word for weight in plan.variance_weights for word in ("--variance-weight", f"{weight:g}")]
    for name in ("hide", "seeds", "answers"):
        if getattr(plan, name) != getattr(DEFAULTS, name):
            words += [f"--{name}", str(getattr(plan, name))]
    words += [word for name, value in plan.settings.items() for word in ("--set", f"{name}={as_text(value)}")]
    return shlex.join(words)
