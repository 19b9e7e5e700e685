"""`srns train`, `srns evaluate` and `srns info`: making a run, measuring it, saying what it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from srns.cli.console import Json, RunFolder, command, err, out, print_json
from srns.comparison import short
from srns.config import DATA_FIELDS
from srns.display import (
    Progress,
    announce_compiling,
    metrics_table,
    paired_table,
    result_tables,
    run_panel,
    training_line,
    update_lines,
)
from srns.errors import ArtifactError, ConfigError
from srns.options import parse_settings, with_config_flags
from srns.presets import PRESETS, make_config


@command("srns train clicks.csv --min-user 5 --dim 64 --out runs/clicks")
@with_config_flags
def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A data set name (see `srns datasets`), a path (CSV, TSV, Parquet, .inter, .txt, .npz) or a database's URL.",
        ),
    ],
    fields: dict[str, Any],
    preset: Annotated[str | None, typer.Option(help=f"A named set of values: {', '.join(PRESETS)}; flags win over it.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of fields; flags win over it.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set any field, those of the sampler too; repeatable."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help=escape("Folder for the run. [default: runs/DATA-METHOD-seedN]")),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out from its last checkpoint.")] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=escape("Log every epoch to this folder, for `tensorboard --logdir FOLDER`; needs srns[tensorboard]."),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model, choose its best epoch on validation data, measure it on test data, save it."""
    from srns.ranks import join
    from srns.runs import train_run
    from srns.tracking import TensorBoard

    run_config = make_config({**parse_settings(settings or []), **fields}, preset=preset, file=config)
    trackers = [TensorBoard(tensorboard)] if tensorboard else []
    ranks = join()
    with Progress(err if ranks.rank == 0 else Console(quiet=True)) as progress:
        callbacks = [progress, *trackers]
        run = train_run(data, run_config, out=folder, resume=resume, callbacks=callbacks, ranks=ranks)
    ranks.leave()
    if ranks.rank > 0:
        return
    show_run(run, as_json)


def show_run(run: dict[str, Any], as_json: bool) -> None:
    """What a run that has just ended gave."""
    if as_json:
        print_json({name: value for name, value in run.items() if name not in ("history", "files", "format", "version")})
        return
    for table in result_tables(run):
        out.print(table)
    for line in update_lines(run) if "updated" in run else ():
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    out.print(
        f"{training_line(run)}, {run['peak_rss_mb']:.0f} MB at most\n"
        f"saved to [bold]{escape(run['run'])}[/bold]; next: srns recommend {escape(run['run'])} --user ID",
        highlight=False,
        soft_wrap=True,  # a command to copy
    )


@command("srns evaluate runs/clicks --protocol full --against runs/older")
def evaluate(
    run: RunFolder,
    protocol: Annotated[str, typer.Option(help="full, paper, or auto (what the run used).")] = "auto",
    on: Annotated[str, typer.Option(help="test or valid.")] = "test",
    ks: Annotated[str | None, typer.Option(help="List lengths, such as 1,3,10.")] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="Another run, on the same data or on older: paired bootstrap of the differences on what RUN held out."
        ),
    ] = None,
    fail_if_worse: Annotated[
        bool,
        typer.Option(
            "--fail-if-worse",
            help="With --against: exit with 1 if RUN is worse by the metric it was chosen by, the whole 95% interval below 0.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a saved run again, under either protocol, or compare it with another run."""
    from srns import evaluation
    from srns.judging import judge
    from srns.recommender import Recommender
    from srns.terms import resolve_protocol

    announce_compiling(err)
    recommender = Recommender.load(run)
    asked = {"protocol": protocol if protocol != "auto" else recommender.config.protocol, **({"ks": ks} if ks else {})}
    settings = make_config({**recommender.config.model_dump(exclude_unset=True), **asked})
    split = recommender.split_
    chosen: Any = resolve_protocol(settings, split)
    part: Any = on
    if len(against or ()) > 1:
        raise ConfigError("--against takes one run; `srns report RUN...` compares several at once")
    other = against[0] if against else None
    if fail_if_worse and other is None:
        raise ConfigError("--fail-if-worse goes with --against RUN")
    if other is None:
        result = evaluation.evaluate(recommender.model_, split, on=part, protocol=chosen, ks=settings.ks)
    else:
        metric = recommender.config.metric
        ks_judged = sorted({*settings.ks, int(metric.split("@")[1])})
        opponent = Recommender.load(other)
        result, second, left_out = judge(recommender, opponent, part, chosen, ks_judged)
    answer: dict[str, Any] = {
        "run": str(run),
        "data": split.name,
        "on": on,
        "protocol": chosen,
        "users": len(result.users),
        "metrics": dict(result),
    }
    worse = False
    if other is not None:
        alike = split.fingerprint() == opponent.split_.fingerprint()
        here, there = recommender.config.model_dump(mode="json"), opponent.config.model_dump(mode="json")
        answer["against"] = {
            "run": str(other),
            "metrics": dict(second),
            "users_left_out": left_out,
            "same_data": alike,
            "settings": {name: [here[name], there[name]] for name in DATA_FIELDS if here[name] != there[name]},
        }
        answer["difference"] = {name: vars(evaluation.paired_bootstrap(result, second, name)) for name in result.per_user}
        worse = answer["difference"][metric]["high"] < 0
        answer["worse"] = {"metric": metric, "worse": worse}
    if as_json:
        print_json(answer)
    else:
        _show_measured(answer, settings.ks)
    if worse and fail_if_worse:
        raise typer.Exit(1)


def _show_measured(answer: dict[str, Any], ks: Sequence[int]) -> None:
    """What `evaluate` found, as tables."""
    title = f"{answer['data']}: {answer['on']}, protocol {answer['protocol']}, {answer['users']:,} users"
    out.print(metrics_table(title, answer["metrics"], ks))
    if "against" not in answer:
        return
    other = answer["against"]
    names = Path(answer["run"]).name, Path(other["run"]).name
    out.print(paired_table("Compared user by user", names, answer["metrics"], other["metrics"], answer["difference"]))
    if other["users_left_out"]:
        out.print(
            f"left out {other['users_left_out']:,} users: {names[1]} has learnt from what they are tested by", markup=False
        )
    if not other["same_data"]:
        told = [f"{name} {_told(there)}, here {_told(here)}" for name, (here, there) in other["settings"].items()]
        why = f" ({'; '.join(told)})" if told else ""
        said = f"{names[1]} was trained on other interactions, or other parts of them{why}"
        out.print(f"{said}: the difference is of models and data together", markup=False)
    if answer["worse"]["worse"]:
        out.print(f"{names[0]} is worse by {answer['worse']['metric']}", markup=False)


def _told(value: Any) -> str:
    return "unset" if value is None else short(value)


@command("srns info runs/clicks")
def info(run: RunFolder, as_json: Json = False) -> None:
    """What a run is: its data, settings, results and environment."""
    from srns.artifacts import RUN, read_run

    if run.is_file():
        raise ArtifactError(f"{run} is a file, not the folder of a run; what is in data says: srns look {run}")
    record = read_run(run)
    if as_json:
        print_json({"run": str(run), **record})
        return
    try:
        panel = run_panel(run, record)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # not written by srns, whatever its checksum says
        raise ArtifactError(f"{run / RUN} is not a whole run: {error!r}") from None
    out.print(panel)
