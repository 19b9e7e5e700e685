"""How results look in a terminal: tables of metrics, the panel of a run, the progress line of training."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl
from rich import box, progress
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from srns.config import RunConfig
from srns.kernels import ranking
from srns.scorers import CLOSED_FORM
from srns.splits import Split
from srns.terms import idle
from srns.trainer import COMPILING, Callback, EpochRecord, Training

WIDE = 120  # columns of a terminal with room for more
ROUGH = 100  # users below which a mean over them says little
UNBROKEN = {"cell": 24, "heading": 12}  # characters that stay on one line; what is longer may go on in the next
BETWEEN, NARROWEST = 3, 8  # spaces between two columns; letters of a heading that stand side by side at the least
AT_K = ("ndcg", "recall", "hit", "mrr", "map", "precision", "coverage")


def plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Group:
    """A table under its title. Numbers are never broken, and the first column, whose names are copied, only where it alone is
    too wide: in a narrow terminal headings and prose make room; where that is not enough, the last columns go below, under it.
    """
    return Group(Text(title, style="bold"), _Fitting(title, list(columns), [list(row) for row in rows]))


class _Fitting:
    """Columns in one table, or in as many below each other as a terminal is too narrow for one."""

    def __init__(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        self.title = title
        self.columns = columns
        self.rows = [[*row, *[""] * (len(columns) - len(row))] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        least = [self._least(number) + BETWEEN for number in range(len(self.columns))]
        left = range(1, len(self.columns))
        while True:
            fitting = len(left)
            while fitting > 1 and 1 + least[0] + sum(least[number] for number in left[:fitting]) > options.max_width:
                fitting -= 1
            shown = left[:fitting]
            fits = 1 + least[0] + sum(least[number] for number in shown) <= options.max_width
            yield self._table([0, *shown], fits)
            left = left[fitting:]
            if not left:
                return
            yield Text(f"{self.title}, continued", style="bold")  # else nobody sees what the lower part is of

    def _table(self, numbers: list[int], fits: bool) -> Table:
        """A table of these columns; where one beside the first does not fit, the first is broken."""
        table = Table(box=box.SIMPLE_HEAD, show_header=any(self.columns))
        for number in numbers:
            whole, widest = self._whole(number) and (fits or number > 0), self._widest(number)
            least = widest if widest <= UNBROKEN["cell"] else None
            table.add_column(escape(self.columns[number]), overflow="fold", no_wrap=whole, min_width=least)
        for row in self.rows:
            table.add_row(*(escape(row[number]) for number in numbers))
        return table

    def _widest(self, number: int) -> int:
        return max((cell_len(row[number]) for row in self.rows), default=0)

    def _whole(self, number: int) -> bool:
        """Whether nothing of a column is broken, its heading included."""
        widest, heading = self._widest(number), cell_len(self.columns[number])
        return number == 0 or (widest <= UNBROKEN["cell"] and heading <= max(widest, UNBROKEN["heading"]))

    def _least(self, number: int) -> int:
        """The width that a column takes at the least."""
        if self._whole(number):
            return max(self._widest(number), cell_len(self.columns[number]))
        return min(max(self._widest(number), NARROWEST), UNBROKEN["cell"])


def result_tables(run: Mapping[str, Any]) -> list[Group]:
    """What a finished run measured on test: under its protocol, beside popularity, and under full ranking."""
    if not run.get("metrics"):
        return []
    ks, users = run["config"]["ks"], run.get("test_users", 0)
    rough = "; so few users make rough numbers" if users < ROUGH else ""
    tables = [metrics_table(f"Test, protocol {run['protocol']}, {users:,} users{rough}", run["metrics"], ks)]
    if run.get("metrics_full"):
        tables.append(metrics_table("Test, protocol full", run["metrics_full"], ks))
    metric = run["config"]["metric"]
    popularity = run.get("metrics_popularity", {})
    if metric in run["metrics"] and metric in popularity:
        line = f"{metric} {run['metrics'][metric]:.4f}; recommending what is popular would give {popularity[metric]:.4f}"
        if run["metrics"][metric] < popularity[metric]:
            line += ", which is better: a model needs more interactions per user than this, or more epochs, or other settings"
        tables.append(Group(Text(line)))
    return tables


def metrics_table(title: str, results: Mapping[str, float], ks: Iterable[int]) -> Group:
    """The metrics of one model: a row per metric, a column per list length. How popular shown items are is said in words: among
    metrics, where more is better, it would be taken for one."""
    ks = list(ks)
    rows = [[metric, *(_number(results.get(f"{metric}@{k}")) for k in ks)] for metric in AT_K if f"{metric}@{ks[0]}" in results]
    if "auc" in results:
        rows.append(["auc", _number(results["auc"])])
    table = plain_table(title, ["metric", *(f"@{k}" for k in ks)], rows)
    k = 10 if 10 in ks else ks[-1]
    if f"popularity@{k}" not in results:
        return table
    times = results[f"popularity@{k}"]
    return Group(table, Text(f"items in lists of {k} are {times:.1f} times as popular as the average item"))


def comparison_table(title: str, models: Mapping[str, Mapping[str, float]], metrics: Iterable[str]) -> Group:
    """Some metrics of several models: a row per metric, a column per model."""
    rows = [[metric, *(_number(results.get(metric)) for results in models.values())] for metric in metrics]
    return plain_table(title, ["metric", *models], rows)


def paired_table(
    title: str,
    names: tuple[str, str],
    one: Mapping[str, float],
    other: Mapping[str, float],
    differences: Mapping[str, Mapping[str, float]],
) -> Group:
    """NDCG and recall of two models on the same users, and how far the first is ahead, with the interval of that."""
    rows = []
    for name, d in differences.items():
        if name.startswith(("ndcg", "recall")):
            values = [_number(one[name]), _number(other[name]), f"{d['difference']:+.4f}"]
            rows.append([name, *values, f"{d['low']:+.4f} to {d['high']:+.4f}", "*" if d["low"] * d["high"] > 0 else ""])
    columns = ["metric", *_told_apart(*names), "difference", "95% interval", ""]
    return plain_table(f"{title} (paired bootstrap; * : the interval excludes 0)", columns, rows)


def _told_apart(one: str, other: str) -> tuple[str, str]:
    """Two names without the parts, between hyphens, in which both begin or end: in a narrow table there is no room for them.

    >>> _told_apart("clicks-srns-seed0", "clicks-ease-seed0")
    ('srns', 'ease')
    """
    first, second = one.split("-"), other.split("-")
    for end in (0, -1):
        while min(len(first), len(second)) > 1 and first[end] == second[end]:
            del first[end], second[end]
    return "-".join(first), "-".join(second)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _drawn(sampler: Mapping[str, float], width: int) -> str:
    """The few observations of a sampler that matter while it runs: how hard negatives are, and where there is room for it also
    how much of the memories is new and how many negatives are known to be false."""
    shown = {"p_pos_50": "P_pos {:.2f}"}
    if width >= WIDE:
        shown |= {"turnover": "new {:.0%}", "label_error_ratio": "false {:.2%}"}
    return "".join(f" · {form.format(sampler[name])}" for name, form in shown.items() if name in sampler)


def update_lines(run: Mapping[str, Any]) -> list[str]:
    """What an update was made from, what was new, and what it gave on the same test data."""
    made = run["updated"]
    news = ", ".join(f"{number:,} {name}" for name, number in made["new"].items())
    lines = [f"updated from {made['from'] or 'a model in memory'}; new: {news}"]
    if run.get("epochs") and run.get("best_epoch") == 0:
        lines.append(
            "no epoch was better on validation data than the start, which is kept: the model before, its users moved by what "
            "they have touched since; try more --epochs"
        )
    metric, before = run["config"]["metric"], made.get("metrics_before", {})
    if metric in before and metric in run.get("metrics", {}):
        lines.append(f"{metric} on the test data of now: {before[metric]:.4f} before, {run['metrics'][metric]:.4f} after")
    return lines


def training_line(run: Mapping[str, Any]) -> str:
    """How long a run was and which epoch it kept, in words."""
    if not run["epochs"]:
        return "no epoch was trained"
    kept = f"best epoch {run['best_epoch']} of {run['epochs']}"
    if run["config"]["scorer"] in CLOSED_FORM:
        return f"solved in {run['seconds_per_epoch']:.3f} s"
    if not run.get("start") and not any(record["valid"] for record in run.get("history", ())):
        kept = f"last epoch kept, {run['epochs']} of {run['epochs']} (no validation to choose by)"
    return f"{kept}, {run['seconds_per_epoch']:.3f} s per epoch"


def run_panel(folder: Path, run: Mapping[str, Any]) -> Group:
    data, parts = run["data"], []
    facts = {"run": str(folder), "status": run.get("status", ""), "data": data["name"]}
    if "users" in data:
        facts["size"] = ", ".join(
            f"{data[name]:,} {name}" for name in ("users", "items", "train", "valid", "test") if name in data
        )
        facts["notes"] = "; ".join([*data.get("notes", []), *run.get("notes", [])])
    if "updated" in run:
        facts["updated"] = "; ".join(update_lines(run))
    if "epochs" in run:
        facts["training"] = f"{training_line(run)}, {run['engine']} engine"
    if "environment" in run:
        made = run["environment"]
        facts["made with"] = (
            f"Python {made['python']}, "
            + ", ".join(f"{name} {v}" for name, v in made["packages"].items())
            + f", {made['date']}"
        )
    parts.append(plain_table("Run", ["", ""], [[name, value] for name, value in facts.items() if value]))
    parts += result_tables(run)
    chosen = {name: run["config"][name] for name in ("sampler", "scorer") if name in run["config"]}
    defaults = RunConfig(**chosen).model_dump(mode="json")
    known = {name: value for name, value in run["config"].items() if value is not None and name in defaults}
    unused = idle(RunConfig(**known))  # a run may have fields that are no more
    settings = [
        [name, str(value), "" if value == defaults.get(name) else "changed"]
        for name, value in run["config"].items()
        if value is not None and name not in unused
    ]
    parts.append(plain_table("Settings", ["field", "value", ""], settings))
    return Group(*parts)


def announce_compiling(console: Console) -> None:
    """Say so where the ranking ahead will first compile its kernels."""
    if ranking.needs_compiling():
        console.print(COMPILING, highlight=False)


class Progress(Callback):
    """A progress bar with loss and validation metric on a terminal; a line now and then where output is not a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=16 if console.width >= WIDE else 8),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[facts]}"),
            progress.TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._metric = ""
        self._best = ""
        self._said = 0.0
        self._started = 0.0
        self._compiled = False

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def on_start(self, config: RunConfig, split: Split) -> None:
        self._metric = config.metric
        self._started = time.monotonic()
        self._task = self.bar.add_task("training", total=config.epochs, facts="")
        self.on_message(str(split))
        for note in split.notes:
            self.on_message(note)

    def on_message(self, message: str) -> None:
        self._compiled |= message == COMPILING
        self.console.print(message, highlight=False, markup=False, soft_wrap=not self.console.is_terminal)

    def on_epoch(self, record: EpochRecord) -> None:
        if record.best and self.console.width >= 100:
            self._best = f" (best {record.valid[self._metric]:.4f} at {record.epoch})"
        value = f" · valid {self._metric} {record.valid[self._metric]:.4f}{self._best}" if record.valid else ""
        facts = f"loss {record.loss:.4f}{value}{_drawn(record.sampler, self.console.width)}"
        self.bar.update(self._task, completed=record.epoch, facts=facts)
        if not self.console.is_terminal and time.monotonic() - self._said > 10:
            self.on_message(f"epoch {record.epoch}: {facts}")
            self._said = time.monotonic()

    def on_end(self, training: Training) -> None:
        seconds = sum(record.seconds for record in training.history)
        whole = time.monotonic() - self._started
        validated = any(record.valid for record in training.history)
        rest = ", the rest mostly validation" if validated else ""
        epochs = f"{len(training.history)} epoch{'s' * (len(training.history) != 1)}"
        kept = f"the model is from epoch {training.best_epoch}"
        if not training.history:
            kept = "the model is the one it started from"
        elif not training.best_epoch:
            kept = "no epoch was better on validation than the model it started from, which is the result"
        elif not validated:
            kept = "the model is from the last, without validation to choose by"
        done = "compiling and training" if self._compiled else "training"
        self.on_message(f"{epochs} in {whole:.1f} s, {seconds:.1f} s of it {done}{rest}; {kept}")

    def track(self, frames: Iterable[pl.DataFrame], users: int, done: int = 0) -> Iterator[pl.DataFrame]:
        """Pass recommendation frames through, counting their users beside those that were done before."""
        task = self.bar.add_task("recommending", total=users, completed=done, facts="")
        for frame in frames:
            yield frame
            self.bar.update(task, advance=frame["user_id"].n_unique())


class Sweep:
    """Many runs side by side: how many are done, which are running, how long the rest may take; of those that can be named by
    now, as what comes of them may ask for more."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=16),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("of these left about"),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=3600,  # runs differ in length: the whole sweep tells best
        )
        self._task: progress.TaskID | None = None
        self._total = self._done = 0
        self._started = 0.0

    def __enter__(self) -> Sweep:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def begin(self, total: int, kept: int) -> None:
        """`total` runs are needed, `kept` of them are there."""
        self._total, self._done, self._started = total - kept, 0, time.monotonic()
        if kept:
            self.console.print(f"{kept} of {total} runs are there already", highlight=False)
        if self._task is not None:
            self.bar.remove_task(self._task)
        self._task = self.bar.add_task("runs", total=self._total)

    def running(self, labels: Sequence[str], total: int) -> None:
        self._total = total
        if self._task is not None:
            self.bar.update(self._task, total=total, description=escape("running " + "; ".join(labels)))

    def done(self, label: str, seconds: float) -> None:
        self._done += 1
        if self._task is not None:
            self.bar.update(self._task, advance=1)
        left = (time.monotonic() - self._started) * (self._total - self._done) / self._done
        said = f"{self._done}/{self._total} {label}: {seconds:.0f} s"
        if not self.console.is_terminal:
            said += f"; of these left about {left / 60:.0f} min" if left > 90 else f"; of these left about {left:.0f} s"
        self.console.print(said, highlight=False, markup=False, soft_wrap=True)
