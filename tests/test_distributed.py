"""Several ranks on this machine, started by torchrun: the same run as one process, killed ranks, other numbers of ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import srns
from srns import artifacts, checkpoints
from srns.cli import app
from srns.ranks import Ranks, shard_of

FLAGS = [
    "--dim",
    "8",
    "--epochs",
    "4",
    "--memory-size",
    "6",
    "--expansion-size",
    "12",
    "--negatives",
    "2",
    "--batch-size",
    "100",
]
SECONDS = 240


@pytest.fixture(scope="module")
def data() -> srns.Interactions:
    """With so many items for so small batches, the rows that ranks touch travel, not the table."""
    return srns.simulate(n_users=150, n_items=900, n_interactions=4_000, seed=2).interactions


@pytest.fixture(scope="module")
def files(data: srns.Interactions, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same interactions as CSV and as a folder of Parquet files, whose rows are in no order."""
    folder = tmp_path_factory.mktemp("data")
    columns = {"user_id": data.user_ids.take(data.users), "item_id": data.item_ids.take(data.items), "timestamp": data.time}
    frame = pl.DataFrame(columns).sample(fraction=1.0, shuffle=True, seed=0)
    frame.write_csv(folder / "clicks.csv")
    (folder / "clicks").mkdir()
    for part in range(4):
        frame[part::4].write_parquet(folder / "clicks" / f"{part}.parquet")
    return folder / "clicks.csv", folder / "clicks"


def command(ranks: int, *arguments: str, restarts: int = 0) -> list[str]:
    pytest.importorskip("torch", reason="torch is not installed")  # it brings torchrun
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, "--max-restarts", str(restarts), "-m", "srns", *arguments]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # as torchrun itself would have it


def run(launch: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(launch, capture_output=True, text=True, timeout=SECONDS, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


COMMANDS_IN_TURN = """
import json, sys
from srns.cli import app
from srns.distributed import TorchRanks

leave, TorchRanks.leave = TorchRanks.leave, lambda ranks: None  # the next command joins what there is
for arguments, expected in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as end:
        assert (end.code or 0) == expected, (arguments, end.code)
leave(None)
"""


@pytest.fixture(scope="module")
def of_three(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained by three ranks, from the Parquet folder, of which each reads its own users."""
    folder = tmp_path_factory.mktemp("runs") / "of-3"
    run(command(3, "train", str(files[1]), *FLAGS, "--out", str(folder)))
    return folder


def other(scorer: str) -> list[str]:
    return [*FLAGS, "--epochs", "2", "--scorer", scorer, "--l2", "0.001"]


@pytest.fixture(scope="module")
def by_two(files: tuple[Path, Path], of_three: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """What two ranks do in one folder, all in the same two processes, which take seconds to import everything: three trainings
    from the CSV, lists of what three trained, and the same once more, which is refused."""
    folder = tmp_path_factory.mktemp("by-two")
    recommend = ["recommend", str(of_three), "--all-users", "--out", str(folder / "recs"), "--json"]
    commands = [
        (["train", str(files[0]), *FLAGS, "--out", str(folder / "gmf")], 0),
        *((["train", str(files[0]), *other(scorer), "--out", str(folder / scorer)], 0) for scorer in ("mlp", "lightgcn")),
        ([*recommend, "-k", "5"], 0),
        ([*recommend[:-1], "-k", "7"], 2),
    ]
    script = folder / "commands.py"
    script.write_text(COMMANDS_IN_TURN)
    return folder, run([*command(2)[:-2], str(script), json.dumps(commands)])


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in artifacts.read_run(folder)["history"]]


@pytest.fixture(scope="module")
def alone(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "alone"
    train_here(files[0], folder, *FLAGS, "--engine", "torch")
    return folder


def train_here(data: Path, folder: Path, *flags: str) -> str:
    """What `run(1, "train", ...)` does, without the seconds that a new process takes to import everything; what it printed."""
    done = CliRunner().invoke(app, ["train", str(data), *flags, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return done.output


def test_ranks_share_the_users_of_a_split(data: srns.Interactions) -> None:
    """Every interaction on one rank, in order, and the numbers of the whole on each."""
    for size in (1, 2, 3, 7):
        parts = []
        for rank in range(size):
            ranks = Ranks()
            ranks.rank, ranks.size = rank, size
            parts.append(ranks.share_of(data))
        assert [part.whole.first_user for part in parts] == np.cumsum([0, *(part.n_users for part in parts[:-1])]).tolist()
        assert [part.whole.first for part in parts] == np.cumsum([0, *(len(part) for part in parts[:-1])]).tolist()
        np.testing.assert_array_equal(np.concatenate([part.items for part in parts]), data.items)
        np.testing.assert_array_equal(np.concatenate([part.users + part.whole.first_user for part in parts]), data.users)
        assert max(len(part) for part in parts) <= len(data) / size + data.user_counts.max()
        sums = {part.whole.n for part in parts}
        assert sums == {len(data)}


def test_a_fingerprint_does_not_depend_on_who_holds_what(data: srns.Interactions) -> None:
    split = srns.make_split(data)
    for bounds in ([0, 150], [0, 40, 150], [0, 1, 70, 150]):
        shards = [shard_of(split.train, low, high) for low, high in pairwise(bounds)]
        sums: list[Any] = []
        for shard in shards:
            shard.fingerprint(partial(_noted, sums))
        total = np.sum(sums, axis=0)
        for shard in shards:
            assert shard.fingerprint(lambda own, total=total: total) == split.train.fingerprint()


def _noted(seen: list[Any], own: Any) -> Any:
    seen.append(own)
    return own


def test_two_and_three_ranks_train_the_model_of_one(of_three: Path, by_two: tuple[Path, Any], alone: Path) -> None:
    """Two from the CSV, three from the Parquet folder."""
    expected = srns.Recommender.load(alone)
    metrics = artifacts.read_run(alone)["metrics"]
    for ranks, folder in ((2, by_two[0] / "gmf"), (3, of_three)):
        np.testing.assert_allclose(losses(folder), losses(alone), rtol=1e-4)
        found = artifacts.read_run(folder)
        assert found["shards"] == ranks
        assert found["data"]["fingerprint"] == artifacts.read_run(alone)["data"]["fingerprint"]
        assert found["metrics"] == pytest.approx(metrics, abs=0.002)
        model = srns.Recommender.load(folder)
        assert model.split_.fingerprint() == expected.split_.fingerprint()
        np.testing.assert_allclose(model.user_factors, expected.user_factors, atol=1e-4)
        np.testing.assert_allclose(model.item_factors, expected.item_factors, atol=1e-4)


def test_two_ranks_recommend_what_one_would(of_three: Path, by_two: tuple[Path, Any]) -> None:
    folder, done = by_two
    (answered,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    assert json.loads(answered)["rows"] == 150 * 5
    assert done.stderr.count("recs is there already: --replace puts") == 2  # each rank says so, and none waits
    frames = [pl.read_parquet(file) for file in sorted((folder / "recs").glob("*.parquet"))]
    assert len(frames) == 2
    ours = pl.concat(frames)
    theirs = pl.concat(list(srns.Recommender.load(of_three).recommend_frames(k=5)))
    assert ours.drop("score").equals(theirs.drop("score"))
    np.testing.assert_allclose(ours["score"].to_numpy(), theirs["score"].to_numpy(), rtol=1e-5)  # BLAS and the size of blocks


@pytest.mark.parametrize("scorer", ["mlp", "lightgcn"])
def test_other_scorers_on_two_ranks(files: tuple[Path, Path], by_two: tuple[Path, Any], scorer: str, tmp_path: Path) -> None:
    train_here(files[0], tmp_path / "1", *other(scorer))
    np.testing.assert_allclose(losses(by_two[0] / scorer), losses(tmp_path / "1"), rtol=1e-4)


def children(process: subprocess.Popen[str]) -> list[int]:
    """The ranks of a torchrun, by rank."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            environment = (status.parent / "environ").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == process.pid and (match := re.search(rb"\0RANK=(\d+)\0", environment)):
            found[int(match[1])] = int(status.parent.name)
    return [found[rank] for rank in sorted(found)]


def train_and_kill_a_rank(launch: list[str], folder: Path) -> tuple[int, str]:
    """SIGKILL to rank 1 once there is a checkpoint; returns how torchrun ended and what was said."""
    process = subprocess.Popen(launch, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    deadline = time.monotonic() + SECONDS
    while not checkpoints.exists(folder / artifacts.CHECKPOINT):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(children(process)[1], signal.SIGKILL)
    said = process.communicate(timeout=SECONDS)[1]
    return process.returncode, said


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for the ranks in /proc, which this system has not")
def test_a_killed_rank_ends_the_run_and_one_rank_goes_on(files: tuple[Path, Path], tmp_path: Path) -> None:
    """SIGKILL to rank 1 of 3 once there is a checkpoint; then the run goes on alone, on the curve of one that never stopped."""
    flags = [*FLAGS, "--epochs", "8", "--checkpoint-epochs", "1"]
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    code, said = train_and_kill_a_rank(command(3, "train", str(files[0]), *flags, "--out", str(folder)), folder)
    assert code != 0
    assert "lost another rank" in said
    assert artifacts.read_run(folder)["status"] == "running"
    again = train_here(files[0], folder, *flags, "--resume")  # by the engine that it began with
    assert re.search(r"resumed after epoch \d", again)
    train_here(files[0], whole, *flags, "--engine", "torch")
    np.testing.assert_allclose(losses(folder), losses(whole), rtol=1e-4)
    assert artifacts.read_run(folder)["metrics"] == pytest.approx(artifacts.read_run(whole)["metrics"], abs=0.002)
    assert not list(folder.glob("checkpoint*"))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for the ranks in /proc, which this system has not")
def test_torchrun_starts_a_killed_run_again_where_it_was(files: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "restarted"
    flags = [*FLAGS, "--epochs", "6", "--checkpoint-epochs", "1"]
    launch = command(2, "train", str(files[0]), *flags, "--out", str(folder), restarts=1)
    code, said = train_and_kill_a_rank(launch, folder)
    assert code == 0, said[-3000:]
    assert re.search(r"resumed after epoch \d", said)
    train_here(files[0], tmp_path / "whole", *flags, "--engine", "torch")
    np.testing.assert_allclose(losses(folder), losses(tmp_path / "whole"), rtol=1e-4)


def test_a_checkpoint_of_which_a_part_is_missing_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / artifacts.CHECKPOINT
    rows = np.arange(10, dtype=np.float32)[:, None]

    def write(rank: int, epoch: int, low: int, high: int) -> None:
        note = json.dumps({"history": [0] * epoch, "users": (low, high - low), "by_user": ["users"]})
        part = path.with_name(f"checkpoint-{epoch:06d}-{rank}-of-2.safetensors")
        artifacts.write_tensors(part, {"users": rows[low:high] + epoch, "items": rows[:3]}, note)

    for rank, low, high in ((0, 0, 4), (1, 4, 10)):
        write(rank, 5, low, high)
    write(0, 6, 0, 4)  # the other rank died before it wrote its own
    for first, count in ((0, 10), (2, 5), (7, 3)):
        tensors, note = checkpoints.read(path, (first, count))
        assert len(note["history"]) == 5
        np.testing.assert_array_equal(tensors["users"], rows[first : first + count] + 5)
        np.testing.assert_array_equal(tensors["items"], rows[:3])


def test_a_slow_rank_does_not_remove_what_a_quick_one_has_just_written(tmp_path: Path) -> None:
    class Two(Ranks):
        """Ranks that do not wait for each other: the worst there can be."""

        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def any(self, flag: bool) -> bool:
            return flag

    path = tmp_path / artifacts.CHECKPOINT
    for epoch in (1, 2):
        for rank in (0, 1):
            rows = {"users": np.full((3, 1), epoch, np.float32)}
            checkpoints.write(path, rows, {"history": [0] * epoch}, Two(rank), (3 * rank, 3), {"users"})
        np.testing.assert_array_equal(checkpoints.read(path, (0, 6))[0]["users"], np.full((6, 1), epoch))
    checkpoints.write(path, rows, {"history": [0] * 3}, Ranks(), (0, 3), {"users"})
    assert [each.name for each in tmp_path.iterdir()] == [artifacts.CHECKPOINT]


def test_a_module_of_ones_own_must_say_which_rows_are_users(data: srns.Interactions) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    from srns.engines.torch import TorchEngine

    class Two(Ranks):
        size = 2

        def gather(self, value: Any) -> list[Any]:
            return [value, value]

    class Own(torch.nn.Module):
        def __init__(self, n_users: int, n_items: int, rows: tuple[str, ...]) -> None:
            super().__init__()
            self.users, self.items, self.user_rows = torch.nn.Embedding(n_users, 4), torch.nn.Embedding(n_items, 4), rows

        def score(self, users: Any, items: Any) -> Any:
            return torch.einsum("bf,bkf->bk", self.users(users), self.items(items))

    config = srns.make_config({"engine": "torch", "sampler": "uniform", "negatives": 1})

    def engine(ranks: Ranks, *rows: str) -> TorchEngine:
        return TorchEngine(config, data, ranks=ranks, factory=lambda train: Own(train.n_users, train.n_items, rows))

    with pytest.raises(srns.ConfigError, match="set user_rows"):
        engine(Two())
    with pytest.raises(
        srns.ConfigError, match=r"user_rows names 'users', which is no parameter with 150 rows; there are: users.weight"
    ):
        engine(Two(), "users")
    assert engine(Two(), "users.weight").user_tensors == ("users.weight",)
    assert engine(Ranks()).user_tensors == ()


OWN_ON_RANKS = """
import sys, numpy as np, torch, srns, srns.ranks
from pathlib import Path

class Own(torch.nn.Module):
    user_rows, item_rows = ("users.weight", "age"), ("items.weight", "bias")

    def __init__(self, train):
        super().__init__()
        self.users, self.items = torch.nn.Embedding(train.n_users, 4), torch.nn.Embedding(train.n_items, 4)
        self.bias = torch.nn.Parameter(torch.zeros(train.n_items))
        self.age = torch.nn.Buffer(train.whole.first_user + torch.arange(train.n_users, dtype=torch.float32))

    def score(self, users, items):
        if self.training:
            drawn.append(torch.rand(()).item())
        rows = torch.nn.functional.dropout(self.items(items), 0.2, self.training)
        return torch.einsum("bf,bkf->bk", self.users(users), rows) + self.bias[items]

drawn = []
data = srns.read(sys.argv[1])
ranks = srns.ranks.join()
split = ranks.share_of_split(srns.make_split(data))
values = {"engine": "torch", "memory_size": 6, "negatives": 2, "batch_size": 256, "schedule": "constant"}

def trainer(epochs, file):
    config = srns.make_config({**values, "epochs": epochs})
    return srns.Trainer(config, split, scorer=Own, ranks=ranks, checkpoint=Path(sys.argv[2], file))

whole = trainer(3, "whole.safetensors")
start = whole.engine.model.tensors()["users.weight"].copy()
training = whole.run()
np.savez(f"{sys.argv[2]}/{ranks.rank}.npz", start=start, drawn=drawn, loss=[record.loss for record in training.history],
         **training.model.tensors())
trainer(2, "halves.safetensors").run()
resumed = trainer(3, "halves.safetensors")
resumed.run(resume=True)
for name, tensor in whole.engine.state_dict().items():
    np.testing.assert_array_equal(resumed.engine.state_dict()[name], tensor, err_msg=name)
ranks.leave()
threads = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
assert not [name for name in threads if "gloo" in name], threads  # one that is still there may abort the process as it ends
"""


def test_a_module_of_ones_own_on_two_ranks(files: tuple[Path, Path], tmp_path: Path) -> None:
    """What has a row per user stays with its rank, buffers too; all else, a bias of items among it, is the same on both. Each
    rank draws random numbers of its own, and a resumed run draws those of one that never stopped."""
    script = tmp_path / "own.py"
    script.write_text(OWN_ON_RANKS)
    run([*command(2)[:-2], str(script), str(files[0]), str(tmp_path)])
    one, two = (np.load(tmp_path / f"{rank}.npz") for rank in (0, 1))
    np.testing.assert_array_equal(np.concatenate([one["age"], two["age"]]), np.arange(150))
    together = np.concatenate([one["start"], two["start"]])
    assert len(np.unique(together, axis=0)) == 150  # nobody starts where another does
    for name in ("items.weight", "bias", "loss"):
        np.testing.assert_array_equal(one[name], two[name])
    assert not set(one["drawn"]) & set(two["drawn"])
    assert np.abs(one["bias"]).max() > 0
    assert one["loss"][-1] < one["loss"][0]


def test_reading_by_rank_says_what_is_wrong(data: srns.Interactions, tmp_path: Path) -> None:
    from srns.shards import read_sharded

    ranks = Ranks()
    frame = pl.DataFrame({"user_id": ["a", None, "b"], "item_id": [1, 2, 3]})
    frame.write_parquet(tmp_path / "part.parquet")
    with pytest.raises(srns.DataError, match=r"part.parquet, row 1 .*user id in column 'user_id' is missing"):
        read_sharded(tmp_path, ranks, {}, {})
    pl.DataFrame({"user_id": pl.Series([1, 2], dtype=pl.UInt64), "item_id": [1, 2]}).write_parquet(tmp_path / "part.parquet")
    with pytest.raises(srns.DataError, match="cast it to Int64 or text"):
        read_sharded(tmp_path, ranks, {}, {})
