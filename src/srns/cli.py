"""The command line: parse, call, print. Results go to standard output, progress and messages to standard error."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from srns import __version__
from srns.config import PRESETS, make_config
from srns.display import Progress, announce_compiling, metrics_table, plain_table, result_tables, run_panel, training_line
from srns.errors import ArtifactError, ConfigError, SrnsError
from srns.options import parse_settings, with_config_flags
from srns.ranks import world_size

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train recommenders from implicit feedback (clicks, purchases, watches), measure them honestly, and use them.\n\n"
    "Start with [bold]srns demo[/bold], then [bold]srns train my-clicks.csv[/bold].",
)
out, err = Console(), Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, as `srns train` prints it.")]
K = Annotated[int, typer.Option("-k", "--k", min=1, help="Length of the list.")]


def example(text: str) -> str:
    """The epilog that gives a command its example."""
    return f"[bold]Example:[/bold]  {text}"


def command(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command: its example under --help, and errors as one line instead of a stack trace."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            try:
                if world_size() > 1 and function.__name__ not in ("train", "recommend"):
                    raise ConfigError(f"`srns {function.__name__}` runs in one process; start it without torchrun")
                function(*args, **kwargs)
            except (SrnsError, OSError, MemoryError, UnicodeError) as error:  # the last: an argument that is no UTF-8
                message = str(error) or type(error).__name__
                err.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True, highlight=False)
                if kwargs.get("as_json"):
                    with suppress(OSError):  # standard output itself may be what failed
                        print_json({"error": message})
                raise typer.Exit(2) from None
            except KeyboardInterrupt as interrupt:
                reason = f": {interrupt.args[0]}; the same command with --resume goes on from there" if interrupt.args else ""
                err.print(f"interrupted{reason}", highlight=False, soft_wrap=True)
                raise typer.Exit(130) from None

        app.command(function.__name__.strip("_"), epilog=example(text))(run)
        return run

    return register


def print_json(value: Any) -> None:
    """One JSON object; numbers that JSON lacks (infinity, NaN) become null."""

    def clean(part: Any) -> Any:
        if isinstance(part, dict):
            return {str(name): clean(each) for name, each in part.items()}
        if isinstance(part, list | tuple):
            return [clean(each) for each in part]
        if hasattr(part, "tolist"):
            return clean(part.tolist())
        return None if isinstance(part, float) and not math.isfinite(part) else part

    sys.stdout.write(json.dumps(clean(value)) + "\n")


def show_version(value: bool) -> None:
    if value:
        out.print(f"srns {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@command("srns demo")
def demo(as_json: Json = False) -> None:
    """Simulate data, train, measure and recommend: the whole pipeline in under a minute."""
    from srns.demo import run_demo

    result = run_demo(out if not as_json else None, err)
    if as_json:
        print_json(result)


@command("srns datasets")
def datasets(as_json: Json = False) -> None:
    """List the data sets known by name: simulated, downloadable, and found in the folder $SRNS_DATA."""
    from srns.datasets import available

    found = available()
    rows = [
        {"name": each.name, "kind": each.kind, "source": str(each.source), "description": each.description} for each in found
    ]
    if as_json:
        print_json({"datasets": rows})
    else:
        out.print(
            plain_table(
                "Data sets",
                ["name", "kind", "description", "source"],
                [[r["name"], r["kind"], r["description"], r["source"]] for r in rows],
            )
        )


@command("srns train clicks.csv --min-user 5 --dim 64 --out runs/clicks")
@with_config_flags
def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="A data set name (see `srns datasets`) or a path: CSV, TSV, Parquet, .inter, .txt, .npz."
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
        typer.Option(
            "--out", help=escape("Folder for the run. [default: runs/DATA-SAMPLER-seedN, or -SCORER- without negatives]")
        ),
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
        columns = ["metric", run.name, against.name, "difference", "95% interval", ""]
        out.print(
            plain_table("Compared user by user (paired bootstrap; * : the interval excludes 0)", columns, _differences(answer))
        )


def _differences(answer: dict[str, Any]) -> list[list[str]]:
    """Rows of the comparison for people: NDCG and recall; --json has all metrics."""
    rows = []
    for name, d in answer["difference"].items():
        if name.startswith(("ndcg", "recall")):
            values = [f"{answer['metrics'][name]:.4f}", f"{answer['against']['metrics'][name]:.4f}", f"{d['difference']:+.4f}"]
            rows.append([name, *values, f"{d['low']:+.4f} to {d['high']:+.4f}", "*" if d["low"] * d["high"] > 0 else ""])
    return rows


@command("srns recommend runs/clicks --user 42 -k 5")
def recommend(
    run: RunFolder,
    user: Annotated[list[str] | None, typer.Option("--user", help="Id of a user as in your data; repeatable.")] = None,
    all_users: Annotated[bool, typer.Option("--all-users", help="All users of the training data; needs --out.")] = False,
    k: K = 10,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write a file instead: .parquet, .csv or .jsonl (user_id, item_id, score, rank); under torchrun, a folder.",
        ),
    ] = None,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Allow items the user already had.")] = False,
    unknown: Annotated[
        str, typer.Option(help="What unknown users get: an error (raise) or the most popular items (popular).")
    ] = "raise",
    as_json: Json = False,
) -> None:
    """Recommend items to one, several or all users."""
    import polars as pl

    from srns.ranks import join
    from srns.recommender import Recommender, write_frames

    if bool(user) == all_users:
        raise ConfigError("say for whom: either --user ID (repeatable) or --all-users")
    if all_users and file is None:
        raise ConfigError("--all-users needs --out FILE (.parquet, .csv or .jsonl)")
    if unknown not in ("raise", "popular"):
        raise ConfigError(f"--unknown {unknown!r}: expected raise or popular")
    fallback: Any = unknown
    ranks = join()
    if ranks.size > 1 and not all_users:
        raise ConfigError("several ranks recommend to --all-users; for a few users, start srns without torchrun")
    if ranks.size > 1 and file is not None and file.suffix:
        raise ConfigError(f"--out {file}: several ranks write a folder of Parquet files; give a name without {file.suffix}")
    announce_compiling(err)
    recommender = Recommender.load(run, share=(ranks.rank, ranks.size))
    frames = recommender.recommend_frames(user, k, exclude_seen=not include_seen, unknown=fallback)
    total = len(user) if user else recommender.n_recommended
    if file is not None:
        mine = file if ranks.size == 1 else file / f"part-{ranks.rank}-of-{ranks.size}.parquet"
        with Progress(err if ranks.rank == 0 else Console(quiet=True)) as progress, ranks.together():
            rows = write_frames(progress.track(frames, total), mine)
            rows, total = (sum(each) for each in zip(*ranks.gather((rows, total)), strict=True))
        ranks.leave()
        if ranks.rank > 0:
            return
        for other in file.glob("part-*-of-*.parquet") if ranks.size > 1 else ():  # of an earlier time with other ranks
            if not other.name.endswith(f"-of-{ranks.size}.parquet"):
                other.unlink()
        answer = {"run": str(run), "file": str(file), "users": total, "rows": rows}
        if as_json:
            print_json(answer)
        else:
            said = f"wrote {rows:,} recommendations for {total:,} users to {file}"
            out.print(said, highlight=False, markup=False, soft_wrap=True)
        return
    frame = pl.concat(list(frames))
    if as_json:
        print_json({"run": str(run), "recommendations": frame.to_dicts()})
    else:
        rows_shown = [[str(r["user_id"]), str(r["rank"]), str(r["item_id"]), f"{r['score']:.4f}"] for r in frame.to_dicts()]
        out.print(plain_table("Recommendations", ["user_id", "rank", "item_id", "score"], rows_shown))


@command("srns similar runs/clicks --item 7 -k 5")
def similar(
    run: RunFolder,
    item: Annotated[str, typer.Option("--item", help="Id of an item as in your data.")],
    k: K = 10,
    as_json: Json = False,
) -> None:
    """Items most like one item, by the angle between what the model learnt of them."""
    from srns.recommender import Recommender

    announce_compiling(err)
    ids, scores = Recommender.load(run).similar_items(item, k)
    rows = [
        {"item_id": each, "similarity": float(score), "rank": rank + 1}
        for rank, (each, score) in enumerate(zip(ids.tolist(), scores, strict=True))
    ]
    if as_json:
        print_json({"run": str(run), "item": item, "similar": rows})
    else:
        out.print(
            plain_table(
                f"Items like {item}",
                ["rank", "item_id", "similarity"],
                [[str(r["rank"]), str(r["item_id"]), f"{r['similarity']:.4f}"] for r in rows],
            )
        )


@command("srns bench samplers --plot costs.png")
def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="samplers: the time per positive of each, table 1 of the paper.")],
    sampler: Annotated[list[str] | None, typer.Option("--sampler", help="Measure this one; repeatable. [default: all]")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves to this file (.png, .svg, .pdf).")] = None,
    as_json: Json = False,
) -> None:
    """Measure how the cost of samplers grows with the size of embeddings, catalogue and candidate set."""
    from srns.experiments import sampler_costs
    from srns.runs import environment
    from srns.samplers import SAMPLERS

    if what != "samplers":
        raise ConfigError(f"{what!r} cannot be measured; expected: samplers")
    names = list(dict.fromkeys(["uniform", *(sampler or SAMPLERS)]))
    if plot is not None:
        sampler_costs.require_plots()
    if left_out := [name for name in names if not sampler_costs.measurable(name)]:
        err.print(f"left out, since nothing is drawn or torch is not installed: {', '.join(left_out)}", highlight=False)
    err.print("measuring; a few seconds for each sampler ...", highlight=False)
    found = []
    with err.status("measuring") as status:
        for cell in sampler_costs.cells(names):
            found.append(cell)
            status.update(f"measuring {cell.sampler}: {cell.microseconds:.2f} microseconds per positive")
    rows = sampler_costs.summary(found)
    if plot is not None:
        sampler_costs.plot(found, plot)
    if as_json:
        print_json({"samplers": rows, "cells": [cell._asdict() for cell in found], "environment": environment()})
        return
    columns = ["sampler", "cost per positive", "paper, per batch", "engine", "us", "x uniform", "F^", "|I|^", "N^"]
    cells = [
        [r["sampler"], r["cost"], r["paper"], r["engine"], f"{r['microseconds']:.2f}", f"{r['to_uniform']:.1f}"]
        + [
            "" if math.isnan(r[power]) else f"{r[power]:.2f}"
            for power in ("power_of_dim", "power_of_items", "power_of_candidates")
        ]
        for r in rows
    ]
    out.print(plain_table("Time per positive, and by which power of F, |I| and N it grows", columns, cells))
    if plot is not None:
        out.print(f"drawn to {plot}", highlight=False, markup=False)


@command("srns info runs/clicks")
def info(run: RunFolder, as_json: Json = False) -> None:
    """What a run is: its data, settings, results and environment."""
    from srns.artifacts import RUN, read_run

    record = read_run(run)
    if as_json:
        print_json({"run": str(run), **record})
        return
    try:
        panel = run_panel(run, record)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # not written by srns, whatever its checksum says
        raise ArtifactError(f"{run / RUN} is not a whole run: {error!r}") from None
    out.print(panel)


def main() -> None:
    """Entry point of the `srns` command."""
    app()


if __name__ == "__main__":
    main()
