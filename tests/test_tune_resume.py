"""Searches that are killed, interrupted or side by side; the killing here is real (SIGKILL)."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from srns.tuning import Asked, tune
from srns.tuning.space import Recipe, parse_space
from srns.tuning.trial import Trial

pytest.importorskip("optuna", reason="Optuna is not installed")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs groups of processes")
PATIENCE_SECONDS = 120.0
QUICK: dict[str, Any] = {"epochs": 4, "dim": 8, "sampler": "uniform", "engine": "plain", "threads": 1}
VARY = ("learning_rate=0.0001:0.1:log", "l2=0.001:1:log", "negatives=1:8")


class Process:
    """A search in processes of its own, all of one group."""

    def __init__(self, data: str, out: Path, *flags: str) -> None:
        fixed = [part for name, value in QUICK.items() for part in (f"--{name}", str(value))]
        vary = [part for each in VARY for part in ("--vary", each)]
        self.out = out
        self._command = [sys.executable, "-m", "srns", "tune", data, "--out", str(out), *fixed, *vary, "--seeds", "0"]
        self._command += ["--no-plot", *flags, "--json"]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def finish(self) -> dict[str, Any]:
        out, err = self.start().communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in err, err
        found: dict[str, Any] = json.loads(out)
        assert "error" not in found, err
        return found

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with sqlite3.connect(f"file:{self.out / 'study.db'}?mode=ro", uri=True) as file:
                return file.execute(query).fetchall()
        except sqlite3.OperationalError:  # not made yet
            return []

    def states(self) -> list[str]:
        return [row[0] for row in self.rows("SELECT state FROM trials ORDER BY number")]

    def until(self, process: subprocess.Popen[str], ready: Callable[[list[str]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready(self.states()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)


def tried(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each["state"], each["params"], each["value"], each["epochs"]) for each in answer["trials"]]


def ended(states: list[str]) -> int:
    return sum(state in ("COMPLETE", "PRUNED") for state in states)


def test_a_killed_search_goes_on_as_if_it_had_not_been(clicks: str, tmp_path: Path) -> None:
    """SIGKILL in the middle of the fourth trial."""
    search = Process(clicks, tmp_path / "killed", "--trials", "7")
    process = search.start()
    search.until(process, lambda states: ended(states) >= 3 and "RUNNING" in states)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)
    before = search.states()
    assert ended(before) < 7
    found = search.finish()
    after = search.states()
    assert ended(after) == 7 == len(found["trials"])
    assert len(after) == 7 + before.count("RUNNING"), "only what was under way is begun anew"
    assert after.count("FAIL") == before.count("RUNNING")
    whole = tune(Asked(clicks, QUICK, vary=VARY, out=tmp_path / "whole", trials=7, seeds=0, plot=False))
    assert tried(found) == tried(whole)


def test_two_workers_share_a_study_and_are_replaced_when_killed(clicks: str, tmp_path: Path) -> None:
    search = Process(clicks, tmp_path / "two", "--trials", "8", "--jobs", "2")
    process = search.start()
    search.until(process, lambda states: ended(states) >= 2 and states.count("RUNNING") == 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)
    lost = search.states().count("RUNNING")
    assert lost >= 1
    found = search.finish()
    assert len(found["trials"]) == 8
    assert ended(search.states()) == 8
    assert search.states().count("FAIL") == lost
    times = search.rows("SELECT datetime_start, datetime_complete FROM trials WHERE state IN ('COMPLETE', 'PRUNED')")
    overlapping = [1 for a in times for b in times if a[0] < b[0] < a[1]]
    assert overlapping, "trials ran at the same time"


def test_workers_end_when_the_process_that_started_them_is_killed(clicks: str, tmp_path: Path) -> None:
    search = Process(clicks, tmp_path / "orphans", "--trials", "1000", "--jobs", "2")
    process = search.start()
    search.until(process, lambda states: ended(states) >= 1)
    process.kill()
    process.communicate(timeout=PATIENCE_SECONDS)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("workers went on without it")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_search_says_how_to_go_on(clicks: str, tmp_path: Path, jobs: str) -> None:
    search = Process(clicks, tmp_path / "search", "--trials", "500", "--jobs", jobs)
    process = search.start()
    search.until(process, lambda states: ended(states) >= 2)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal does, to all of them
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "the same command goes on" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("moment", ["running", "complete"])
def test_an_interruption_in_the_last_epoch_of_a_trial_or_after_it_ends_the_search(
    clicks: str, tmp_path: Path, moment: str
) -> None:
    from srns.tuning import tpe

    class Interrupting:
        shown: tuple[Trial, ...] = ()

        def show(self, trials: list[Trial]) -> None:
            self.shown = tuple(trials)
            if trials[-1].state == moment:
                signal.raise_signal(signal.SIGINT)

        def say(self, message: str) -> None: ...

    watcher = Interrupting()
    recipe = Recipe({**QUICK, "epochs": 1})
    search = tpe.Search(tmp_path, clicks, recipe, parse_space(VARY, recipe), trials=3)
    with pytest.raises(KeyboardInterrupt):
        tpe.run(search, None, watcher)
    assert len(watcher.shown) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
