"""Figure 7: the runs of figure 4(d-f) by NDCG@3 and Recall@3."""

from __future__ import annotations

from srns.drawing import new_figure
from srns.experiments import memory_sizes, real
from srns.experiments.outcome import Asked, Outcome, Table, metric_name
from srns.experiments.real_runs import METRICS
from srns.experiments.store import Found, Job

TITLE = "Figure 7: memory sizes by NDCG@3 and Recall@3"


def jobs(asked: Asked, found: Found) -> list[Job]:
    return memory_sizes.jobs(asked)


def outcome(asked: Asked, found: Found) -> Outcome:
    result = Outcome()
    setups = real.setups(asked)
    figure, panels = new_figure(2, len(setups))
    for (name, setup), row in zip(setups.items(), panels, strict=True):
        for metric, panel in zip(METRICS[1:], row, strict=True):
            made = memory_sizes.draw(asked, found, name, metric, panel)
            rows = [[strategy, *map(real.number, values)] for strategy, values in made.items()]
            columns = ["strategy", *map(str, memory_sizes.sizes_of(asked))]
            result.tables.append(Table(f"{setup.title}: test {metric_name(metric)} by memory size", columns, rows))
            result.data[f"{name} {metric}"] = made
            result.checks.append(memory_sizes.check(asked, setup.title, metric, made))
    panels[0, 0].legend()
    result.figures["figure7"] = figure
    result.notes = real.notes(asked)
    return result
