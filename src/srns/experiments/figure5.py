"""Figure 5: the curves of figure 3 at the other shares of false negatives."""

from __future__ import annotations

import numpy as np

from srns.drawing import curve, new_figure
from srns.experiments import noise
from srns.experiments.study import Asked, Chart, Check, Found, Job, Outcome, Table, curve_of

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
            cells, means, lines = [f"{sigma:g}"], {}, []
            for number, (kind, mine) in enumerate(kinds_of(asked, name, sigma).items()):
                runs = [found[job] for job in mine]
                curves = [run["curves"]["ndcg@3"] for run in runs]
                curve(panel, runs[0]["epochs"], curves, kind, number)
                lines.append(curve_of(kind, runs[0]["epochs"], curves))
                cells.append(noise.spread([run["last"]["ndcg@3"] for run in runs]))
                result.data[f"{name} {sigma:g} {kind}"] = noise.brief(runs)
                means[kind] = float(np.mean([run["last"]["ndcg@3"] for run in runs]))
            rows.append(cells)
            alone, flat, increased = means.values()
            shown = f"{alone:.4f}, {flat:.4f}, {increased:.4f}"
            where = f"{setup.title}, sigma {sigma:g}"
            result.charts.append(Chart(where, "epoch", "test NDCG@3", lines))
            result.checks.append(Check(f"{where}: variance, increased, is above difficulty alone", increased > alone, shown))
            result.checks.append(Check(f"{where}: increased >= flat", increased >= flat, shown))
            panel.set(title=where, xlabel="epoch", ylabel="test NDCG@3")
        row[0].legend(loc="lower right", fontsize=6)
        result.tables.append(
            Table(f"{setup.title}: NDCG@3, last {noise.LAST} epochs", ["sigma", *kinds_of(asked, name, 0.0)], rows)
        )
    result.figures["figure5"] = figure
    result.notes = noise.notes()
    return result
