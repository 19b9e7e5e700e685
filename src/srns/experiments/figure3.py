"""Figure 3: (a, b) how the weight of the variance should change over time; (c, d) what a model memorises under heavy noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from srns.drawing import PUBLISHED, curve, look, new_figure
from srns.experiments import noise, noise_runs
from srns.experiments.outcome import Asked, Chart, Check, Outcome, Table, curve_of
from srns.experiments.published import ALPHAS, WARMUP
from srns.experiments.store import Found, Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Figure 3: schedules of the variance weight, and memorisation under extreme noise"
NEAR = 2  # points to either side of a peak that count as its height


def schedules_of(asked: Asked, dataset: str) -> dict[str, list[Job]]:
    """Runs of each schedule at the paper's best variance weight."""
    setup = noise.SETUPS[dataset]
    return {
        schedule: noise.weighted(asked, dataset, setup.warmup_sigma, schedule, setup.variance_weight, setup.warmup_epochs)
        for schedule in noise.SCHEDULES
    }


def memorising(asked: Asked, dataset: str) -> list[Job]:
    return noise.jobs_of(asked, dataset, 1.0, {"strategy": "difficulty"}, extreme=True)


def _popularity(dataset: str) -> Job:
    return Job.of(noise_runs.popularity, f"{noise.SETUPS[dataset].title} popularity", dataset=dataset)


def jobs(asked: Asked, found: Found) -> list[Job]:
    names = noise.setups(asked)
    plain = [job for name in names for each in schedules_of(asked, name).values() for job in each]
    return [*plain, *(job for name in names for job in (*memorising(asked, name), _popularity(name)))]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    chosen = noise.setups(asked)
    figure, panels = new_figure(len(chosen), 2)
    for column, (name, setup) in enumerate(chosen.items()):
        runs_of, rows, lines = {}, [], []
        for number, (schedule, mine) in enumerate(schedules_of(asked, name).items()):
            runs_of[schedule] = runs = [found[job] for job in mine]
            curves = [run["curves"]["ndcg@3"] for run in runs]
            curve(panels[0, column], runs[0]["epochs"], curves, schedule, number)
            lines.append(curve_of(schedule, runs[0]["epochs"], curves))
            last = [run["last"]["ndcg@3"] for run in runs]
            rows.append([schedule, noise.spread(last), f"{np.mean([run['label_error_ratio'] for run in runs]):.4f}"])
            result.data[f"{name} {schedule}"] = noise.brief(runs)
        title = f"{setup.title}, sigma {setup.warmup_sigma:g}"
        result.charts.append(Chart(title, "epoch", "test NDCG@3", lines))
        panels[0, column].set(xlabel="epoch", ylabel="test NDCG@3", title=title)
        for number, value in enumerate(_published(name).values()):  # in the colours of ours
            panels[0, column].axhline(value, color=look(number)["color"], linewidth=0.8, linestyle=":")
        panels[0, column].plot([], [], color=PUBLISHED, linewidth=0.8, linestyle=":", label="published")
        panels[0, column].legend(loc="lower right")
        columns = ["schedule", f"NDCG@3, last {noise_runs.last_of(noise.epochs_of(asked))} epochs", "label error ratio"]
        result.tables.append(Table(f"{title}: alpha {setup.variance_weight:g}, T0 {setup.warmup_epochs}", columns, rows))
        result.checks.append(noise.in_order(f"{title}: increased >= flat >= decreased at the paper's best alpha", runs_of))
        result.checks.append(_memorised(asked, found, name, panels[1, column], result))
    result.figures["figure3"] = figure
    result.notes = noise.notes()
    return result


def _published(name: str) -> dict[str, float]:
    """The paper's NDCG@3 of each schedule at the weight and T0 that are drawn."""
    setup = noise.SETUPS[name]
    column = ALPHAS.index(setup.variance_weight)
    return {each: WARMUP[name][each, 0 if each == "flat" else setup.warmup_epochs][column] for each in noise.SCHEDULES}


def _memorised(asked: Asked, found: Found, name: str, panel: Axes, result: Outcome) -> Check:
    """Panel (c) or (d), and whether its curve rises and then falls; how high that is, popularity tells."""
    setup = noise.SETUPS[name]
    runs = [found[job] for job in memorising(asked, name)]
    curves = np.array([run["curves"]["ndcg@3"] for run in runs])
    epochs = np.array(runs[0]["epochs"])
    curve(panel, epochs, curves, "difficulty alone", 0)
    popularity = float(found[_popularity(name)]["ndcg@3"])
    panel.axhline(popularity, color=PUBLISHED, linewidth=0.8, linestyle="--", label="popularity")
    panel.legend(loc="lower right")
    title = f"{setup.title}: {setup.extreme:.0%} of test as noise"
    panel.set(xlabel="epoch", ylabel="test NDCG@3", title=title)
    lines = [curve_of("difficulty alone", runs[0]["epochs"], [run["curves"]["ndcg@3"] for run in runs])]
    lines.append(curve_of("popularity", runs[0]["epochs"], [[popularity] * len(epochs)]))
    result.charts.append(Chart(title, "epoch", "test NDCG@3", lines))
    result.data[f"{name} extreme"] = noise.brief(runs)
    last = epochs > epochs[-1] - noise_runs.last_of(int(epochs[-1]))
    mean = curves.mean(axis=0)
    claim = f"{setup.title}: under extreme noise test NDCG@3 rises and then falls"
    if last.all():
        return Check(claim, None, "there are no epochs before the last")
    peak = int(mean[~last].argmax())
    way = f"from {mean[0]:.4f} to {mean[peak]:.4f} at epoch {epochs[peak]}, then to {mean[last].mean():.4f}"
    detail = f"{way}; popularity {popularity:.4f}"
    return Check(claim, rises_and_falls(curves, last) if len(curves) > 1 else None, detail)


def rises_and_falls(curves: NDArray[np.float64], last: NDArray[np.bool_]) -> bool:
    """Whether curves (seeds, points) rise above their first point to a peak, and fall from it to their `last` points (points,).

    The highest of many noisy points always looks like a peak, and more so where more are measured, as among the last, which are
    no place for it. So the others say where a curve's peak is, and over the seeds the 95% intervals of both rise and fall have
    to exclude 0.
    """
    rises, falls = [], []
    for number, mine in enumerate(curves):
        peak = int(np.delete(curves, number, axis=0)[:, ~last].mean(axis=0).argmax())
        height = mine[max(0, peak - NEAR) : peak + NEAR + 1].mean()
        rises.append(height - mine[0])
        falls.append(height - mine[last].mean())
    return all(stats.ttest_1samp(each, 0, alternative="greater").pvalue < 0.025 for each in (rises, falls))
