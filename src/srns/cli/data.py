"""`srns demo`, `srns datasets` and `srns look`: what there is to begin with."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from srns.cli.console import Json, command, err, out, print_json
from srns.config import DATA_FIELDS
from srns.databases import shown
from srns.display import plain_table
from srns.options import with_flags_of
from srns.presets import make_config

KINDS = {"users": "a user", "items": "an item"}
QUANTILES = {"least": 0.0, "25%": 0.25, "median": 0.5, "75%": 0.75, "most": 1.0}


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
    from srns.datasets import available, folder_mistake

    found = available()
    if mistake := folder_mistake():
        err.print(f"note: {mistake}", highlight=False, markup=False, soft_wrap=True)
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


@command("srns look clicks.csv --min-user 5")
@with_flags_of(*DATA_FIELDS)
def look(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A data set name (see `srns datasets`), a path or a URL, as of `srns train`.")
    ],
    fields: dict[str, Any],
    as_json: Json = False,
) -> None:
    """Read data as `srns train` would, and say what is in them: who, how much, how it would be divided. Nothing is written."""
    from srns.runs import prepare

    split = prepare(data, make_config(fields))
    parts = {name: part for name in ("train", "valid", "test") if (part := getattr(split, name)) is not None}
    whole = split.train.union(*(part for name, part in parts.items() if name != "train"))
    counts = {"users": whole.user_counts, "items": whole.item_counts}
    spread = {
        name: dict(zip(QUANTILES, np.quantile(each[each > 0], list(QUANTILES.values())).tolist(), strict=True))
        for name, each in counts.items()
    }
    example = {"user": whole.user_ids.label(int(whole.users[0])), "item": whole.item_ids.label(int(whole.items[0]))}
    answer: dict[str, Any] = {
        "data": shown(data),
        "users": int(np.count_nonzero(counts["users"])),
        "items": int(np.count_nonzero(counts["items"])),
        "interactions": len(whole),
        "interactions_of": spread,
        "split": {"name": split.name, **{name: len(part) for name, part in parts.items()}},
        "example": example,
        "notes": list(split.notes),
    }
    if as_json:
        print_json(answer)
        return
    share = len(whole) / (answer["users"] * answer["items"])
    size = f"{answer['users']:,} users, {answer['items']:,} items, {len(whole):,} interactions"
    rows = [[f"of {kind}", *(f"{value:,.0f}" for value in spread[name].values())] for name, kind in KINDS.items()]
    out.print(plain_table(f"{shown(data)}: {size}, {share:.2%} of all pairs", ["interactions", *QUANTILES], rows))
    sizes = ", ".join(f"{name} {len(part):,}" for name, part in parts.items())
    ids = f"the first of your ids: user {example['user']}, item {example['item']}"
    for line in (*split.notes, f"split {split.name}: {sizes}", ids):
        out.print(Text(line), soft_wrap=True)
