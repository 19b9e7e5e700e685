"""Table 3: every method with the paper's hyper-parameters, means over seeds, beside the published numbers.

Ends that the paper's tables leave open: adversarial training is at its best within 30 epochs, and is kept to these, and IRGAN,
whose epochs take longest, to 3; NNCF overfits early and stops after 8 epochs without a better validation.
"""

from __future__ import annotations

from typing import Any

from srns.experiments import real
from srns.experiments.outcome import Asked, Check, Outcome, Table, below_popularity, descending, seconds_told, told
from srns.experiments.published import COMPARISON
from srns.experiments.real_runs import METRICS
from srns.experiments.store import Found, Job

TITLE = "Table 3: comparison of methods"
ECOM = "ecom"  # in `COMPARISON`
METHODS: dict[str, dict[str, Any]] = {
    "enmf": {}, "uniform": {}, "nncf": {"patience": 8}, "aobpr": {},
    "irgan": {"epochs": 3}, "rns_as": {"epochs": 30}, "advir": {"epochs": 30}, "srns": {},
}  # fmt: skip


def _jobs(asked: Asked, found: Found, dataset: str) -> dict[str, list[Job]]:
    """The runs of each method that can be named by now."""
    made = {}
    for method, values in METHODS.items():
        mine = {"sampler": method, **values}
        adversarial = method in real.ADVERSARIAL
        made[method] = real.from_uniform(asked, found, dataset, mine) if adversarial else real.jobs_of(asked, dataset, mine)
    return made


def jobs(asked: Asked, found: Found) -> list[Job]:
    return [job for name in real.setups(asked) for each in _jobs(asked, found, name).values() for job in each]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    for name, setup in real.setups(asked).items():
        column = ECOM if name == "beauty" else name  # of other data, where others stand in for the paper's
        published = COMPARISON.get(column, {})
        rows, runs_of, behind = [], {}, {}
        for method, mine in _jobs(asked, found, name).items():
            runs_of[method] = runs = [found[job] for job in mine]
            values, errors = real.means(runs)
            theirs = published.get(method)
            if theirs and not setup.note:
                behind[method] = min(ours - there for ours, there in zip(values, theirs, strict=True))
            rows.append(
                [
                    method,
                    *(real.number(value, error) for value, error in zip(values, errors, strict=True)),
                    " ".join(map(real.number, theirs)) if theirs else "",
                    f"{behind[method]:+.4f}" if method in behind else "",
                    ", ".join(str(run["best_epoch"]) for run in runs),
                    seconds_told(sum(run["seconds"] for run in runs) / len(runs)),
                ]
            )
            kept = [real.brief(run) for run in runs]
            result.data[f"{name} {method}"] = {"mean": values, "standard_error": errors, "runs": kept}
        popularity = runs_of["uniform"][0]["popularity"]  # a height to see the others by
        rows.insert(0, ["popularity", *(real.number(popularity[metric]) for metric in METRICS), *[""] * 4])
        of_what = " Ecommerce" if column == ECOM else ", other data" if setup.note else ""
        columns = ["method", "N@1", "N@3", "R@3", f"published{of_what}"]
        columns += ["furthest behind", "best epochs", "seconds"]
        filled = [place for place in range(len(columns)) if any(row[place] for row in rows)]
        columns, rows = [columns[place] for place in filled], [[row[place] for place in filled] for row in rows]
        title = f"{setup.title}, each test item among 100 others, {asked.n_seeds} seed{'s' * (asked.n_seeds > 1)}"
        result.tables.append(Table(title, columns, rows))
        result.checks += _checks(name, runs_of, behind)
        below = [method for method, runs in runs_of.items() if real.means(runs)[0][0] < popularity[METRICS[0]]]
        result.notes += below_popularity(setup.title, below, asked.short())
    result.notes = [*real.notes(asked), *result.notes]
    if any(name not in real.SETUPS for name in asked.datasets):
        result.notes.append("Users with fewer than 100 unseen items have as many others as there are.")
    result.notes.append("The methods that train adversarially are kept to 30 epochs, IRGAN to 3; see their best epochs.")
    return result


def _checks(name: str, runs: dict[str, list[dict[str, Any]]], behind: dict[str, float]) -> list[Check]:
    """Whether SRNS is ahead, by the means over seeds, with the intervals of how far over users; the paper has no intervals."""
    first = {method: tuple(values[0] for values in real.means(mine)) for method, mine in runs.items()}
    ahead = {method: real.ahead(runs["srns"], runs[method], "ndcg@1") for method in runs if method != "srns"}
    best = max(ahead, key=lambda method: first[method][0])
    detail = f"srns {real.number(*first['srns'])}, best other {best} {real.number(*first[best])}; srns less each, over users: "
    detail += ", ".join(f"{method} {told(found)}" for method, found in ahead.items())
    holds = descending([first["srns"][0], first[best][0]])
    checks = [Check(f"{name}: SRNS is ahead of all others on NDCG@1", holds, detail)]
    if behind:
        worst = min(behind, key=behind.__getitem__)
        claim = f"{name}: no method is more than .008 behind its published value on any metric"
        checks.append(Check(claim, behind[worst] >= -0.008, f"furthest: {worst} {behind[worst]:+.4f}"))
    return checks
