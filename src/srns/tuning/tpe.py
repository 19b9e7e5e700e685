"""Search with Optuna: its tree-structured Parzen estimator proposes settings, hopeless ones are given up after a few epochs,
and all is kept in a SQLite file that worker processes share and the same command goes on from. Needs `srns[tune]`.

Which setting comes next depends on the seed, on how many came before and on what they found, not on the process that asks: one
worker that was killed and started again tries what it would have tried anyway.

Pruning: a trial is given up if its best epoch so far is below the median that complete trials had at this epoch, after half of
the epochs and five complete trials. A cosine keeps the step size high for long, so who is ahead early says little;
docs/tuning.md has what other pruners save and lose in runs of 20 epochs. The model that trials start from
with `init` is none of these epochs: it is the same for all, and tells nothing of a setting.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from srns.config import RunConfig
from srns.errors import ConfigError, SrnsError
from srns.interruptions import interruptions
from srns.trainer import COMPILING, Callback, EpochRecord
from srns.tuning.space import Entry, Range, Recipe, Space
from srns.tuning.trial import Trial, Watcher, best_value, threads_for, train_once

try:
    import optuna
    from optuna.trial import TrialState
except ImportError as error:
    raise ConfigError(f"searching with Optuna needs it: pip install 'srns[tune]' ({error}); --search paper does not") from None

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

STUDY, NAME = "study.db", "srns"
INSTEAD, DEFAULT = "instead_of", "default"  # marks of trials: for one that was cut short; the recipe as it is
REFUSED = "refused"  # a mark too: of a trial that could not begin
FOUND = {"best_epoch", "start"}  # marks too: what is known of a trial at its end, besides its value
STARTUP = 5  # complete trials before any is pruned
POLL_SECONDS = 0.3
PATIENCE_SECONDS = 60.0  # with a file that another process writes to, and with workers that are told to end
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@dataclass(frozen=True)
class Search:
    """A search as plain data, for workers: `trials` at most in all, none begun after `deadline` (seconds since 1970).

    `start` is what the run holds that they start from (`srns.tuning.trial.start_of`).
    """

    folder: Path
    data: str
    recipe: Recipe
    space: Space
    jobs: int = 1
    trials: int | None = None
    deadline: float | None = None
    start: str | None = None

    @property
    def config(self) -> RunConfig:
        return self.recipe.config()

    def settled(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Values of Optuna as they are used, in the order of the space."""
        return {name: entry.settle(params[name]) for name, entry in self.space.items() if name in params}

    def late(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline


def default_params(recipe: Recipe, space: Space, l2: float) -> dict[str, Any] | None:
    """The recipe's own values of what is varied, with `l2` for "auto"; None where they lie outside the space."""
    config = recipe.config()
    values = {name: getattr(config, name, None) for name in space}
    if values.get("l2") == "auto" and isinstance(space["l2"], Range):
        values["l2"] = float(f"{l2:.3g}")
    return values if all(space[name].contains(value) for name, value in values.items()) else None


def run(search: Search, default: Mapping[str, Any] | None, watcher: Watcher) -> list[Trial]:
    """Begin a search or go on with it; the recipe as it is, `default`, is tried first. Returns all trials."""
    with _opened(search) as study:
        if default is not None and not study.get_trials(deepcopy=False):
            study.enqueue_trial(dict(default), user_attrs={DEFAULT: True})
        _revive(study, search)
        if search.jobs == 1:
            work(search, watcher=watcher)
        else:
            _side_by_side(search, study, watcher)
        _revive(study, search)
        trials = records(study, search)
        watcher.show(trials)
        return trials


def work(search: Search, lock: Any = None, watcher: Watcher | None = None) -> None:
    """Try settings until there are enough trials or time is up: what each worker does.

    An interruption waits for the end of an epoch, or of what is being written to the file.
    """
    with _opened(search) as study, interruptions() as interrupted:
        while not interrupted and (trial := _begin(study, search, lock)) is not None:
            _try(trial, study, search, watcher)
            if watcher is not None:
                watcher.show(records(study, search))
        if interrupted:
            raise KeyboardInterrupt


def worker(search: Search, lock: Any) -> None:
    """A process that works for another, and ends with it."""
    try:
        work(search, lock)
    except KeyboardInterrupt:  # the trial is begun anew by the next search
        raise SystemExit(0) from None


def _side_by_side(search: Search, study: Study, watcher: Watcher) -> None:
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    workers = [context.Process(target=worker, args=(search, lock), daemon=True) for _ in range(search.jobs)]
    try:
        with _deaf_to_interrupts():
            for process in workers:
                process.start()
        while any(process.is_alive() for process in workers):
            time.sleep(POLL_SECONDS)
            watcher.show(records(study, search))
    finally:
        begun = [process for process in workers if process.pid is not None]
        for process in begun:
            process.terminate()  # those that still run let their epoch end
        for process in begun:
            process.join(PATIENCE_SECONDS)
            process.kill()
    if lost := [process.exitcode for process in workers if process.exitcode]:
        reason = "perhaps for want of memory" if -9 in lost else "see above"
        raise SrnsError(
            f"{len(lost)} of {search.jobs} workers ended early, {reason}; the same command goes on from {search.folder}"
        )


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started within leave Ctrl-C to this one, which tells them to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(study: Study, search: Search, lock: Any) -> optuna.Trial | None:
    """The next trial; one at a time, so that there are no more of them than asked for."""
    # A worker that is killed while it holds the lock never gives it back: better one trial too many than none any more.
    held = lock is not None and lock.acquire(timeout=PATIENCE_SECONDS)
    try:
        _end_if_orphaned()
        trials = study.get_trials(deepcopy=False)
        cut = _cut_short(trials)
        begun = sum(trial.state != TrialState.WAITING and trial.number not in cut for trial in trials)
        if (begun and search.late()) or (search.trials is not None and begun >= search.trials):
            return None
        seed = int(np.random.SeedSequence([search.config.seed, begun]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        return study.ask({name: distribution(entry) for name, entry in search.space.items()})
    finally:
        if held:
            lock.release()


def _try(trial: optuna.Trial, study: Study, search: Search, watcher: Watcher | None) -> None:
    params = search.settled(trial.params)
    if (same := _tried(study, search, trial.number, params)) is not None:  # it would find the same
        for epoch, value in same.intermediate_values.items():
            trial.report(value, epoch)
        for mark in FOUND & same.user_attrs.keys():
            trial.set_user_attr(mark, same.user_attrs[mark])
        trial.set_user_attr("note", f"as trial {same.number}")
        study.tell(trial, same.value if same.state == TrialState.COMPLETE else None, same.state)
        return
    watch = _Watch(trial, study, search, watcher)
    try:
        config = search.recipe.config(params)
        watch.epochs = config.epochs
        fields = config.model_dump(mode="json") | {"threads": threads_for(config, search.jobs)}
        found = train_once(search.data, fields, watch, search.start)
    except SrnsError as error:  # values that do not go together
        found = {"failed": str(error), REFUSED: isinstance(error, ConfigError)}
    _end_if_orphaned()
    if watch.cut_short:
        return
    if "failed" in found:
        trial.set_user_attr("note", found["failed"])
        trial.set_user_attr(REFUSED, found.get(REFUSED, False))
        study.tell(trial, state=TrialState.FAIL)
        return
    for mark in FOUND:
        trial.set_user_attr(mark, found[mark])
    if watch.pruned:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, best_value(found))


class _Watch(Callback):
    """Reports each epoch to the study, and ends training where it is pruned or time is up."""

    def __init__(self, trial: optuna.Trial, study: Study, search: Search, watcher: Watcher | None) -> None:
        self.trial, self.study, self.search, self.watcher = trial, study, search, watcher
        self.metric = search.config.metric
        self.epochs = 0
        self.pruned = self.cut_short = False
        self._shown = 0.0

    def on_message(self, message: str) -> None:
        if message == COMPILING and self.watcher is not None:
            self.watcher.say(message)

    def on_epoch(self, record: EpochRecord) -> bool:
        _end_if_orphaned()
        if self.watcher is not None and time.monotonic() - self._shown > POLL_SECONDS:
            self.watcher.show(records(self.study, self.search))
            self._shown = time.monotonic()
        if record.valid:
            self.trial.report(record.valid[self.metric], record.epoch)
            self.pruned = record.epoch < self.epochs and self.trial.should_prune()
        # Where nothing is complete yet, the first trials are let run: time without a result is lost.
        complete = self.search.late() and bool(self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        self.cut_short = complete and record.epoch < self.epochs and not self.pruned
        return self.pruned or self.cut_short


@contextmanager
def _opened(search: Search) -> Iterator[Study]:
    """The study of a folder, made where there is none."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    wait = {"connect_args": {"timeout": PATIENCE_SECONDS}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = optuna.storages.RDBStorage(f"sqlite:///{search.folder / STUDY}", engine_kwargs=wait)
        pruner = optuna.pruners.MedianPruner(STARTUP, n_warmup_steps=max(1, search.config.epochs // 2))
        study = optuna.create_study(study_name=NAME, storage=storage, direction="maximize", pruner=pruner, load_if_exists=True)
        try:
            yield study
        finally:
            storage.remove_session()
            storage.engine.dispose()


def _revive(study: Study, search: Search) -> None:
    """Trials whose process is gone are failed, and their settings are the next to be tried. Of one that was killed while its
    settings were written, what was not given is drawn anew: the same, since draws follow from what came before."""
    trials = study.get_trials(deepcopy=False)
    again = _cut_short(trials)
    for trial in trials:
        if trial.state == TrialState.RUNNING:
            if trial.number not in again:  # a process may be killed right here: first the new, then the end of the old
                marks = {name: value for name, value in trial.user_attrs.items() if name == DEFAULT}
                whole = trial.params.keys() == search.space.keys()
                params = trial.params if whole else trial.system_attrs.get("fixed_params", {})
                study.enqueue_trial(params, user_attrs={**marks, INSTEAD: trial.number})
            study.tell(trial.number, state=TrialState.FAIL)


def _cut_short(trials: list[FrozenTrial]) -> set[int]:
    """The numbers of trials in whose stead there are others."""
    return {trial.user_attrs[INSTEAD] for trial in trials if INSTEAD in trial.user_attrs}


def _tried(study: Study, search: Search, number: int, params: Mapping[str, Any]) -> FrozenTrial | None:
    """An earlier trial of the same settings that came to an end."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return next((each for each in ended if each.number != number and search.settled(each.params) == params), None)


def records(study: Study, search: Search) -> list[Trial]:
    """All trials but those cut short, by number."""
    trials = study.get_trials(deepcopy=False)
    cut = _cut_short(trials)
    return [_record(trial, search) for trial in trials if trial.number not in cut]


def _record(trial: FrozenTrial, search: Search) -> Trial:
    seen, start = trial.intermediate_values, trial.user_attrs.get("start")
    so_far = max((value for value in (start, *seen.values()) if value is not None), default=None)
    value = trial.value if trial.state == TrialState.COMPLETE else so_far
    return Trial(
        trial.number,
        STATES[trial.state.name],
        search.settled(trial.params),
        value,
        trial.user_attrs.get("best_epoch", 0),
        max(seen, default=0),
        trial.duration.total_seconds() if trial.duration is not None else 0.0,
        trial.user_attrs.get("note", "default" if trial.user_attrs.get(DEFAULT) else ""),
        start,
        trial.user_attrs.get(REFUSED, False),
    )


def forget(folder: Path) -> None:
    """Remove the study of a folder."""
    (folder / STUDY).unlink(missing_ok=True)


def distribution(entry: Entry) -> BaseDistribution:
    """An entry of a space as Optuna has it."""
    if not isinstance(entry, Range):
        return optuna.distributions.CategoricalDistribution(entry.values)
    if entry.whole:
        return optuna.distributions.IntDistribution(int(entry.low), int(entry.high), log=entry.log)
    return optuna.distributions.FloatDistribution(entry.low, entry.high, log=entry.log)


def _end_if_orphaned() -> None:
    """Workers end when the process that started them is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise KeyboardInterrupt
