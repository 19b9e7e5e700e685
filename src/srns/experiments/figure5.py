"""Figure 5: the curves of figure 3 at the other shares of false negatives."""

from __future__ import annotations

import numpy as np

from srns.drawing import curve, new_figure
from srns.experiments import noise
from srns.experiments.noise_runs import last_of
from srns.experiments.outcome import Asked, Chart, Check, Outcome, Table, curve_of, descending, difference_over_users, told
from srns.experiments.store import Found, Job

TITLE = "Figure 5: test NDCG over epochs at other shares of false negatives"
SIGMAS = {"ml-100k-paper": (0.0, 0.2, 0.6, 0.8), "ecom-toy-paper": (0.0, 0.3, 0.7, 1.0)}


def kinds_of(asked: Asked, dataset: str, sigma: float) -> dict[str, list[Job]]:
    setup = noise.SETUPS[dataset]
    alpha, t0 = setup.variance_weight, setup.warmup_epochs
    return {
        "difficulty alone": noise.jobs_of(asked, dataset, sigma, {"strategy": "difficulty"}),
        "variance, flat": noise.weighted(asked, dataset, sigma, "flat", alpha, t0),
        "variance, increased": noise.weighted(asked, dataset, sigma, "increase", alpha, t0),
    }


def jobs(asked: Asked, found: Found) -> list[Job]:
    return [
        job
        for name in noise.setups(asked)
        for sigma in SIGMAS[name]
        for each in kinds_of(asked, name, sigma).values()
        for job in each
    ]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    chosen = noise.setups(asked)
    figure, panels = new_figure(2, 2 * len(chosen))  # the four shares of one data set in two rows
    for (name, setup), row in zip(chosen.items(), panels.reshape(len(chosen), 4), strict=True):
        rows = []
        for sigma, panel in zip(SIGMAS[name], row, strict=True):
            cells, users, lines = [f"{sigma:g}"], {}, []
            for number, (kind, mine) in enumerate(kinds_of(asked, name, sigma).items()):
                runs = [found[job] for job in mine]
                curves = [run["curves"]["ndcg@3"] for run in runs]
                curve(panel, runs[0]["epochs"], curves, kind, number)
                lines.append(curve_of(kind, runs[0]["epochs"], curves))
                cells.append(noise.spread([run["last"]["ndcg@3"] for run in runs]))
                result.data[f"{name} {sigma:g} {kind}"] = noise.brief(runs)
                users[kind] = [run["users"] for run in runs]
            rows.append(cells)
            where = f"{setup.title}, sigma {sigma:g}"
            result.charts.append(Chart(where, "epoch", "test NDCG@3", lines))
            alone, flat, increased = users
            result.checks.append(_ahead(f"{where}: variance, increased, is above difficulty alone", users, increased, alone))
            result.checks.append(_ahead(f"{where}: increased >= flat", users, increased, flat))
            panel.set(title=where, xlabel="epoch", ylabel="test NDCG@3")
        row[0].legend(loc="lower right", fontsize=6)
        title = f"{setup.title}: NDCG@3, last {last_of(noise.epochs_of(asked))} epochs"
        result.tables.append(Table(title, ["sigma", *kinds_of(asked, name, 0.0)], rows))
    result.figures["figure5"] = figure
    result.notes = noise.notes()
    return result


def _ahead(claim: str, users: dict[str, list[list[float]]], one: str, other: str) -> Check:
    """Whether one kind of run is ahead of another, each given by NDCG@3 of every user (seeds, users)."""
    means = [float(np.mean(users[kind])) for kind in (one, other)]
    detail = f"{means[0]:.4f} against {means[1]:.4f}, over users {told(difference_over_users(users[one], users[other]))}"
    return Check(claim, descending(means), detail)
