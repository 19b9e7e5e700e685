"""`srns recommend`, `similar`, `explain` and `export`: what a trained model is for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from srns.cli.console import Json, K, RunFolder, command, err, out, print_json
from srns.databases import How, check_ready, is_url, shown, write_database
from srns.display import Progress, announce_compiling, plain_table
from srns.errors import ConfigError


@command("srns recommend runs/clicks --user 42 -k 5")
def recommend(
    run: RunFolder,
    user: Annotated[list[str] | None, typer.Option("--user", help="Id of a user as in your data; repeatable.")] = None,
    items: Annotated[
        list[str] | None,
        typer.Option("--had", metavar="ITEM", help="For somebody new: an item they had; repeatable, instead of --user."),
    ] = None,
    all_users: Annotated[
        bool, typer.Option("--all-users", help="All users of the training data; needs --out or --to.")
    ] = False,
    k: K = 10,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write a file instead: .parquet, .csv or .jsonl (user_id, item_id, score, rank); under torchrun, a folder.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="With --all-users --out: go on with what an interrupted call has left.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help=escape("Write to a database instead, with --table; needs srns[sql].")),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="With --to: the table, which is made if it is not there.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of the file, or of all rows of the table, that is there.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="With --to: beside the rows of the table.")] = False,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Allow items the user already had.")] = False,
    unknown: Annotated[
        str, typer.Option(help="What unknown users get: an error (raise) or the most popular items (popular).")
    ] = "raise",
    as_json: Json = False,
) -> None:
    """Recommend items to one, several or all users."""
    import polars as pl

    from srns.lists import write_all_users, write_frames
    from srns.ranks import join
    from srns.recommender import Recommender

    if bool(user) + bool(items) + all_users != 1:
        asked = "say for whom" if not (user or items or all_users) else "say for whom by one of these"
        raise ConfigError(f"{asked}: --user ID (repeatable), --had ITEM (repeatable) for somebody new, or --all-users")
    if all_users and file is None and url is None:
        raise ConfigError("--all-users needs --out FILE (.parquet, .csv or .jsonl) or --to URL")
    if resume and not (all_users and file is not None):
        raise ConfigError(
            "--resume goes on with --all-users --out FILE; a database is written in one transaction or not at all"
        )
    if unknown not in ("raise", "popular"):
        raise ConfigError(f"--unknown {unknown!r}: expected raise or popular")
    how = _how(file, url, table, replace, append)
    fallback: Any = unknown
    ranks = join()
    if ranks.size > 1 and not all_users:
        raise ConfigError("several ranks recommend to --all-users; for a few users, start srns without torchrun")
    if ranks.size > 1 and url is not None:
        raise ConfigError("several ranks cannot share a transaction; start srns without torchrun")
    if ranks.size > 1 and file is not None and file.suffix:
        raise ConfigError(f"--out {file}: several ranks write a folder of Parquet files; give a name without {file.suffix}")
    if file is not None and ranks.any(not replace and _taken(file, ranks.size > 1, resume)):
        raise ConfigError(f"{file} is there already: --replace puts the new recommendations in its place")
    announce_compiling(err)
    recommender = Recommender.load(run, share=(ranks.rank, ranks.size))
    if items:
        if file is not None or url is not None:
            raise ConfigError("--out and --to are for --user and --all-users; what somebody new gets is printed")
        found, scores = recommender.recommend_for(items, k, exclude_seen=not include_seen)
        if as_json:
            print_json({"run": str(run), "had": items, "recommendations": _ranked(found, scores, "score")})
        else:
            _print_ranked(f"For somebody who had {', '.join(items)}", found, scores, "score")
        return
    frames = recommender.recommend_frames(user, k, exclude_seen=not include_seen, unknown=fallback)
    total = len(user) if user else recommender.n_recommended
    if url is not None and table is not None:
        with Progress(err) as progress:
            rows = write_database(progress.track(frames, total), url, table, how)
        answer = {"run": str(run), "to": shown(url), "table": table, "users": total, "rows": rows}
        _say_written(answer, f"table {table} of {shown(url)}", as_json)
    elif file is not None:
        mine = file if ranks.size == 1 else file / f"part-{ranks.rank}-of-{ranks.size}.parquet"
        with Progress(err if ranks.rank == 0 else Console(quiet=True)) as progress, ranks.together():
            if all_users:
                counted = partial(progress.track, users=total)
                how_far = {"resume": resume, "anew": replace}
                rows = write_all_users(recommender, run, mine, k, exclude_seen=not include_seen, track=counted, **how_far)
            else:
                rows = write_frames(progress.track(frames, total), mine)
            rows, total = (sum(each) for each in zip(*ranks.gather((rows, total)), strict=True))
        ranks.leave()
        if ranks.rank > 0:
            return
        for other in file.glob("part-*-of-*.parquet") if ranks.size > 1 else ():  # of an earlier time with other ranks
            if not other.name.endswith(f"-of-{ranks.size}.parquet"):
                other.unlink()
        _say_written({"run": str(run), "file": str(file), "users": total, "rows": rows}, str(file), as_json)
    else:
        frame = pl.concat(list(frames))
        if as_json:
            print_json({"run": str(run), "recommendations": frame.to_dicts()})
            return
        rows_shown = [[str(r["user_id"]), str(r["rank"]), str(r["item_id"]), f"{r['score']:.4f}"] for r in frame.to_dicts()]
        out.print(plain_table("Recommendations", ["user_id", "rank", "item_id", "score"], rows_shown))


def _how(file: Path | None, url: str | None, table: str | None, replace: bool, append: bool) -> How:
    """What the flags say about a table, once they go together."""
    if file is not None and (url is not None or is_url(str(file))):
        raise ConfigError("--out is for a file and --to for a database: give one of them, with --table beside --to")
    if url is None and (table is not None or append):
        raise ConfigError("--table and --append go with --to URL")
    if url is None and file is None and replace:
        raise ConfigError("--replace goes with --out FILE or --to URL")
    if url is not None and table is None:
        raise ConfigError("--to needs --table NAME: the table to write")
    if replace and append:
        raise ConfigError("--replace and --append: give one of them")
    if url is not None:
        check_ready(url, table or "")
    return "replace" if replace else "append" if append else "new"


def _taken(file: Path, by_ranks: bool, resume: bool) -> bool:
    """Whether recommendations are there that are not the ones to go on with: in a file, or in a folder that ranks write."""
    if by_ranks:
        return any(file.glob("part-*-of-*.parquet")) and not (resume and any(file.glob("part-*.partial")))
    return file.is_file() and not (resume and file.with_name(f"{file.name}.partial").exists())


def _say_written(answer: dict[str, Any], where: str, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        said = f"wrote {answer['rows']:,} recommendations for {answer['users']:,} users to {where}"
        out.print(said, highlight=False, markup=False, soft_wrap=True)


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
    if as_json:
        print_json({"run": str(run), "item": item, "similar": _ranked(ids, scores, "similarity")})
    else:
        _print_ranked(f"Items like {item}", ids, scores, "similarity")


def _ranked(ids: Any, scores: Any, kind: str) -> list[dict[str, Any]]:
    """Items (k,) with what they score, best first, as rows."""
    pairs = zip(ids.tolist(), scores, strict=True)
    return [{"item_id": each, kind: float(score), "rank": rank + 1} for rank, (each, score) in enumerate(pairs)]


def _print_ranked(title: str, ids: Any, scores: Any, kind: str) -> None:
    cells = [[str(row["rank"]), str(row["item_id"]), f"{row[kind]:.4f}"] for row in _ranked(ids, scores, kind)]
    out.print(plain_table(title, ["rank", "item_id", kind], cells))


@command("srns explain runs/clicks --user 42 --item 7")
def explain(
    run: RunFolder,
    user: Annotated[str, typer.Option("--user", help="Id of a user as in your data.")],
    item: Annotated[str, typer.Option("--item", help="Id of an item as in your data.")],
    k: K = 5,
    as_json: Json = False,
) -> None:
    """Why an item for a user: the items of theirs that speak most for it."""
    from srns.recommender import Recommender

    model = Recommender.load(run)
    ids, shares = model.explain(user, item, k)
    rows = [{"item_id": each, "adds": float(share)} for each, share in zip(ids.tolist(), shares, strict=True)]
    had = model.has_touched(user, item)
    if as_json:
        print_json({"run": str(run), "user": user, "item": item, "had": had, "because_of": rows})
    else:
        cells = [[str(r["item_id"]), f"{r['adds']:+.4f}"] for r in rows]
        title = f"Why {item} for {user}: what they had, and how much each adds to its score, going by these items alone"
        out.print(plain_table(title, ["item_id", "adds"], cells))
        if had:
            out.print(f"{user} had {item} already, so that it is not recommended", markup=False, highlight=False)


@command("srns export runs/clicks --format faiss --out index")
def export(
    run: RunFolder,
    kind: Annotated[
        str, typer.Option("--format", help="parquet or npz (factors and ids); faiss or usearch (an index of items).")
    ],
    folder: Annotated[
        Path | None, typer.Option("--out", help=escape("Folder to write to. [default: RUN/export-FORMAT]"))
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="In the place of an export that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write the factors for use elsewhere: as tables, or as an index of nearest neighbours whose recall is measured."""
    from srns.indexes import FILES, RECORD
    from srns.indexes import export as write
    from srns.recommender import Recommender

    where = folder or run / f"export-{kind}"
    for name in (*(name for names in FILES.values() for name in names), RECORD):
        if not replace and (where / name).exists():
            raise ConfigError(f"{where / name} is there already: --replace puts the new export in its place")
    record = write(Recommender.load(run), kind, where)
    if as_json:
        print_json({"run": str(run), "folder": str(where), **record})
        return
    if "recall" in record:
        rates, width = record["queries_per_second"], record["search_width"]
        out.print(
            f"{record['kind']} index: recall@{record['k']} {record['recall']:.4f} of exact search"
            f"{f', search width {width}' if width else ''}; queries per second, one at a time on one thread: "
            f"{rates['approximate']:,.0f} by a graph, {rates['exact']:,.0f} exactly, {rates['numpy']:,.0f} with numpy",
            highlight=False,
            soft_wrap=True,
        )
        out.print(record["note"], highlight=False, markup=False, soft_wrap=True)
    out.print(f"wrote {', '.join(record['files'])} to {where}", highlight=False, markup=False, soft_wrap=True)
