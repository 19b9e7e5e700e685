"""What tests share: a small world, the folder of real data, where there is one, and how two engines are compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys

# Tests run side by side, one to a core. Threads of OpenMP (torch's, Numba's) that wait for one another on cores that are busy
# otherwise do so at full speed: 17 s of computing for a run that needs 5. Processes that tests start inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from srns.interactions import Interactions
from srns.simulation import simulate
from srns.splits import Split, make_split

# The same examples every time, so that a change can be told from luck; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


REQUIRED = os.environ.get("SRNS_REQUIRE", "").lower().split()  # words of reasons for which no test may be skipped


def _not_skipped(report: Any) -> Any:
    reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if any(word in reason.lower() for word in REQUIRED):
        report.outcome, report.longrepr = "failed", f"{reason}; SRNS_REQUIRE says that this must run"
    return report


# The files that take longest, which begin first: one that began last would leave the other cores idle.
LONGEST = ("distributed", "resume", "torch_engine", "docs", "lost_commit", "tune_resume", "cli", "srns", "study",
           "updates", "serving_load", "reproduce", "tune", "trainer", "contract", "rows", "serving_limits",
           "database_writing")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    return _not_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    return _not_skipped((yield))


@pytest.fixture(scope="session")
def world() -> Split:
    """A small simulated world, split leave-one-out."""
    return make_split(simulate(n_users=120, n_items=90, n_interactions=2_400, seed=3).interactions)


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A smaller one, as the CSV that a user would bring."""
    found = simulate(n_users=80, n_items=60, n_interactions=1_600, seed=5).interactions
    assert found.time is not None
    users, items = found.user_ids.take(found.users), found.item_ids.take(found.items)
    lines = (f"{u},{i},{t}\n" for u, i, t in zip(users, items, found.time.tolist(), strict=True))
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    path.write_text("user_id,item_id,timestamp\n" + "".join(lines))
    return str(path)


@pytest.fixture(scope="session")
def train(world: Split) -> Interactions:
    return world.train


@pytest.fixture
def shared_data() -> Path:
    """The folder named by SRNS_DATA; tests that need it are skipped, saying so, where it is missing."""
    folder = Path(os.environ.get("SRNS_DATA", "") or "absent")
    if not (folder / "ml-1m-paper.npz").exists():
        pytest.skip("SRNS_DATA does not name a folder with ml-1m-paper.npz")
    return folder


TrainAlike = Callable[[Any, Any, float], dict[str, Any]]


@pytest.fixture(scope="session")
def train_alike() -> TrainAlike:
    """A check that the fused and the plain engine lose the same over three epochs and reach the same parameters; returns those
    they started from."""

    def check(fused: Any, plain: Any, tolerance: float) -> dict[str, Any]:
        start = {name: tensor.copy() for name, tensor in plain.model.tensors().items()}
        for epoch in range(3):
            assert fused.run_epoch(epoch) == pytest.approx(plain.run_epoch(epoch), rel=tolerance)
        for name, tensor in plain.model.tensors().items():
            moved = float(np.abs(tensor - start[name]).max())
            error = np.abs(fused.model.tensors()[name] - tensor)
            assert np.median(error) <= 1e-4 * moved, name
            assert error.max() <= 0.02 * moved, name
        return start

    return check


SERVE_WITHIN = """
import json, sys
from srns.serving.server import serve
from srns.serving.settings import Limits, ServerSettings
settings = ServerSettings(run=sys.argv[1], port=0, limits=Limits(**json.loads(sys.argv[2])))
serve(settings, lambda url: print(json.dumps({"url": url}), flush=True))
"""


@dataclass
class Service:
    """`srns serve` as a process; `log` is its standard error."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Service]]:
    """Starts services on free ports of this machine; those that still run are stopped at the end."""
    started: list[Service] = []

    def start(*args: str | Path, limits: dict[str, Any] | None = None) -> Service:
        log = tmp_path_factory.mktemp("service") / "log.jsonl"
        command = [sys.executable, "-m", "srns", "serve", *map(str, args), "--port", "0", "--json"]
        if limits is not None:  # those that have no flag
            command = [sys.executable, "-c", SERVE_WITHIN, *map(str, args), json.dumps(limits)]
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text(encoding="utf-8")
        started.append(Service(json.loads(line)["url"], process, log))
        return started[-1]

    yield start
    for service in started:
        if service.process.poll() is None:
            service.stop()
        assert service.process.stdout is not None
        service.process.stdout.close()
