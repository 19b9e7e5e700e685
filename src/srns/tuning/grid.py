"""The paper's search (`srns.experiments.paper_search`) at work: stage by stage, trials side by side, each kept as a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from srns.config import RunConfig
from srns.experiments.paper_search import PaperSearch, Setting
from srns.experiments.store import Job, Store
from srns.tuning.trial import Trial, Watcher, best_value, threads_for, train_once

RESULTS = "results"
ConfigOf = Callable[[Mapping[str, Any]], RunConfig]  # the run of a setting


class _Stages:
    """A search under way: its jobs, and what is told of them (a `Watcher` of `srns.experiments.store`)."""

    def __init__(
        self, folder: Path, data: str, config_of: ConfigOf, start: str | None, search: PaperSearch, jobs: int, watcher: Watcher
    ) -> None:
        self.data, self.config_of, self.search, self.workers, self.watcher = data, config_of, search, jobs, watcher
        self.start = start
        self.store = Store(folder / RESULTS)
        self.jobs: dict[Setting, Job] = {}  # in the order of trials
        self.scores: dict[Setting, float] = {}
        self.trials: dict[Job, Trial] = {}

    def run(self) -> list[Trial]:
        while settings := self.search.next(self.scores):
            stage = self.search.stages(self.scores)[-1].name
            for setting in settings:
                self._add(setting, stage)
            found = self.store.complete([self.jobs[each] for each in settings], self.workers, self)
            self.scores |= {each: best_value(found[self.jobs[each]]) for each in settings}
        return list(self.trials.values())

    def _add(self, setting: Setting, stage: str) -> None:
        config = self.config_of(dict(setting))
        fields = config.model_dump(mode="json") | {"threads": threads_for(config, self.workers)}
        label = ", ".join(f"{name} {value}" for name, value in setting)
        # A trial is kept under what it starts from, besides its path: the run there may be trained anew.
        start = None if config.init is None else self.start
        job = self.jobs[setting] = Job.of(train_once, label, dataset=self.data, config=fields, start=start)
        self.trials[job] = Trial(len(self.trials), "waiting", dict(setting), note=stage)
        self._hear(job)

    def _hear(self, job: Job) -> None:
        """Take over what is kept of a trial."""
        if (found := self.store.get(job)) is None:
            return
        before = self.trials[job]
        known = {"number": before.number, "params": before.params, "seconds": found["seconds"]}
        if "failed" in found:
            self.trials[job] = Trial(state="failed", note=found["failed"], **known)
        else:
            known |= {"value": best_value(found), "best_epoch": found["best_epoch"], "start": found["start"]}
            self.trials[job] = Trial(state="complete", epochs=len(found["values"]), note=before.note, **known)

    def begin(self, total: int, kept: int) -> None:
        self.watcher.show(list(self.trials.values()))

    def running(self, labels: Sequence[str], total: int) -> None:
        for job, trial in self.trials.items():
            if trial.state in ("waiting", "running"):
                state = "running" if job.label in labels else "waiting"
                self.trials[job] = Trial(trial.number, state, trial.params, note=trial.note)
        self.watcher.show(list(self.trials.values()))

    def done(self, label: str, seconds: float) -> None:
        for job in self.trials:
            if job.label == label:
                self._hear(job)
        self.watcher.show(list(self.trials.values()))


def run(
    folder: Path, data: str, config_of: ConfigOf, start: str | None, search: PaperSearch, jobs: int, watcher: Watcher
) -> tuple[list[Trial], Trial | None]:
    """All trials of the paper's search, those kept in the folder among them, and the best of the method searched for.

    `start` is what the run holds that they start from (`srns.tuning.trial.start_of`).
    """
    under_way = _Stages(folder, data, config_of, start, search, jobs, watcher)
    trials = under_way.run()
    setting = search.best(under_way.scores)
    return trials, None if setting is None else under_way.trials[under_way.jobs[setting]]
