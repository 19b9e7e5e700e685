"""Runs that are made once, side by side, and kept: what a sweep promises when all goes well, and when it does not."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import srns
from srns.errors import ConfigError, SrnsError
from srns.experiments.outcome import Asked, Check, Outcome, Table
from srns.experiments.reproduce import BEYOND, TARGETS
from srns.experiments.store import Job, Store, reason_of, sources


def square(number: int, log: str) -> dict[str, Any]:
    """A job that leaves a trace of each time it ran."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    return {"square": number**2, "algebra threads": os.environ.get("OMP_NUM_THREADS", "")}


def fail(number: int) -> dict[str, Any]:
    raise ConfigError(f"no {number} today")


def die(number: int) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def nap(number: int, log: str) -> dict[str, Any]:
    Path(log, f"{number}-{os.getpid()}").touch()
    time.sleep(0.05 if number < 2 else 60)
    return {"number": number}


def wait_for(log: str, line: str) -> dict[str, Any]:
    """A job that ends when another has left its trace."""
    for _ in range(1200):
        if line in Path(log).read_text().split():
            return {"waited": True}
        time.sleep(0.05)
    return {"waited": False}


def note(number: int, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True)
    (folder / "note").write_text(str(number))
    return {"folder": folder.name}


class Told:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.ended: list[str] = []
        self.most = 0

    def begin(self, total: int, kept: int) -> None:
        self.begun.append((total, kept))

    def running(self, labels: Sequence[str], total: int) -> None:
        self.most = max(self.most, len(labels))

    def done(self, label: str, seconds: float) -> None:
        self.ended.append(label)


def test_runs_are_made_once_and_only_what_is_missing_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    jobs = [Job.of(square, f"square of {n}", number=n, log=str(tmp_path / "log.txt")) for n in range(3)]
    store, told = Store(tmp_path / "runs"), Told()
    found = store.complete([*jobs, jobs[0]], 2, told)
    assert [found[job]["square"] for job in jobs] == [0, 1, 4]
    assert {found[job]["algebra threads"] for job in jobs} == {"1"}
    assert told.begun == [(3, 0)]
    assert told.most == 2
    assert sorted(told.ended) == ["square of 0", "square of 1", "square of 2"]
    more = Job.of(square, "square of 3", number=3, log=str(tmp_path / "log.txt"))
    assert store.complete([*jobs, more], 2, told)[more]["square"] == 9
    assert told.begun[-1] == (4, 3)
    assert sorted((tmp_path / "log.txt").read_text().split()) == ["0", "1", "2", "3"], "nothing ran twice"
    kept = json.loads((tmp_path / "runs" / f"{more.key()}.json").read_text())
    assert kept["arguments"]["number"] == 3
    assert kept["environment"]["packages"]["srns"]


def test_what_a_run_lets_be_named_begins_while_others_run(tmp_path: Path) -> None:
    """The long one ends when the third has run, which can be named when the second is found; a fourth, named no more, never."""
    log = tmp_path / "log.txt"
    log.touch()
    long = Job.of(wait_for, "long", log=str(log), line="3")
    second, third, fourth = (Job.of(square, f"square of {n}", number=n, log=str(log)) for n in (2, 3, 4))
    told = Told()
    found = Store(tmp_path / "runs").complete(
        lambda found: [long, second, *([third] if second in found else [fourth])], 2, told
    )
    assert found[long]["waited"]
    assert found.keys() == {long, second, third}
    assert told.begun == [(3, 0)]
    assert told.ended == ["square of 2", "square of 3", "long"]


def test_a_result_that_is_not_whole_is_made_again(tmp_path: Path) -> None:
    job = Job.of(square, "square", number=5, log=str(tmp_path / "log.txt"))
    store = Store(tmp_path)
    store.complete([job], 1, Told())
    path = tmp_path / f"{job.key()}.json"
    path.write_text(path.read_text()[:20])
    assert store.get(job) is None
    assert store.complete([job], 1, Told())[job]["square"] == 25


def test_a_failure_leaves_the_others_alone_and_is_told(tmp_path: Path) -> None:
    good = [Job.of(square, f"square {n}", number=n, log=str(tmp_path / "log.txt")) for n in range(3)]
    bad = Job.of(fail, "the bad one", number=7)
    store = Store(tmp_path / "runs")
    with pytest.raises(SrnsError, match="1 of 4 runs failed, first the bad one: no 7 today; 3 are kept in"):
        store.complete([bad, *good], 2, Told())
    assert all(store.get(job) for job in good)
    failed: dict[Job, BaseException] = {}
    assert set(store.complete([bad, *good], 2, Told(), failed)) == set(good)
    assert reason_of(failed[bad]) == "no 7 today"


def test_a_killed_worker_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(SrnsError, match="killed, perhaps for want of memory"):
        Store(tmp_path).complete([Job.of(die, "dies", number=1)], 1, Told())


def test_where_a_worker_was_killed_another_takes_its_place(tmp_path: Path) -> None:
    bad = Job.of(die, "dies", number=1)
    good = [Job.of(square, f"square {n}", number=n, log=str(tmp_path / "log.txt")) for n in range(2)]
    failed: dict[Job, BaseException] = {}
    assert Store(tmp_path / "runs").complete([bad, *good], 1, Told(), failed).keys() == {*good}
    assert failed.keys() == {bad}


def test_a_killed_sweep_keeps_what_is_done_and_its_workers_end(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from test_study import Told, nap\n"
        "from srns.experiments.store import Job, Store\n"
        "if __name__ == '__main__':\n"
        "    jobs = [Job.of(nap, str(n), number=n, log=sys.argv[1]) for n in range(4)]\n"
        "    Store(Path(sys.argv[2])).complete(jobs, 2, Told())\n"
    )
    (tmp_path / "log").mkdir()
    (tmp_path / "sweep.py").write_text(script)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "sweep.py"), str(tmp_path / "log"), str(tmp_path / "runs")],
        env={**os.environ, "PYTHONPATH": path},
    )
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "log").iterdir())) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    process.wait()
    started = [each.name.split("-") for each in (tmp_path / "log").iterdir()]
    assert sorted(number for number, _ in started) == ["0", "1", "2", "3"]
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    workers = {int(pid) for number, pid in started if number in "23"}
    while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in workers), "a run that nobody waits for goes on"


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_job_may_keep_files_in_a_folder_of_its_own(tmp_path: Path) -> None:
    job = Job.of(note, "note", keeps=True, number=3)
    found = Store(tmp_path).complete([job], 1, Told())
    assert found[job]["folder"] == job.key()
    assert (tmp_path / job.key() / "note").read_text() == "3"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from("abcd"), values, min_size=1))
def test_a_key_depends_on_arguments_and_not_on_their_order_or_label(arguments: dict[str, Any]) -> None:
    turned = dict(reversed(list(arguments.items())))
    assert Job.of(fail, "x", **arguments).key() == Job.of(fail, "y", **turned).key()
    assert Job.of(fail, "x", **arguments) == Job.of(fail, "y", **turned)
    assert Job.of(fail, "x", **arguments).key() != Job.of(fail, "x", **arguments, e=1).key()
    assert Job.of(fail, "x", **arguments).key() != Job.of(die, "x", **arguments).key()


def test_a_changed_file_makes_another_key(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\n1,2\n")
    job = Job.of(fail, "x", dataset=str(path))
    before = job.key()
    path.write_text("user,item\n1,2\n2,3\n")
    assert job.key() != before


def test_files_that_a_run_does_not_read_leave_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In $SRNS_DATA a name stands for its own files and the split for tuning; without it, for nothing in this folder."""
    monkeypatch.chdir(tmp_path)
    own, named = Job.of(fail, "x", dataset="clicks.csv"), Job.of(fail, "x", dataset="ml-1m-paper")
    Path("clicks.csv").write_text("user,item\n1,2\n")
    monkeypatch.delenv("SRNS_DATA", raising=False)
    before = own.key()
    Path("clicks.csv.bak").write_text("an older one")
    assert own.key() == before
    monkeypatch.setenv("SRNS_DATA", str(tmp_path))
    Path("ml-1m-paper.npz").write_text("data")
    keys = [named.key()]
    Path("ml-1m-paper-models.npz").write_text("models")
    assert named.key() == keys[0]
    for other in ("ml-1m-paper-tuning.npz", "ml-1m-paper.npz"):
        Path(other).write_text("other data")
        keys.append(named.key())
    assert len(set(keys)) == 3


def test_versions_are_those_of_the_processes_that_ran(tmp_path: Path) -> None:
    store = Store(tmp_path)
    jobs = [Job.of(fail, "x", number=number) for number in range(3)]
    for job, version in zip(jobs, ("1.0", "1.0", "1.1"), strict=True):
        store.put(
            job, {}, 1.0, {"packages": {"no-such-package": version}}
        )  # one that the process of this test cannot have loaded
    assert store.environment(jobs[:2])["packages"]["no-such-package"] == "1.0"
    assert store.environment(jobs)["packages"]["no-such-package"] == "1.0, 1.1"
    assert "numba" in store.environment([])["packages"]


def test_data_that_share_a_name_are_told_apart() -> None:
    asked = Asked(("a/clicks.csv", "b/clicks.csv", "clicks-2.csv", "clicks.parquet", "ml-1m-paper"))
    assert list(asked.stems.values()) == ["clicks", "clicks-2", "clicks-2-2", "clicks-3", "ml-1m-paper"]
    assert [asked.title(each) for each in asked.datasets] == [
        "a/clicks.csv", "b/clicks.csv", "clicks-2", "clicks.parquet", "ml-1m-paper"
    ]  # fmt: skip
    assert Asked(("a/clicks.csv",)).title("a/clicks.csv") == "clicks"


def test_tables_and_checks_in_words() -> None:
    table = Table("Numbers", ["a", "b"], [["1", "2"]])
    assert table.markdown() == "**Numbers**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert Table("T", ["|I|"], [["a | b"]]).markdown().splitlines()[2:] == ["| \\|I\\| |", "|---|", "| a \\| b |"]
    assert [Check("c", holds, "d").mark for holds in (True, False, None)] == ["yes", "no", "cannot tell"]
    assert Check("c", True, "d").left_open("a quick look")[1:2] == (None,)
    assert Check("c", True, "d").left_open("a quick look").mark == "not judged", "other than whole runs that cannot tell"
    assert Outcome().tables == []
    assert Asked().datasets == ()


# Modules that write files, talk to databases and other machines, or draw: no number of a run comes from them.
PLUMBING = (
    "artifacts", "checkpoints", "databases", "distributed", "drawing", "errors", "interruptions", "locks", "ranks", "shards",
    "storage",
)  # fmt: skip
SOURCE = Path(srns.__file__).parent


def module_of(file: Path) -> str:
    """
    >>> module_of(SOURCE / "audit" / "trial.py")
    'srns.audit.trial'
    """
    return ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts)


def job_modules() -> set[str]:
    """The modules of the functions that jobs are made of, wherever that is."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        for name in re.findall(r"\bJob\.of\(\s*([\w.]+),", file.read_text()):
            found.add(attrgetter(name)(import_module(module_of(file))).__module__)
    return found


def imported(file: Path) -> set[Path]:
    """The files of this package that one imports, be it within a function."""
    froms = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{each.name}" for node in froms for each in node.names} | {str(node.module) for node in froms}
    paths = [SOURCE / name.removeprefix("srns.").replace(".", "/") for name in names if name.startswith("srns.")]
    return {each for path in paths for each in (Path(f"{path}.py"), path / "__init__.py") if each.exists()}


def test_the_runs_of_each_module_are_named_by_all_the_code_that_they_come_from() -> None:
    modules = job_modules()
    assert {"srns.audit.trial", "srns.tuning.trial", "srns.experiments.field_runs"} <= modules
    for module in modules:
        reached: set[Path] = set()
        ahead = {SOURCE.parent / (module.replace(".", "/") + ".py")}
        while ahead:
            reached.add(file := ahead.pop())
            ahead |= imported(file) - reached
        plumbing = {file for name in PLUMBING for file in (SOURCE / f"{name}.py", *(SOURCE / name).glob("*.py"))}
        left_out = reached - plumbing - set(sources(module))
        assert not left_out, f"{module} comes from {sorted(map(module_of, left_out))} too"


def test_what_is_said_of_runs_does_not_name_them() -> None:
    """Words, verdicts and drawings of the paper's tables and figures stand in modules of their own."""
    said = {module_of(SOURCE / "experiments" / f"{name}.py") for name in (TARGETS | BEYOND).values()}
    for module in job_modules():
        names = set(map(module_of, sources(module)))
        assert not names & said
        assert not names & {"srns.experiments.noise", "srns.experiments.real", "srns.experiments.outcome"}
