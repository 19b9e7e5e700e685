"""The model in use, and its replacement by a newer one while requests run.

A request takes `state.model` once and answers from it alone, so a new model never mixes with an old one; the old one goes when
the last request that holds it ends. A run is whole once its run.json is there (see `srns.artifacts`), and what is not whole, or
cannot recommend, is not taken: the model before goes on, with a line in the log and a count in the metrics. What failed for
want of memory, file handles or a disk that answers is tried again, less and less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from srns import artifacts
from srns.errors import ArtifactError, ConfigError, SrnsError
from srns.recommender import Recommender
from srns.serving.guard import RefusalError, log
from srns.serving.listing import Catalogue, encoded_by_item
from srns.serving.metrics import Metrics
from srns.serving.settings import Limits, Settings
from srns.serving.titles import Titles

Result = TypeVar("Result")
QUICK_SECONDS = 0.002  # what may run on the event loop: handing it to a thread costs about as much
SOME = 100  # items to list when the time for one is measured
ATTEMPTS = 5  # to read a run that is being replaced
LONGEST_WAIT = 60.0  # seconds between attempts after failures that may pass
BRIEF = 0.01  # seconds: shorter work says nothing of how slow the machine is, since most of its time is not what was foreseen


@dataclass(frozen=True, eq=False)
class Served:
    """A loaded model with what requests need beside it."""

    recommender: Recommender
    name: str
    version: str  # the first digits of the checksum of its run
    catalogue: Catalogue
    seconds: float  # that one user takes
    item_seconds: float  # that an item of a list takes, or an id in a question
    explain_seconds: float | None  # that reasons for one user take; None where the model gives none
    compares: bool
    users: pl.Series = field(repr=False)  # those with training interactions, sorted
    signature: tuple[Any, ...] = ()  # of its files
    loaded_at: float = field(default_factory=time.time)

    @property
    def quick(self) -> bool:
        """Whether one user takes so little time that others may wait."""
        return self.seconds < QUICK_SECONDS

    @property
    def explains(self) -> bool:
        return self.explain_seconds is not None

    def expected(self, users: int, items: int, explained: int = 0) -> float:
        """Seconds that an answer takes: lists for `users`, with `items` in all that are listed or named, and reasons for
        `explained` people."""
        return users * self.seconds + items * self.item_seconds + explained * (self.explain_seconds or 0.0)

    @classmethod
    def of(
        cls, recommender: Recommender, name: str, version: str, titles: Titles | None = None, signature: tuple[Any, ...] = ()
    ) -> Served:
        """Tries the model before anybody asks it, which also compiles what there is to compile."""
        trained = recommender.trained_users_
        if not trained.any():
            raise ConfigError(f"{name} has no user with training interactions")
        labels = recommender.split_.train.user_ids.labels
        users = labels if trained.all() else labels.filter(pl.Series(trained))
        first = users[0]
        items, scores = recommender.recommend(first, 10, exclude_seen=False)
        if not np.isfinite(scores).all():
            raise ArtifactError(f"{name} does not recommend anything to user {first!r}")
        seconds = _seconds(lambda: recommender.recommend(first, 10)) or 0.0
        reasons = _seconds(lambda: recommender.explain(first, items, 1))
        compares = _seconds(lambda: recommender.similar_items(items[0], 1)) is not None
        catalogue = Catalogue(recommender.item_labels_, titles)
        some = np.linspace(0, len(catalogue.labels) - 1, SOME, dtype=np.int64)
        written = _seconds(lambda: encoded_by_item({"items": catalogue.listed(some, some / 7, "score")})) or 0.0
        return cls(recommender, name, version, catalogue, seconds, written / SOME, reasons, compares, users, signature)


def load(settings: Settings) -> Served:
    """The run and the table of items that the settings name, all of one moment."""
    for attempt in range(ATTEMPTS):
        found = _signature(settings)
        try:
            model = _load(settings, found)
        except SrnsError:
            if attempt == ATTEMPTS - 1 or found == _signature(settings):
                raise
            continue
        if found == _signature(settings):
            return model
        del model  # before the next is loaded: with the one in use, no more than two are in memory
    raise ArtifactError(f"{settings.run} was replaced again and again while it was read")


def _load(settings: Settings, signature: tuple[Any, ...]) -> Served:
    run = artifacts.read_run(settings.run)
    recommender = Recommender.load(settings.run)
    item_ids = recommender.split_.train.item_ids
    titles = None
    if settings.items is not None:
        titles = Titles.read(settings.items, item_ids, settings.item_column, settings.title_column)
    name = settings.run.name or settings.run.resolve().name
    return Served.of(recommender, name, artifacts.json_digest(run)[:12], titles, signature)


class State:
    """What the routes share: the model in use, the watch over its folder, and a thread for what takes long."""

    def __init__(self, model: Served, settings: Settings | None, limits: Limits, metrics: Metrics) -> None:
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self.failure: str | None = None  # why the newest run is not the one in use
        self._settings = settings
        self._signature = model.signature  # of the newest run that was looked at
        # One thread: Numba's simplest way of running in parallel breaks where two threads ask for it at once.
        self._thread = ThreadPoolExecutor(1, "srns-serve")
        self._waiting = 0
        self._ahead = 0.0  # seconds that what waits is expected to take
        self._given_up: set[Future[Any]] = set()  # work that nobody waits for any more, and that still runs
        self._slowness = 1.0  # how many times as long as expected work took of late
        self._watch: asyncio.Task[None] | None = None
        metrics.model_loaded(model.name, model.loaded_at, len(model.users), model.recommender.split_.train.n_items)

    async def __aenter__(self) -> State:
        if self._settings is not None and self._settings.reload_seconds > 0:
            self._watch = asyncio.create_task(self._look_again(self._settings))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def in_turn(self, work: Callable[[], Result], seconds: float) -> Result:
        """What takes long, in the thread that does it one after another while the event loop answers others.

        It is refused where too much waits already, or takes so many `seconds` that its time would be over before it is done.
        """
        most = self.limits.answer_seconds
        if seconds > most:
            raise RefusalError(422, f"this would take about {seconds:.0f} seconds, of at most {most:g}; ask for fewer users")
        ahead = self._ahead * self._slowness  # seconds until what waits is done
        if self._waiting >= self.limits.waiting:
            raise RefusalError(429, f"{self._waiting} costly requests are waiting already; try again later", ahead)
        if self._waiting and ahead + seconds * self._slowness > most:
            raise RefusalError(429, f"requests for about {ahead:.0f} seconds are waiting; try again later", ahead)
        if self._given_up:
            raise RefusalError(429, "a request that took too long is still at work; try again later", ahead)
        self._waiting += 1
        self._ahead += seconds
        loop = asyncio.get_running_loop()
        future = self._thread.submit(_timed, work)
        future.add_done_callback(
            partial(self._told, loop, seconds)
        )  # when it ends, which may be after its client was sent away
        try:
            return (await asyncio.wait_for(asyncio.wrap_future(future), most))[0]
        except asyncio.TimeoutError:
            if future.running():
                self._given_up.add(future)
            waits = self._ahead * self._slowness
            raise RefusalError(
                429, f"no answer within {most:g} seconds, as the service is busy; try again later", waits
            ) from None

    def _told(self, loop: asyncio.AbstractEventLoop, seconds: float, future: Future[tuple[Any, float]]) -> None:
        with suppress(RuntimeError):  # the loop is closed: this is the end
            loop.call_soon_threadsafe(self._ended, seconds, future)

    def _ended(self, seconds: float, future: Future[tuple[Any, float]]) -> None:
        self._given_up.discard(future)
        self._waiting -= 1
        self._ahead -= seconds
        if not future.cancelled() and future.exception() is None:
            self._slowness += 0.2 * (min(100.0, future.result()[1] / max(seconds, BRIEF)) - self._slowness)

    async def _look_again(self, settings: Settings) -> None:
        wait = settings.reload_seconds
        while True:
            await asyncio.sleep(wait)
            try:
                await self._reload(settings)
                wait = settings.reload_seconds
            except Exception as error:  # whatever it is, the model in use goes on
                passing = _may_pass(error)
                wait = min(2 * wait, max(LONGEST_WAIT, settings.reload_seconds)) if passing else settings.reload_seconds
                self._signature = () if passing else self._signature
                self._failed(str(error) if isinstance(error, SrnsError) else repr(error))

    async def _reload(self, settings: Settings) -> None:
        found = await asyncio.to_thread(_signature, settings)
        if found == self._signature:
            return
        self._signature = found
        run = await asyncio.to_thread(artifacts.read_run, settings.run)
        if run["status"] != "finished":
            log("waiting", run=settings.run.name, reason=f"the run is {run['status']}; the model before it stays")
            return
        model = await asyncio.to_thread(load, settings)
        self.model, self.failure, self._signature = model, None, model.signature
        self.metrics.reloads.inc()
        self.metrics.model_loaded(model.name, model.loaded_at, len(model.users), model.recommender.split_.train.n_items)
        log("reloaded", run=model.name, model=model.version)

    def _failed(self, reason: str) -> None:
        self.failure = reason
        self.metrics.failures.inc()
        log("reload failed", "error", reason=reason, model=self.model.version)


def _signature(settings: Settings) -> tuple[Any, ...]:
    """What changes when one of the files does."""
    names = (artifacts.RUN, artifacts.MODEL, artifacts.IDS, artifacts.INTERACTIONS)
    paths = [settings.run / name for name in names] + ([settings.items] if settings.items is not None else [])
    with suppress(OSError):
        paths += sorted(path for path in settings.run.glob("shard-*-of-*/*.safetensors") if path.name in names)
    return tuple((str(path), *_stat(path)) for path in paths)


def _stat(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _may_pass(error: BaseException) -> bool:
    """Whether the same files may be read another time: memory or file handles were short, or a disk did not answer."""
    causes = [error, error.__context__]  # an error of ours was made of another
    if any(isinstance(cause, FileNotFoundError) for cause in causes):
        return False
    return not isinstance(error, SrnsError) or any(isinstance(cause, OSError | MemoryError) for cause in causes)


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _seconds(attempt: Callable[[], Any]) -> float | None:
    """The shortest time of a few attempts; None where the model cannot do it."""
    try:
        return min(_timed(attempt)[1] for _ in range(5))
    except ConfigError:
        return None
