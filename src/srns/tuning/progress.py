"""How a search looks while it runs: trials done, the best so far, what is running, pruned or failed, and the time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich import progress
from rich.console import Console

from srns.tuning.trial import Trial, best_of

QUIET_SECONDS = 10.0  # between lines where output is not a terminal
DONE = ("complete", "pruned", "failed")


class SearchProgress:
    """A bar on a terminal, else a line now and then; a `Watcher`. Of `total` trials, or as many as there is time for until
    `deadline`."""

    def __init__(self, console: Console, metric: str, total: int | None, deadline: float | None = None) -> None:
        self.console, self.metric, self.total, self.deadline = console, metric, total, deadline
        self.bar = progress.Progress(
            progress.TextColumn("searching"),
            progress.BarColumn(bar_width=16),
            progress.TextColumn("{task.fields[facts]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=total, facts="")
        self._started, self._said = time.time(), 0.0
        self._before: int | None = None  # trials that were done when this process began

    def __enter__(self) -> SearchProgress:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def say(self, message: str) -> None:
        self.console.print(message, highlight=False, markup=False, soft_wrap=not self.console.is_terminal)

    def show(self, trials: Sequence[Trial]) -> None:
        count = Counter(trial.state for trial in trials)
        done = sum(count[state] for state in DONE)
        if self._before is None:
            self._before = done
        facts = [f"{done}{f' of {self.total}' if self.total else ''} trials"]
        if (best := best_of(trials)) is not None:
            facts.append(f"best {self.metric} {best.value:.4f} (trial {best.number})")
        facts += [f"{count[state]} {state}" for state in ("running", "pruned", "failed") if count[state]]
        if (left := self._left(done)) is not None:
            facts.append(f"{left} left")
        line = " · ".join(facts)
        self.bar.update(self._task, completed=done, facts=line)
        if not self.console.is_terminal and time.monotonic() - self._said > QUIET_SECONDS:
            self.say(line)
            self._said = time.monotonic()

    def _left(self, done: int) -> str | None:
        """The time until all trials are done at the pace so far, or until the deadline."""
        guesses = [] if self.deadline is None else [self.deadline - time.time()]
        fresh = done - (self._before or 0)
        if self.total is not None and fresh > 0:
            guesses.append((self.total - done) * (time.time() - self._started) / fresh)
        if not guesses or min(guesses) <= 0:
            return None
        seconds = min(guesses)
        return (
            f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
        )
