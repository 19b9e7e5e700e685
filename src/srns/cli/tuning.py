"""`srns tune`: which settings suit the data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from srns.cli.console import Json, command, err, out, print_json
from srns.display import paired_table, plain_table
from srns.options import TRIALS, as_text, parse_settings, with_config_flags
from srns.presets import PRESETS

SHOWN = 5  # trials in the table, which has room for them in 80 columns


@command("srns tune clicks.csv --min-user 5 --trials 30 --jobs 2")
@with_config_flags
def tune(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A data set name or a path, as for `srns train`.")],
    fields: dict[str, Any],
    search: Annotated[
        str,
        typer.Option(help="tpe: Optuna proposes settings, hopeless ones are cut short; paper: the stages of its appendix B.4."),
    ] = "tpe",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=RANGE",
            help="What may vary, instead of the default: FIELD=LOW:HIGH, FIELD=LOW:HIGH:log or FIELD=A,B,C; repeatable. "
            "Fields given as flags are fixed.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help=escape(f"Settings to try in all. [default: {TRIALS}, or what --minutes allow]"))
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop searching after so long; the winner is trained then.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at once, each in a process of its own.")] = 1,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds to train winner and default with, for test data; 0: none.")] = 1,
    plot: Annotated[
        bool, typer.Option("--plot/--no-plot", help="Draw the search to search.png and search.svg in its folder.")
    ] = True,
    preset: Annotated[str | None, typer.Option(help=f"A named set of values: {', '.join(PRESETS)}; flags win over it.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of fields, fixed unless they are varied.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Fix any field, those of the sampler too; repeatable."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", help=escape("Folder of the search; the same command goes on there. [default: tuning/DATA-METHOD]")
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Search the settings that do best on validation data, then measure them on test data beside the default recipe."""
    from srns.tuning import Asked, tune

    values = {**parse_settings(settings or []), **fields}
    asked = Asked(data, values, preset, config, vary or (), search, folder, trials, minutes, jobs, seeds, plot)
    try:
        answer = tune(asked, err)
    except KeyboardInterrupt:
        err.print("interrupted; the same command goes on with what was found", highlight=False)
        raise typer.Exit(130) from None
    if as_json:
        print_json(answer)
        return
    for table in _tables(answer):
        out.print(table)
    plots = f"; drawn to {answer['plots'][0]}" if answer["plots"] else ""
    if plot and not plots:
        plots = "; no plot: matplotlib is missing (pip install 'srns[report]')"
    out.print(f"{_verdict(answer)}\nall of it is in {answer['out']}{plots}\n", highlight=False, markup=False)
    if answer["command"] is None:
        out.print(Text("What stays: ", style="bold") + Text(answer["start"]["run"]), soft_wrap=True)
        return
    if note := _other_recipe(answer):
        out.print(note, highlight=False, markup=False)
    out.print(Text("The winner: ", style="bold") + Text(answer["command"]), soft_wrap=True)


def _tables(answer: dict[str, Any]) -> list[Any]:
    ranked = sorted((each for each in answer["trials"] if each["state"] == "complete"), key=lambda each: -each["value"])
    best = [answer["best"], *(each for each in ranked if each["number"] != answer["best"]["number"])][:SHOWN]
    rows = [[answer["metric"], *(f"{each['value']:.4f}" for each in best)]]
    rows += [[name, *(_shown(each["params"].get(name)) for each in best)] for name in answer["space"]]
    rows.append(["", *(each["note"] for each in best)])
    states = [each["state"] for each in answer["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed") if state in states)
    title = f"The best of {_several(len(states), 'trial')} on validation ({counts})"
    tables: list[Any] = [plain_table(title, ["trial", *(str(each["number"]) for each in best)], rows)]
    if answer["importance"]:
        bars = [[name, f"{share:.0%}", "█" * round(20 * share)] for name, share in answer["importance"].items()]
        where = " of a stage" if answer["search"] == "paper" else ""
        tables.append(
            plain_table(f"What mattered: shares in being among the best quarter{where}", ["field", "share", ""], bars)
        )
    test = answer.get("test", {})
    if "difference" in test:
        title = f"Test, protocol {test['protocol']}, {test['users']:,} users, {_several(len(test['seeds']), 'seed')}"
        tables.append(paired_table(title, (test["winner"], "default"), test["metrics"], test["default"], test["difference"]))
    return tables


def _several(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _verdict(answer: dict[str, Any]) -> str:
    """Whether tuning paid off, in a sentence."""
    test, metric = answer.get("test", {}), answer["metric"]
    if answer["start"] and not answer["start"]["beaten"]:
        whose = f" of {answer['config']['sampler']}" if answer["search"] == "paper" else ""  # others are tried on the way to it
        measured = f"; {metric} {test['metrics'][metric]:.4f} on test" if "metrics" in test else ""
        return (
            f"no setting{whose} was better on validation than {answer['start']['run']}, which they started from{measured}: "
            "stay with it"
        )
    flags = answer["default"]["flags"]
    default = f"the default recipe{f' with {flags}' if flags else ''}"
    if answer["best"]["is_default"]:
        measured = f"; {metric} {test['default'][metric]:.4f} on test" if "default" in test else ""
        return f"no setting was better on validation than {default}{measured}"
    if "difference" not in test:
        return "not measured on test data" + (": there are none" if test else "")
    d = test["difference"][metric]
    if d["low"] > 0:
        said = "tuning paid off"
    elif d["high"] < 0:
        said = "the latter is better on test: stay with it" if flags else "the default recipe is better on test: stay with it"
    else:
        said = "these users cannot tell whether tuning paid off"
    return f"{metric} {d['difference']:+.4f} against {default} ({d['low']:+.4f} to {d['high']:+.4f}): {said}"


def _other_recipe(answer: dict[str, Any]) -> str:
    """That what was fixed makes another recipe than the default one, which may do better than any of these trials."""
    default = answer["default"]
    if not default["flags"]:
        return ""
    mine = [f"{name} {as_text(value)}" for name, value in default["fixed"].items()]
    mine = [*([f"preset {default['preset']}"] if default["preset"] else []), *mine]
    theirs = [f"{name} {as_text(value)}" if value is not None else f"no {name}" for name, value in default["instead"].items()]
    what = f"the default recipe's {_listed(theirs)}" if theirs and not default["preset"] else "the default recipe"
    return f"note: this is with {_listed(mine)}, not {what}: compare with a plain `{default['plain']}` before you take it\n"


def _listed(parts: list[str]) -> str:
    """Several in a sentence.

    >>> _listed(["one"]), _listed(["one", "two", "three"])
    ('one', 'one, two and three')
    """
    return " and ".join([part for part in (", ".join(parts[:-1]), parts[-1]) if part])
