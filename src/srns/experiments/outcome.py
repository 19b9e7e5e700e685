"""What a table or figure of the paper is asked for, and what it makes of its runs.

A target (a table or figure) is a module with a `TITLE`, a function `jobs(asked, found)` that names the runs it needs
(`srns.experiments.store`), more of them once the first are found, and a function `outcome(asked, found)` that makes tables,
figures and checks of them; `MOST_EPOCHS`, those of its longest run, where they are not as many as the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from srns.charts import Curve
from srns.evaluation import Comparison, Evaluation, paired_bootstrap
from srns.presets import PRESETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PAPER_EPOCHS = int(PRESETS["paper"]["epochs"])


@dataclass(frozen=True)
class Asked:
    """What `srns reproduce` was asked for. No `datasets`: those of the paper, or their stand-ins. `reading` are fields of a run
    that say how files of the user's own are read."""

    datasets: tuple[str, ...] = ()
    seeds: int = 5
    epochs: int | None = None
    quick: bool = False
    reading: tuple[tuple[str, Any], ...] = ()

    @property
    def n_seeds(self) -> int:
        """Seeds of each run; one is enough for a quick look."""
        return 1 if self.quick else self.seeds

    def short(self, whole: int = PAPER_EPOCHS) -> str:
        """How runs are kept shorter than they are as a `whole`, which shows that things work, not how well; empty where they
        are not."""
        limit = "few" if self.epochs is None else f"at most {self.epochs}"
        if self.quick:
            return f"a quick look: one seed, {limit} epochs"
        return f"a short look: {limit} epochs" if self.epochs is not None and self.epochs < whole else ""

    @property
    def stems(self) -> dict[str, str]:
        """What files about each data set are called after: its name without ending, with a number where several share it."""
        found: dict[str, str] = {}
        for dataset in self.datasets:
            stem = Path(dataset).stem
            names = chain([stem], (f"{stem}-{number}" for number in count(2)))
            found[dataset] = next(name for name in names if name not in found.values())
        return found

    def title(self, dataset: str) -> str:
        """What people call data of their own: the name without ending, or all of it where others are called the same."""
        stem = Path(dataset).stem
        return dataset if any(Path(other).stem == stem for other in self.datasets if other != dataset) else stem


def difference_over_users(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Comparison:
    """How far some runs are ahead of others, each given as the metric of every user; a user's is averaged over runs."""

    def of(runs: Sequence[Sequence[float]]) -> Evaluation:
        mean = np.mean(runs, axis=0)
        return Evaluation({}, per_user={"mean": mean}, users=np.arange(len(mean)), protocol="full", on="test")

    return paired_bootstrap(of(one), of(other), "mean")


def descending(values: Sequence[float]) -> bool | None:
    """Whether each value is above the next; None where some are the same, as they are while nothing has been learnt.

    >>> [descending(values) for values in ([0.3, 0.2, 0.1], [0.3, 0.3, 0.1], [0.3, 0.3, 0.4])]
    [True, None, False]
    """
    steps = np.diff(values)
    return False if np.any(steps > 0) else None if np.any(steps == 0) else True


def metric_name(metric: str) -> str:
    """As people write it.

    >>> metric_name("ndcg@3"), metric_name("recall@3")
    ('NDCG@3', 'Recall@3')
    """
    name, _, k = metric.partition("@")
    return f"{name.upper() if name == 'ndcg' else name.capitalize()}@{k}"


def told(found: Comparison) -> str:
    """A difference with its interval."""
    return f"{found.difference:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


class Table(NamedTuple):
    """Cells as people read them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _markdown_row(self.columns), "|" + "---|" * len(self.columns)]
        return "\n".join([*lines, *map(_markdown_row, self.rows)]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


class Check(NamedTuple):
    """Something the paper found, and whether it was found here; None: these runs cannot tell. `why` is what kept them from
    being asked: a quick look, where the claim is about how well something trains."""

    claim: str
    holds: bool | None
    detail: str
    about_training: bool = True
    why: str = ""

    def left_open(self, why: str) -> Check:
        """Without a verdict, since runs like these are no ground for one."""
        return self._replace(holds=None, why=why)

    @property
    def mark(self) -> str:
        if self.why:
            return "not judged"
        return {True: "yes", False: "no", None: "cannot tell"}[self.holds]


def seconds_told(seconds: float) -> str:
    """A time; where it is short, in tenths, since nearly all would be 0 or 1 otherwise.

    >>> [seconds_told(seconds) for seconds in (0.04, 1.26, 9.97, 31.7)]
    ['0.0', '1.3', '10', '32']
    """
    return f"{seconds:.1f}" if seconds < 9.95 else f"{seconds:.0f}"


def below_popularity(title: str, behind: Sequence[str], short: str) -> list[str]:
    """A note on methods that are worse than recommending what is popular, after runs that were kept `short` or were not; none
    where none is."""
    why = "with these settings and so few epochs" if short else "with these settings"
    return [f"{title}: {', '.join(behind)}: below popularity {why}, which says little of the method."] if behind else []


class Chart(NamedTuple):
    """Curves to read values off, for the page."""

    caption: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]


def curve_of(name: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Curve:
    """The mean of runs (runs, points), and a standard deviation to either side where there are several."""
    mean, spread = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1 if len(runs) > 1 else 0)
    low, high = ((mean + sign * spread).round(6).tolist() if len(runs) > 1 else None for sign in (-1, 1))
    return Curve(name, list(x), mean.round(6).tolist(), low, high)


@dataclass
class Outcome:
    """What a target made of its runs. `figures` by name without ending, `charts` the same for the page where curves are to be
    read, `data` the numbers behind them."""

    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
