"""Figure 6: embeddings of different size F, with uniform negatives and with SRNS."""

from __future__ import annotations

from srns.drawing import look, new_figure
from srns.experiments import real
from srns.experiments.outcome import Asked, Check, Outcome, Table, metric_name
from srns.experiments.real_runs import METRICS
from srns.experiments.store import Found, Job

TITLE = "Figure 6: size of the embeddings"
DIMS = (8, 16, 32, 64)
STAND_INS = ("pinterest", "beauty")


def jobs_of(asked: Asked, dataset: str, sampler: str, dim: int) -> list[Job]:
    return real.jobs_of(asked, dataset, {"sampler": sampler, "dim": dim})


def _names(asked: Asked) -> list[str]:
    return list(real.setups(asked, only=STAND_INS))


def jobs(asked: Asked, found: Found) -> list[Job]:
    cells = [(name, sampler, dim) for name in _names(asked) for sampler in ("uniform", "srns") for dim in DIMS]
    return [job for cell in cells for job in jobs_of(asked, *cell)]


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    names = _names(asked)
    figure, panels = new_figure(3, len(names), height=2.0)
    for name, row in zip(names, panels, strict=True):
        title = real.setups(asked)[name].title
        rows, made = [], {}
        for number, sampler in enumerate(("uniform", "srns")):
            found_of = [real.means([found[job] for job in jobs_of(asked, name, sampler, dim)]) for dim in DIMS]
            made[sampler] = [mean for mean, _ in found_of]
            for place, (metric, panel) in enumerate(zip(METRICS, row, strict=True)):
                values, errors = ([each[part][place] for each in found_of] for part in (0, 1))
                panel.errorbar(DIMS, values, errors, label=sampler, capsize=2, **look(number))
                panel.set(xscale="log", xlabel="F", ylabel=f"test {metric_name(metric)}", title=title)
                panel.set_xticks(DIMS, [str(dim) for dim in DIMS])
                panel.set_xticks([], minor=True)
                rows.append([sampler, metric, *(real.number(*pair) for pair in zip(values, errors, strict=True))])
        row[0].legend()
        result.tables.append(Table(f"{title}: test", ["sampler", "metric", *(f"F = {dim}" for dim in DIMS)], rows))
        ahead = [ours[1] > theirs[1] for ours, theirs in zip(made["srns"], made["uniform"], strict=True)]
        detail = ", ".join(f"F {dim}: {'yes' if won else 'no'}" for dim, won in zip(DIMS, ahead, strict=True))
        result.checks.append(Check(f"{title}: SRNS is above uniform negatives at every F (NDCG@3)", all(ahead), detail))
        result.data[name] = made
    result.figures["figure6"] = figure
    result.notes = real.notes(asked, only=STAND_INS)
    return result
