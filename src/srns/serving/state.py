"""The model in use, and its replacement by a newer one while requests run.

A request takes `state.model` once and answers from it alone, so a new model never mixes with an old one; the old one goes when
the last request that holds it ends. A run is whole once its run.json is there (see `srns.artifacts`), and what is not whole, or
cannot recommend, is not taken: the model before goes on, with a line in the log and a count in the metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from srns import artifacts
from srns.errors import ArtifactError, ConfigError, SrnsError
from srns.recommender import Recommender
from srns.serving.guard import RefusalError, log
from srns.serving.metrics import Metrics
from srns.serving.settings import Limits, Settings
from srns.serving.titles import Titles

Result = TypeVar("Result")
QUICK_SECONDS = 0.002  # what may run on the event loop: handing it to a thread costs about as much


@dataclass(frozen=True, eq=False)
class Served:
    """A loaded model with what requests need beside it."""

    recommender: Recommender
    name: str
    version: str  # the first digits of the checksum of its run
    titles: Titles | None
    quick: bool  # whether one user takes so little time that others may wait
    explains: bool
    compares: bool
    users: pl.Series = field(repr=False)  # those with training interactions, sorted
    loaded_at: float = field(default_factory=time.time)

    @classmethod
    def of(cls, recommender: Recommender, name: str, version: str, titles: Titles | None) -> Served:
        """Tries the model before anybody asks it, which also compiles what there is to compile."""
        trained = recommender.trained_users_
        if not trained.any():
            raise ConfigError(f"{name} has no user with training interactions")
        labels = recommender.split_.train.user_ids.labels
        users = labels if trained.all() else labels.filter(pl.Series(trained))
        first = users[0]
        took = []
        for _ in range(5):
            start = time.perf_counter()
            items, scores = recommender.recommend(first, 10, exclude_seen=False)
            took.append(time.perf_counter() - start)
        if not np.isfinite(scores).all():
            raise ArtifactError(f"{name} does not recommend anything to user {first!r}")
        explains = _can(lambda: recommender.explain(first, items[0], 1))
        compares = _can(lambda: recommender.similar_items(items[0], 1))
        return cls(recommender, name, version, titles, min(took) < QUICK_SECONDS, explains, compares, users)


def load(settings: Settings) -> Served:
    """The run and the table of items that the settings name."""
    run = artifacts.read_run(settings.run)
    recommender = Recommender.load(settings.run)
    item_ids = recommender.split_.train.item_ids
    titles = None
    if settings.items is not None:
        titles = Titles.read(settings.items, item_ids, settings.item_column, settings.title_column)
    name = settings.run.name or settings.run.resolve().name
    return Served.of(recommender, name, _version(run), titles)


class State:
    """What the routes share: the model in use, the watch over its folder, and a thread for what takes long."""

    def __init__(self, model: Served, settings: Settings | None, limits: Limits, metrics: Metrics) -> None:
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self.failure: str | None = None  # why the newest run is not the one in use
        self._settings = settings
        self._signature = _signature(settings) if settings is not None else ()
        # One thread: Numba's simplest way of running in parallel breaks where two threads ask for it at once.
        self._thread = ThreadPoolExecutor(1, "srns-serve")
        self._waiting = 0
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

    async def in_turn(self, work: Callable[[], Result]) -> Result:
        """What takes long, in the thread that does it one after another while the event loop answers others."""
        if self._waiting >= self.limits.waiting:
            raise RefusalError(429, f"{self._waiting} costly requests are waiting already; try again in a second")
        self._waiting += 1
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, work)
            return await asyncio.wait_for(future, self.limits.answer_seconds)
        except asyncio.TimeoutError:
            raise RefusalError(503, f"no answer within {self.limits.answer_seconds:g} seconds") from None
        finally:
            self._waiting -= 1

    async def _look_again(self, settings: Settings) -> None:
        while True:
            await asyncio.sleep(settings.reload_seconds)
            try:
                await self._reload(settings)
            except Exception as error:  # whatever it is, the model in use goes on
                self._failed(repr(error))

    async def _reload(self, settings: Settings) -> None:
        found = await asyncio.to_thread(_signature, settings)
        if found == self._signature:
            return
        self._signature = found
        try:
            run = await asyncio.to_thread(artifacts.read_run, settings.run)
            if run["status"] != "finished":
                log("waiting", run=settings.run.name, reason=f"the run is {run['status']}; the model before it stays")
                return
            model = await asyncio.to_thread(load, settings)
        except (SrnsError, OSError) as error:
            self._failed(str(error))
            return
        self.model, self.failure = model, None
        self.metrics.reloads.inc()
        self.metrics.model_loaded(model.name, model.loaded_at, len(model.users), model.recommender.split_.train.n_items)
        log("reloaded", run=model.name, model=model.version)

    def _failed(self, reason: str) -> None:
        self.failure = reason
        self.metrics.failures.inc()
        log("reload failed", "error", reason=reason, model=self.model.version)


def _version(run: dict[str, Any]) -> str:
    return artifacts.json_digest(run)[:12]


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


def _can(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except ConfigError:
        return False
    return True
