"""The two tables of appendix C.3: every schedule, T0 and variance weight alpha."""

from __future__ import annotations

import numpy as np

from srns.experiments import noise
from srns.experiments.noise_runs import last_of
from srns.experiments.outcome import Asked, Check, Outcome, Table
from srns.experiments.published import ALPHAS, WARMUP
from srns.experiments.store import Found, Job

TITLE = "Appendix C.3: schedules of the variance weight in detail"
WITHIN = 0.02  # of the published best


def cells_of(asked: Asked, dataset: str) -> dict[tuple[str, int, float], list[Job]]:
    """Runs by schedule, T0 and alpha."""
    sigma = noise.SETUPS[dataset].warmup_sigma
    return {
        (schedule, t0, alpha): noise.weighted(asked, dataset, sigma, schedule, alpha, t0)
        for schedule, t0 in WARMUP[dataset]
        for alpha in ALPHAS
    }


def jobs(asked: Asked, found: Found) -> list[Job]:
    return [job for name in noise.setups(asked) for each in cells_of(asked, name).values() for job in each]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    for name, setup in noise.setups(asked).items():
        cells = cells_of(asked, name)
        last = {cell: [found[job]["last"]["ndcg@3"] for job in mine] for cell, mine in cells.items()}
        means = {cell: float(np.mean(values)) for cell, values in last.items()}
        rows = []
        for schedule, t0 in WARMUP[name]:
            rows.append([schedule, str(t0), *(noise.spread(last[schedule, t0, alpha]) for alpha in ALPHAS)])
            rows.append([f"{schedule}, published", str(t0), *(f"{value:.4f}" for value in WARMUP[name][schedule, t0])])
        title = f"{setup.title}, sigma {setup.warmup_sigma:g}: NDCG@3, last {last_of(noise.epochs_of(asked))} epochs"
        result.tables.append(Table(title, ["schedule", "T0", *(f"alpha {alpha:g}" for alpha in ALPHAS)], rows))
        best = max(means, key=means.__getitem__)
        published = max(value for values in WARMUP[name].values() for value in values)
        detail = f"{means[best]:.4f} ({best[0]}, T0 {best[1]}, alpha {best[2]:g}); published {published:.4f}"
        near = abs(means[best] - published) <= WITHIN
        result.checks.append(Check(f"{setup.title}: the best cell is within {WITHIN:g} of the published best", near, detail))
        t0 = best[1] or setup.warmup_epochs  # a flat schedule has none
        runs = {each: [found[job] for job in cells[each, 0 if each == "flat" else t0, best[2]]] for each in noise.SCHEDULES}
        claim = f"{setup.title}: increased >= flat >= decreased at the T0 and alpha of the best cell"
        result.checks.append(noise.in_order(claim, runs))
        result.data[name] = {" ".join(map(str, cell)): values for cell, values in last.items()}
    result.notes = noise.notes()
    return result
