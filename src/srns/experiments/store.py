"""Runs that are made once, side by side, and kept: jobs, the names they are kept under, and the processes that run them.

A job is a function of this package and what it is called with, all of it plain data: that is what it is kept under. Its module
holds what makes the run and no more, since a changed word in it makes a kept run be made again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from srns import __version__
from srns.artifacts import file_digest, replacing
from srns.databases import is_url, shown
from srns.errors import ConfigError, SrnsError
from srns.locks import owned
from srns.runs import environment

Found = Mapping["Job", dict[str, Any]]
Naming = Callable[[Found], Iterable["Job"]]  # the jobs that can be named from what is found
_Timed = tuple[dict[str, Any], float, dict[str, Any]]  # a result, the seconds it took, what made it
FAILED = "failed"  # in place of a result: why there is none
# Modules and folders of this package that a run's numbers come from.
LEARNING = (
    "adam", "columns", "config", "datasets", "engines", "evaluation", "ids", "interactions", "kernels", "losses", "moments",
    "negatives", "npz", "presets", "readers", "rng", "roles", "runs", "samplers", "scorers", "simulation", "splits", "starts",
    "streams", "tables", "terms", "trainer",
)  # fmt: skip
# More of them, that the runs of one module alone come from.
MORE = {"audit/trial": ("audit/hiding",)}


@dataclass(frozen=True)
class Job:
    """`function` ("srns.experiments.noise_runs:train") called with `arguments` (JSON); `label` is what people see of it.

    One that `keeps` files is called with `folder` too, which is its own within the store and bears its key as name.
    """

    function: str
    arguments: str
    label: str = field(default="", compare=False)
    keeps: bool = field(default=False, compare=False)

    @classmethod
    def of(cls, function: Callable[..., dict[str, Any]], label: str, *, keeps: bool = False, **arguments: Any) -> Job:
        refuse_database(arguments.get("dataset"))
        return cls(f"{function.__module__}:{function.__qualname__}", json.dumps(arguments, sort_keys=True), label, keeps)

    def key(self) -> str:
        """The name under which the result is kept: other code that trains, other arguments or changed data make another."""
        module = self.function.partition(":")[0]
        data = stamp(json.loads(self.arguments).get("dataset"))
        text = "\n".join([__version__, code_digest(module), self.function, self.arguments, data])
        return f"{self.function.rpartition('.')[2].replace(':', '-')}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    @property
    def seed(self) -> int | None:
        """Of the run; None where nothing is drawn."""
        arguments = json.loads(self.arguments)
        found: int | None = arguments.get("seed", arguments.get("values", {}).get("seed"))
        return found

    def run(self, store: Path) -> dict[str, Any]:
        module, _, name = self.function.partition(":")
        own = {"folder": store / self.key()} if self.keeps else {}
        found: dict[str, Any] = getattr(import_module(module), name)(**json.loads(self.arguments), **own)
        return found


def refuse_database(dataset: Any) -> None:
    """Many runs read their data again and again, which a database changes meanwhile; and its password would be kept."""
    if is_url(dataset):
        raise ConfigError(f"{shown(dataset)}: many runs need data that stay as they are; write the table to a file first")


def sources(module: str = "") -> list[Path]:
    """The files of the code that results depend on, with the module of the function that makes one."""
    package = Path(__file__).parent.parent
    own = module.removeprefix("srns.").replace(".", "/")
    names = (*LEARNING, *([own] if own else []), *MORE.get(own, ()))
    return sorted(file for name in names for file in (package / f"{name}.py", *(package / name).glob("*.py")) if file.is_file())


@cache
def code_digest(module: str = "") -> str:
    """A digest of these files."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sources(module))).hexdigest()


def stamp(dataset: Any) -> str:
    """What the files of the data hold, whether they are given by path or by a name in $SRNS_DATA: the same data in
    their place, copied or downloaded again or only touched, leave finished runs in use."""
    if not isinstance(dataset, str) or not dataset:
        return ""
    path, folder = Path(dataset), os.environ.get("SRNS_DATA")
    stems = (path.name, f"{path.name}-tuning")  # the second is the split for choosing settings of the same data
    named = [file for file in sorted(Path(folder).iterdir()) if file.stem in stems] if folder and Path(folder).is_dir() else []
    files = [path, *sorted(path.rglob("*")), *named]
    kept = [(file, file.stat()) for file in files if file.is_file()]
    return " ".join(f"{file.name} {_contents(file, found.st_size, found.st_mtime_ns)}" for file, found in kept)


@cache
def _contents(file: Path, size: int, changed: int) -> str:
    """A digest of a file, read once for as long as its size and time stay as they are."""
    return file_digest(file)


class Watcher(Protocol):
    """What is told how a sweep goes on."""

    def begin(self, total: int, kept: int) -> None: ...

    def running(self, labels: Sequence[str], total: int) -> None: ...  # of so many that are to be run, as far as is known

    def done(self, label: str, seconds: float) -> None: ...


class Store:
    """Results of jobs in a folder, one JSON file each, written as soon as a job ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, job: Job) -> dict[str, Any] | None:
        try:
            return dict(self._kept(job)["found"])
        except (OSError, ValueError, KeyError):  # a file that is not whole is made again
            return None

    def environment(self, jobs: Iterable[Job]) -> dict[str, Any]:
        """What made the results of jobs, and what reads them now: of packages, the versions of all processes."""
        found = environment()
        for job in jobs:
            for name, version in self._kept(job)["environment"]["packages"].items():
                others = found["packages"].get(name, version)
                found["packages"][name] = others if version in others.split(", ") else f"{others}, {version}"
        return found

    def _kept(self, job: Job) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads((self.folder / f"{job.key()}.json").read_text())
        return kept

    def put(self, job: Job, found: dict[str, Any], seconds: float, made_by: dict[str, Any]) -> None:
        kept = {"function": job.function, "arguments": json.loads(job.arguments), "label": job.label}
        kept |= {"found": found, "seconds": seconds, "environment": made_by}
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.folder / f"{job.key()}.json") as path:
            path.write_text(json.dumps(kept) + "\n")

    def complete(
        self, jobs: Iterable[Job] | Naming, workers: int, watcher: Watcher, failed: dict[Job, BaseException] | None = None
    ) -> dict[Job, dict[str, Any]]:
        """The results of all jobs; those that are not there yet are run, so many at once. Where some can be named only when
        others are found, `jobs` names them, and is asked again whenever one ends: what it names no more is not begun.

        One that fails does not stop the others. Failures are gathered in `failed`; without it, the first is raised in the end.
        """
        fixed = [] if callable(jobs) else list(jobs)
        name: Naming = jobs if callable(jobs) else lambda found: fixed
        failures: dict[Job, BaseException] = {} if failed is None else failed
        found: dict[Job, dict[str, Any]] = {}
        todo = self.named(name, found, failures)
        watcher.begin(len(found) + len(todo), len(found))
        if not todo:
            return found
        sweep = _Sweep(self, name, watcher, found, failures, todo)
        with owned(self.folder), _one_thread_each():
            while sweep.todo:  # a pool of which a process was killed runs nothing more, and another takes its place
                with _pool(workers) as pool:
                    sweep.run(pool, workers)
        if failed is None and failures:
            job = next(iter(failures))
            raise SrnsError(
                f"{len(failures)} of {sweep.ended} runs failed, first {job.label}: {reason_of(failures[job])}; "
                f"{len(found)} are kept in {self.folder}, and the same command goes on from there"
            )
        return found

    def named(self, name: Naming, found: dict[Job, dict[str, Any]], failures: Mapping[Job, BaseException]) -> list[Job]:
        """The jobs that are still to be run, in the order in which they are named; those that are kept are taken over, as long
        as that lets more be named."""
        while True:
            new = [job for job in dict.fromkeys(name(found)) if job not in found and job not in failures]
            kept = {job: result for job in new if (result := self.get(job)) is not None}
            if not kept:
                return new
            found |= kept


@dataclass
class _Sweep:
    """Jobs on their way: those still `todo`, those `running`, and what came of those that `ended`."""

    store: Store
    name: Naming
    watcher: Watcher
    found: dict[Job, dict[str, Any]]
    failures: dict[Job, BaseException]
    todo: list[Job]
    running: dict[Future[_Timed], Job] = field(default_factory=dict)
    ended: int = 0

    def run(self, pool: ProcessPoolExecutor, workers: int) -> None:
        """Run what is to be run and what can be named when that is found, until all has ended or the pool is broken."""
        usable = True
        while self.running or (self.todo and usable):
            usable = usable and self._begin(pool, workers)
            if self.running:
                labels = [job.label for job in self.running.values()]
                self.watcher.running(labels, self.ended + len(labels) + len(self.todo))
            for future in wait(self.running, return_when=FIRST_COMPLETED).done:
                self._end(future)
                usable &= not isinstance(future.exception(), BrokenProcessPool)
            busy = set(self.running.values())
            self.todo = [job for job in self.store.named(self.name, self.found, self.failures) if job not in busy]

    def _begin(self, pool: ProcessPoolExecutor, workers: int) -> bool:
        """Submit one job for each idle worker and no more, so that an interruption loses only what runs. False if the pool
        is broken; a new pool always accepts its first job, so that there are no more pools than jobs."""
        while self.todo and len(self.running) < workers:
            job = self.todo[0]
            try:
                self.running[pool.submit(_timed, job, self.store.folder)] = job
            except BrokenProcessPool:
                return False
            del self.todo[0]
        return True

    def _end(self, future: Future[_Timed]) -> None:
        job = self.running.pop(future)
        self.ended += 1
        if (error := future.exception()) is not None:
            self.failures[job] = error
            return
        self.found[job], seconds, made_by = future.result()
        self.store.put(job, self.found[job], seconds, made_by)
        self.watcher.done(job.label, seconds)


def _pool(workers: int) -> ProcessPoolExecutor:
    """Fresh processes, since those that fork off one with threads may hang."""
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A process whose parent is killed would otherwise finish a run that nobody waits for."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def reason_of(error: BaseException) -> str:
    """Why a job failed, for people."""
    if isinstance(error, BrokenProcessPool):
        return "its process was killed, perhaps for want of memory"
    return str(error) if isinstance(error, SrnsError) else f"{type(error).__name__}: {error}"


def _timed(job: Job, store: Path) -> _Timed:
    """In a worker: the result, the seconds it took, and the environment that made it."""
    start = time.perf_counter()
    found = job.run(store)
    return found, time.perf_counter() - start, environment()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started within use one thread for algebra each, since several run side by side."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)
