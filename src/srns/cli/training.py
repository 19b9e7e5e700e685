"""`srns train`, `srns evaluate` and `srns info`: making a run, measuring it, saying what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from srns.cli.console import Json, RunFolder, command, err, out, print_json
from srns.display import Progress, announce_compiling, metrics_table, paired_table, result_tables, run_panel, training_line
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
    if as_json:
        print_json({name: value for name, value in run.items() if name not in ("history", "files", "format", "version")})
        return
    for table in result_tables(run):
        out.print(table)
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
        Path | None, typer.Option(help="Another run on the same data: paired bootstrap of the differences.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a saved run again, under either protocol, or compare it with another run."""
    from srns import evaluation
    from srns.recommender import Recommender
    from srns.trainer import resolve_protocol

    announce_compiling(err)
    recommender = Recommender.load(run)
    asked = {"protocol": protocol if protocol != "auto" else recommender.config.protocol, **({"ks": ks} if ks else {})}
    settings = make_config({**recommender.config.model_dump(exclude_unset=True), **asked})
    split = recommender.split_
    chosen: Any = resolve_protocol(settings, split)
    part: Any = on
    result = evaluation.evaluate(recommender.model_, split, on=part, protocol=chosen, ks=settings.ks)
    answer: dict[str, Any] = {
        "run": str(run),
        "data": split.name,
        "on": on,
        "protocol": chosen,
        "users": len(result.users),
        "metrics": dict(result),
    }
    if against is not None:
        other = Recommender.load(against)
        if other.split_.fingerprint() != split.fingerprint():
            raise ConfigError(
                f"{run} and {against} were trained on different data, or on data split by another --split or --split-seed, "
                "and cannot be compared user by user"
            )
        second = evaluation.evaluate(other.model_, other.split_, on=part, protocol=chosen, ks=settings.ks)
        answer["against"] = {"run": str(against), "metrics": dict(second)}
        answer["difference"] = {name: vars(evaluation.paired_bootstrap(result, second, name)) for name in result.per_user}
    if as_json:
        print_json(answer)
        return
    title = f"{split.name}: {on}, protocol {chosen}, {len(result.users):,} users"
    out.print(metrics_table(title, result, settings.ks))
    if against is not None:
        names, other = (run.name, against.name), answer["against"]["metrics"]
        out.print(paired_table("Compared user by user", names, result, other, answer["difference"]))


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
