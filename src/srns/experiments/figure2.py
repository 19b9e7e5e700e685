"""Figure 2: negatives by score and variance against negatives by score alone, as ever more false negatives are fed in.

Selection goes by probabilities of the current scores, as the paper's equations have it, since the criterion is what is in
question here; memories are renewed once per user and batch. The variance weight is chosen for each sigma on the split that is
for tuning alone, as in appendix B.4; T0 is that of the best cell of appendix C.3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from srns.drawing import PUBLISHED, look, new_figure
from srns.experiments import noise
from srns.experiments.noise_runs import last_of
from srns.experiments.outcome import Asked, Check, Outcome, Table, difference_over_users, metric_name, told
from srns.experiments.published import ALPHAS, WARMUP
from srns.experiments.store import Found, Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Figure 2: sampling by variance and by difficulty alone, over the share sigma of false negatives"
BY: dict[str, Any] = {"criterion": "probability", "update_after": "batch"}  # as `srns train` does by default
Runs = dict[float, dict[str, list[dict[str, Any]]]]  # by sigma and strategy


def tried(asked: Asked, dataset: str, sigma: float) -> dict[float, Job]:
    """A run on the tuning split for each variance weight; none for a quick look, which takes the paper's best."""
    if asked.quick:
        return {}
    one = replace(asked, seeds=1)
    t0 = noise.SETUPS[dataset].warmup_epochs
    return {
        alpha: job for alpha in ALPHAS for job in noise.weighted(one, dataset, sigma, "increase", alpha, t0, tuning=True, **BY)
    }


def runs_of(asked: Asked, dataset: str, sigma: float, found: Found) -> tuple[float, dict[str, list[Job]]]:
    """The variance weight and the runs of both strategies; of difficulty alone as long as the weight is not known."""
    setup = noise.SETUPS[dataset]
    made = {"difficulty": noise.jobs_of(asked, dataset, sigma, {"strategy": "difficulty", **BY})}
    weights = tried(asked, dataset, sigma)
    if any(job not in found for job in weights.values()):
        return 0.0, made
    alpha = max(weights, key=lambda each: found[weights[each]]["last"]["ndcg@3"], default=setup.variance_weight)
    variance = noise.weighted(asked, dataset, sigma, "increase", alpha, setup.warmup_epochs, **BY)
    return alpha, {"variance": variance, **made}


def jobs(asked: Asked, found: Found) -> list[Job]:
    cells = [(name, sigma) for name, setup in noise.setups(asked).items() for sigma in setup.sigmas]
    tuning = [job for cell in cells for job in tried(asked, *cell).values()]
    return tuning + [job for cell in cells for each in runs_of(asked, *cell, found)[1].values() for job in each]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    chosen = noise.setups(asked)
    figure, panels = new_figure(2, len(chosen), sharex=False)
    for (name, setup), row in zip(chosen.items(), panels, strict=True):
        weights, made = {}, {}
        for sigma in setup.sigmas:
            weights[sigma], mine = runs_of(asked, name, sigma, found)
            made[sigma] = {kind: [found[job] for job in each] for kind, each in mine.items()}
        for panel, metric in zip(row, noise.METRICS, strict=True):
            _draw(panel, made, metric)
            panel.set(xlabel="sigma", ylabel=f"test {metric_name(metric)}", title=setup.title)
        best = max(value for values in WARMUP[name].values() for value in values)
        row[0].plot(setup.warmup_sigma, best, "x", color=PUBLISHED, label="published, by stale scores (appendix C.3)")
        table, check = _compared(made, weights, setup.title, last_of(noise.epochs_of(asked)))
        result.tables.append(table)
        result.checks.append(check)
        for sigma, both in made.items():
            tuning = {f"{alpha:g}": found[job]["last"]["ndcg@3"] for alpha, job in tried(asked, name, sigma).items()}
            chosen_by = {"variance_weight": weights[sigma], "tuning ndcg@3": tuning}
            result.data[f"{name} {sigma:g}"] = chosen_by | {kind: noise.brief(runs) for kind, runs in both.items()}
    handles, labels = (each[1:] + each[:1] for each in panels[0, 0].get_legend_handles_labels())  # what is published last
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    result.figures["figure2"] = figure
    result.notes = noise.notes(stale=False)
    return result


def _draw(panel: Axes, made: Runs, metric: str) -> None:
    for place, kind in enumerate(("variance", "difficulty")):
        values = [[run["last"][metric] for run in both[kind]] for both in made.values()]
        spread = [np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in values]
        style = look(place) | {"linestyle": "-" if kind == "variance" else "--"}
        panel.errorbar(list(made), [np.mean(each) for each in values], spread, label=kind, capsize=2, **style)


def _compared(made: Runs, weights: dict[float, float], title: str, last: int) -> tuple[Table, Check]:
    """NDCG@3 and label errors of both strategies, with intervals of the difference over users."""
    rows, lost, close = [], [], []
    for sigma, both in made.items():
        mean = {kind: float(np.mean([run["last"]["ndcg@3"] for run in runs])) for kind, runs in both.items()}
        ler = {kind: float(np.mean([run["label_error_ratio"] for run in runs])) for kind, runs in both.items()}
        gain = difference_over_users(*([run["users"] for run in both[kind]] for kind in ("variance", "difficulty")))
        if gain.difference <= 0:
            lost.append(f"{sigma:g}")
        elif gain.low <= 0:
            close.append(f"{sigma:g}")
        numbers = [mean["variance"], mean["difficulty"]], [ler["variance"], ler["difficulty"]]
        chosen = f"{weights[sigma]:g}"
        rows.append([f"{sigma:g}", chosen, *(f"{x:.4f}" for x in numbers[0]), told(gain), *(f"{x:.4f}" for x in numbers[1])])
    columns = [
        "sigma",
        "alpha",
        "N@3 variance",
        "N@3 difficulty",
        "difference (95%, users)",
        "label errors variance",
        "label errors difficulty",
    ]
    detail = "not at sigma " + ", ".join(lost) if lost else "at all of " + ", ".join(row[0] for row in rows)
    detail += f"; by less than the luck of users at {', '.join(close)}" if close else ""
    claim = f"{title}: variance is above difficulty alone at every sigma"
    return Table(f"{title}: NDCG@3, last {last} epochs", columns, rows), Check(claim, not lost, detail)
