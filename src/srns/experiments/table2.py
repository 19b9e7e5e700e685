"""Table 2: statistics of the data sets, ours beside the paper's."""

from __future__ import annotations

from dataclasses import replace

from srns.experiments import real
from srns.experiments.outcome import Asked, Check, Outcome, Table
from srns.experiments.published import STATISTICS
from srns.experiments.store import Found, Job
from srns.experiments.table2_runs import count

TITLE = "Table 2: statistics of data sets"
MOST_EPOCHS = 0  # nothing is trained
SYNTHETIC = {"ml-100k-paper": "Movielens-100k", "ecom-toy-paper": "Ecommerce-toy"}
REAL = {"ml-1m-paper": "Movielens-1m", "pinterest": "Pinterest", "beauty": "Ecommerce"}
COLUMNS = ("users", "items", "train", "valid", "test", "noise")


def jobs(asked: Asked, found: Found) -> list[Job]:
    names = asked.datasets or (*SYNTHETIC, *REAL)
    values = {name: real.setups(replace(asked, datasets=(name,)))[name].values for name in names if name not in SYNTHETIC}
    return [Job.of(count, f"count {name}", dataset=name, values=values.get(name, {"valid_share": 0.0})) for name in names]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    rows, exact = [], []
    for job in jobs(asked, found):
        name, counts = found[job]["dataset"], found[job].get("counts")
        theirs = STATISTICS.get({**SYNTHETIC, **REAL}.get(name, ""))
        if counts is None:
            result.notes.append(f"{name}: {found[job]['missing']}")
        else:
            rows.append([name, *map(_shown, counts)])
            if name in (*SYNTHETIC, "ml-1m-paper") and theirs is not None:
                exact.append((name, tuple(counts) == theirs))
        if theirs is not None:
            rows.append([f"published: {({**SYNTHETIC, **REAL})[name]}", *map(_shown, theirs)])
    result.tables.append(Table(TITLE, ["data", *COLUMNS], rows))
    if exact:
        wrong = [name for name, same in exact if not same]
        result.checks.append(
            Check(
                "The paper's own splits have the published sizes",
                not wrong,
                f"differ: {wrong}" if wrong else "all equal",
                about_training=False,
            )
        )
    theirs_or_ours = real.setups(asked) if not asked.quick else {}
    result.notes += [setup.note for name, setup in theirs_or_ours.items() if setup.note and name not in SYNTHETIC]
    result.data = {found[job]["dataset"]: found[job] for job in jobs(asked, found)}
    return result


def _shown(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
