"""Figures 4(d-f) and 7 are made of these runs: SRNS with memories of different sizes, by each strategy of selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from srns.drawing import PUBLISHED, look
from srns.experiments import real
from srns.experiments.outcome import Asked, Check, descending, metric_name
from srns.experiments.real_runs import METRICS
from srns.experiments.store import Found, Job
from srns.presets import PRESETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES, QUICK_SIZES = (2, 4, 8, 16, 32, 64), (4, 16, 64)
STRATEGIES = ("variance", "difficulty", "random")


def sizes_of(asked: Asked) -> tuple[int, ...]:
    return QUICK_SIZES if asked.quick else SIZES


def jobs_of(asked: Asked, dataset: str, strategy: str, size: int) -> list[Job]:
    """Runs with memories of that size; S2 stays in the preset's proportion to it, as in the paper's tuning (S2 / S1)."""
    setup = real.setups(asked)[dataset]
    preset = PRESETS[setup.preset]
    ratio = preset["expansion_size"] / preset["memory_size"]
    # Where the paper found no variance to be best (Ecom), its strategy is shown at weight 1.
    weight = preset["variance_weight"] or 1.0
    values: dict[str, Any] = {"memory_size": size, "expansion_size": round(ratio * size), "strategy": strategy}
    return real.jobs_of(asked, dataset, values | ({"variance_weight": weight} if strategy == "variance" else {}))


def jobs(asked: Asked) -> list[Job]:
    return [
        job
        for name in real.setups(asked)
        for strategy in STRATEGIES
        for size in sizes_of(asked)
        for job in jobs_of(asked, name, strategy, size)
    ]


def draw(asked: Asked, found: Found, dataset: str, metric: str, panel: Axes) -> dict[str, list[float]]:
    """The metric over sizes, for each strategy; returns the means."""
    place = METRICS.index(metric)
    sizes = sizes_of(asked)
    made: dict[str, list[float]] = {}
    for number, strategy in enumerate(STRATEGIES):
        values = [real.means([found[job] for job in jobs_of(asked, dataset, strategy, size)]) for size in sizes]
        made[strategy] = [mean[place] for mean, _ in values]
        panel.errorbar(sizes, made[strategy], [error[place] for _, error in values], label=strategy, capsize=2, **look(number))
    panel.set(
        xscale="log", xlabel="memory size S1", ylabel=f"test {metric_name(metric)}", title=real.setups(asked)[dataset].title
    )
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.set_xticks([], minor=True)
    if published := real.published(asked, dataset):
        size = PRESETS[real.setups(asked)[dataset].preset]["memory_size"]
        panel.plot(size, published["srns"][place], "x", color=PUBLISHED, label="published")
    return made


def check(asked: Asked, title: str, metric: str, made: dict[str, list[float]]) -> Check:
    """What the paper found of large memories, by the means that `draw` returned."""
    largest = sizes_of(asked).index(64)
    steady, shaky = (max(values) - values[largest] for values in (made["variance"], made["difficulty"]))
    detail = f"{metric_name(metric)} lost from the best size to 64: variance {steady:.4f}, difficulty {shaky:.4f}"
    return Check(f"{title}: large memories harm variance less than difficulty alone", descending([shaky, steady]), detail)
