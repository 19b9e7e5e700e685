"""A run that is killed and resumed ends with the bytes of one that was left alone; the killing here is real (SIGKILL)."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from srns import artifacts
from srns.cli import app
from srns.config import RunConfig
from srns.errors import ArtifactError, ConfigError
from srns.presets import make_config
from srns.runs import train_run
from srns.simulation import simulate
from srns.trainer import Callback, EpochRecord, Training

PATIENCE_SECONDS = 120.0  # with a process; far more than any takes
# Where fewer negatives are taken than a memory holds, variance selects, and the past of the model decides what comes.
VARIANCE: dict[str, Any] = {"memory_size": 8, "expansion_size": 8, "negatives": 2, "warmup_epochs": 3, "history_epochs": 3}
SAMPLERS = {
    "default": (),
    "variance": tuple(part for name, value in VARIANCE.items() for part in (f"--{name.replace('_', '-')}", str(value))),
    "uniform": ("--sampler", "uniform", "--moving-average", "0.9"),
}
FILES = ("model.safetensors", "ids.safetensors", "interactions.safetensors")


def write_world(path: Path, n_users: int, n_items: int, n_interactions: int) -> Path:
    data = simulate(n_users=n_users, n_items=n_items, n_interactions=n_interactions, seed=5).interactions
    assert data.time is not None
    users, items = data.user_ids.take(data.users), data.item_ids.take(data.items)
    lines = (f"{u},{i},{t}\n" for u, i, t in zip(users, items, data.time.tolist(), strict=True))
    path.write_text("user_id,item_id,timestamp\n" + "".join(lines))
    return path


Condition = Callable[[subprocess.Popen[str]], bool]


class Run:
    """A training run in processes of its own."""

    def __init__(self, data: Path, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.checkpoint = folder / artifacts.CHECKPOINT
        self._command = [sys.executable, "-m", "srns", "train", str(data), "--out", str(folder), "--checkpoint-epochs", "1"]
        self._command += [*flags, "--resume", "--json"]
        self._threads = itertools.cycle("12")  # the result does not depend on them

    def start(self) -> subprocess.Popen[str]:
        command = [*self._command, "--threads", next(self._threads)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self) -> dict[str, Any]:
        out, err = self.start().communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in err
        found: dict[str, Any] = json.loads(out)
        assert "error" not in found, err
        return found

    def kill_when(self, ready: Condition, delay: float = 0.0) -> bool:
        """Start or go on, SIGKILL `delay` seconds after `ready`; returns whether the process was still running then."""
        process = self.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while process.poll() is None and not ready(process):
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            process.kill()
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in err
        assert process.returncode in (0, -9), err
        return process.returncode == -9

    def saves(self, n: int) -> Condition:
        """Whether n more checkpoints have been seen."""
        seen = {self._stamp(), 0}

        def ready(_: subprocess.Popen[str]) -> bool:
            seen.add(self._stamp())
            return len(seen) >= first + n

        first = len(seen)
        return ready

    def writes_checkpoint(self, after: int) -> Condition:
        """Whether, `after` so many have been seen, another checkpoint is being written."""
        saved = self.saves(after)
        return lambda process: saved(process) and (self.folder / f".checkpoint.safetensors.{process.pid}.part").exists()

    def writes_run(self, process: subprocess.Popen[str]) -> bool:
        return (self.folder / f".run.{process.pid}.part").exists()

    def _stamp(self) -> int:
        try:
            return self.checkpoint.stat().st_mtime_ns
        except FileNotFoundError:
            return 0


def assert_same_run(one: Path, other: Path) -> None:
    for file in FILES:
        assert (one / file).read_bytes() == (other / file).read_bytes(), file
    runs = [artifacts.read_run(folder) for folder in (one, other)]
    for name in ("metrics", "best_epoch", "epochs", "data", "files", "protocol"):
        assert runs[0][name] == runs[1][name]
    histories = [[{**record, "seconds": 0} for record in run["history"]] for run in runs]
    assert histories[0] == histories[1]


class Keep(Callback):
    """Ends a run after `epoch`, if it is given, and keeps the checkpoint of its end, which a finished run removes."""

    def __init__(self, folder: Path, epoch: int = 0) -> None:
        self.checkpoint, self.kept, self.epoch = folder / artifacts.CHECKPOINT, folder / "kept", epoch

    def on_epoch(self, record: EpochRecord) -> bool:
        return record.epoch == self.epoch

    def on_end(self, training: Training) -> None:
        self.checkpoint.rename(self.kept)


def assert_same_state(one: Path, other: Path) -> None:
    """Checkpoints of the same moment: parameters, what the optimizer and the sampler remember, and the record of epochs."""
    (tensors, note), (others, other_note) = (artifacts.read_tensors(path) for path in (one, other))
    assert {name: tensor.tobytes() for name, tensor in tensors.items()} == {name: t.tobytes() for name, t in others.items()}
    histories = [[{**record, "seconds": 0} for record in json.loads(text)["history"]] for text in (note, other_note)]
    assert histories[0] == histories[1]


def assert_clean(folder: Path) -> None:
    """All that a finished run has, and nothing else."""
    memories = [artifacts.MEMORIES] if artifacts.read_run(folder)["config"]["sampler"] == "srns" else []
    assert sorted(path.name for path in folder.iterdir()) == sorted(["run.json", *FILES, *memories])


@pytest.mark.parametrize(("sampler", "times"), [("default", (2, 3)), ("variance", (1, 2)), ("uniform", (1, 2))], ids=SAMPLERS)
def test_killed_at_random_moments_a_run_ends_with_the_same_bytes(tmp_path: Path, sampler: str, times: tuple[int, int]) -> None:
    data = write_world(tmp_path / "clicks.csv", 300, 200, 9_000)
    flags = ("--dim", "16", "--epochs", "60", "--seed", "3", *SAMPLERS[sampler])
    first = CliRunner().invoke(app, ["train", str(data), *flags, "--epochs", "1", "--out", str(tmp_path / "first")])
    assert first.exit_code == 0, first.output  # it has compiled, if need be: the moments are taken from the next
    whole = Run(data, tmp_path / "whole", *flags)
    start = time.monotonic()
    per_epoch = whole.finish()["seconds_per_epoch"]
    total = time.monotonic() - start
    killed = Run(data, tmp_path / "killed", *flags)
    chance = random.Random(7)
    kills = 0
    for _ in range(times[0]):  # from its first moment on: importing, reading, training
        kills += killed.kill_when(lambda _: True, chance.uniform(0, total / 2))
    for _ in range(times[1]):  # while training or writing a checkpoint
        kills += killed.kill_when(killed.saves(chance.randint(1, 12)), chance.uniform(0, 2 * per_epoch))
    assert kills >= sum(times) - 1
    run = artifacts.read_run(killed.folder)
    assert run["status"] == "running"
    epoch = len(json.loads(artifacts.read_tensors(killed.checkpoint)[1])["history"])
    keep = Keep(tmp_path / "unharmed", epoch)
    train_run(data, RunConfig(**run["config"]), out=tmp_path / "unharmed", callbacks=[keep])
    assert_same_state(keep.kept, killed.checkpoint)
    killed.finish()
    assert_same_run(whole.folder, killed.folder)
    assert_clean(killed.folder)


def test_killed_while_writing_a_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """Little data and wide embeddings: most of the time goes into checkpoints."""
    data = write_world(tmp_path / "clicks.csv", 60, 50, 800)
    flags = ("--dim", "512", "--epochs", "30", "--engine", "plain", "--batch-size", "400")
    whole, killed = Run(data, tmp_path / "whole", *flags), Run(data, tmp_path / "killed", *flags)
    whole.finish()
    chance = random.Random(11)
    kills = 0
    for after in (0, 3, 5):
        kills += killed.kill_when(killed.writes_checkpoint(after), chance.uniform(0, 0.003))
    assert kills == 3
    killed.kill_when(killed.writes_run, chance.uniform(0, 0.003))  # while the model is saved, if not a moment too late
    killed.finish()
    assert_same_run(whole.folder, killed.folder)
    assert_clean(killed.folder)


class InterruptedRunError(Exception):
    """Stands for anything that ends a process."""


class Stop(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch == self.epoch:
            raise InterruptedRunError


class Messages(Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def test_killed_with_logged_candidates_a_run_ends_with_the_same_bytes(data: Path, tmp_path: Path) -> None:
    flags = ("--dim", "8", "--epochs", "12", *SAMPLERS["variance"], "--history", "candidates", "--candidates-size", "20")
    whole, killed = Run(data, tmp_path / "whole", *flags), Run(data, tmp_path / "killed", *flags)
    whole.finish()
    assert killed.kill_when(killed.saves(3))
    assert killed.kill_when(killed.saves(4))
    killed.finish()
    assert_same_run(whole.folder, killed.folder)


FIELDS: dict[str, Any] = {"dim": 4, "epochs": 5, "engine": "plain", "checkpoint_epochs": 1, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("data") / "clicks.csv", 60, 50, 800)


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    folder = data.parent / "whole"
    train_run(data, make_config(FIELDS), out=folder)
    return folder


def interrupted(data: Path, folder: Path, epoch: int = 3, **fields: Any) -> Path:
    """A run that ended while epoch `epoch` was done but not yet saved."""
    with pytest.raises(InterruptedRunError):
        train_run(data, make_config({**FIELDS, **fields}), out=folder, callbacks=[Stop(epoch)])
    return folder


def resume(data: Path, folder: Path, callbacks: Sequence[Callback] = (), **fields: Any) -> tuple[dict[str, Any], list[str]]:
    said = Messages()
    config = make_config({**FIELDS, **fields})
    return train_run(data, config, out=folder, resume=True, callbacks=[said, *callbacks]), said.messages


def command(data: Path, folder: Path, *flags: str) -> Result:
    fields = [part for name, value in FIELDS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return CliRunner().invoke(app, ["train", str(data), "--out", str(folder), *fields, *flags])


@pytest.mark.parametrize("epoch", [2, 3, 5])
@pytest.mark.parametrize(
    "fields",
    [
        {"engine": "plain"},
        {"engine": "fused"},
        {"engine": "plain", **VARIANCE},
        {"engine": "fused", **VARIANCE},
        {"engine": "plain", **VARIANCE, "history": "candidates", "candidates_size": 20},
        {"engine": "plain", "sampler": "uniform", "moving_average": 0.9},
        {"engine": "fused", "sampler": "uniform", "moving_average": 0.9},
    ],
    ids=lambda fields: "-".join(str(fields[name]) for name in ("engine", "sampler", "history", "negatives") if name in fields),
)
def test_resumed_after_any_epoch_a_run_is_the_same(data: Path, tmp_path: Path, fields: dict[str, Any], epoch: int) -> None:
    folder = interrupted(data, tmp_path / "run", epoch, **fields)
    keeps = [Keep(folder), Keep(tmp_path / "whole")]
    _, said = resume(data, folder, callbacks=keeps[:1], **fields)
    assert f"resumed after epoch {epoch - 1}" in said
    train_run(data, make_config({**FIELDS, **fields}), out=tmp_path / "whole", callbacks=keeps[1:])
    assert_same_state(keeps[0].kept, keeps[1].kept)
    assert_same_run(tmp_path / "whole", folder)


def test_without_a_checkpoint_a_run_starts_from_the_first_epoch(data: Path, whole: Path, tmp_path: Path) -> None:
    folder = interrupted(data, tmp_path / "run", epoch=1)
    assert not (folder / artifacts.CHECKPOINT).exists()
    _, said = resume(data, folder)
    assert f"no checkpoint in {folder}; starting from the first epoch" in said
    assert_same_run(whole, folder)


def test_where_there_is_no_run_resume_starts_one(data: Path, whole: Path, tmp_path: Path) -> None:
    _, said = resume(data, tmp_path / "run")
    assert any("starting from the first epoch" in message for message in said)
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("--dim", "8", "dim = 4, not 8"),
        ("--seed", "1", "seed = 0, not 1"),
        ("--learning-rate", "0.5", "learning_rate = 0.02, not 0.5"),
        ("--l2", "0", "l2 = 'auto', not 0.0"),
        ("--schedule", "constant", "schedule = 'cosine', not 'constant'"),
        ("--epochs", "6", "epochs = 5, not 6; resume with the same values: schedule 'cosine' is laid out over all epochs"),
        ("--sampler", "uniform", "sampler = 'srns', not 'uniform'"),
        ("--negatives", "3", "negatives = 0, not 3"),
        ("--batch-size", "7", "batch_size = "),
        ("--moving-average", "0.9", "moving_average = 0.0, not 0.9"),
        ("--split", "random", "split = 'auto', not 'random'"),
        ("--metric", "recall@5", "metric = 'ndcg@10', not 'recall@5'"),
        ("--validate-every", "2", "validate_every = 1, not 2"),
        ("--engine", "fused", "engine = 'plain', not 'fused'"),
        ("--min-user", "2", "min_user = 0, not 2"),
    ],
)
def test_resuming_under_other_values_is_refused_and_names_the_field(
    data: Path, tmp_path: Path, flag: str, value: str, field: str
) -> None:
    folder = interrupted(data, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = command(data, folder, "--resume", flag, value)
    assert result.exit_code == 2
    assert f"{folder} was started with {field}" in result.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_may_be_resumed_for_longer(data: Path, tmp_path: Path) -> None:
    folder = interrupted(data, tmp_path / "run", patience=50, schedule="constant")
    resume(data, folder, epochs=9, patience=100, threads=1, checkpoint_minutes=5, schedule="constant")
    train_run(data, make_config({**FIELDS, "epochs": 9, "schedule": "constant"}), out=tmp_path / "whole")
    assert_same_run(tmp_path / "whole", folder)


def test_other_data_are_refused(data: Path, tmp_path: Path) -> None:
    own = Path(shutil.copy(data, tmp_path / "own.csv"))
    folder = interrupted(own, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"was trained on '.*own\.csv', not '.*clicks\.csv'"):
        resume(data, folder)
    own.write_text("\n".join(own.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(ConfigError, match=r"checkpoint\.safetensors was made from other data"):
        resume(own, folder)


def test_a_finished_run_is_left_as_it_is(data: Path, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    (folder / artifacts.CHECKPOINT).write_bytes(b"left by a kill in the last moment")
    before = {file: (folder / file).stat().st_mtime_ns for file in ("run.json", *FILES)}
    result = command(data, folder, "--resume", "--json")
    assert result.exit_code == 0
    assert f"{folder} is finished already; nothing to resume" in result.stderr
    assert json.loads(result.stdout)["metrics"] == artifacts.read_run(whole)["metrics"]
    assert {file: (folder / file).stat().st_mtime_ns for file in ("run.json", *FILES)} == before
    assert_clean(folder)


def test_a_finished_run_is_neither_lengthened_nor_replaced(data: Path, whole: Path, tmp_path: Path) -> None:
    constant = make_config({**FIELDS, "schedule": "constant"})
    train_run(data, constant, out=tmp_path / "constant")
    with pytest.raises(ConfigError, match="is finished after 5 epochs and cannot be lengthened"):
        resume(data, tmp_path / "constant", epochs=6, schedule="constant")
    with pytest.raises(ConfigError, match="was started with epochs = 5, not 6; resume with the same values: schedule 'cosine'"):
        resume(data, whole, epochs=6)
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        train_run(data, make_config(FIELDS), out=whole)


def test_a_saved_model_is_no_run_to_resume(data: Path, whole: Path, tmp_path: Path) -> None:
    run = artifacts.read_run(whole)
    artifacts.write_run(tmp_path, {name: run[name] for name in ("status", "config", "data", "files")})
    with pytest.raises(ConfigError, match="holds a saved model, not a run of `srns train`"):
        resume(data, tmp_path)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "note"])
def test_a_damaged_checkpoint_is_named_and_not_used(data: Path, tmp_path: Path, damage: str) -> None:
    folder = interrupted(data, tmp_path / "run")
    path = folder / artifacts.CHECKPOINT
    content = path.read_bytes()
    at = {"flip": len(content) - 9, "note": content.index(b"loss")}.get(damage, len(content) // 2)
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    path.write_bytes({"flip": flipped, "note": flipped, "cut": content[:at], "empty": b""}[damage])
    with pytest.raises(ArtifactError, match=r"checkpoint\.safetensors is damaged"):
        resume(data, folder)
    result = command(data, folder, "--resume")
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert artifacts.read_run(folder)["status"] == "running"
    path.unlink()
    resume(data, folder)  # without it, from the start


def test_another_file_is_no_checkpoint(data: Path, whole: Path, tmp_path: Path) -> None:
    folder = interrupted(data, tmp_path / "run")
    shutil.copy(whole / "model.safetensors", folder / artifacts.CHECKPOINT)
    with pytest.raises(ArtifactError, match=r"checkpoint\.safetensors"):
        resume(data, folder)


def test_what_a_killed_process_left_half_written_is_removed(data: Path, whole: Path, tmp_path: Path) -> None:
    folder = interrupted(data, tmp_path / "run")
    (folder / ".checkpoint.safetensors.1.part").write_bytes(b"half")
    (folder / ".run.2.part").mkdir()
    (folder / ".run.2.part" / "model.safetensors").write_bytes(b"half")
    (folder / ".film.3.part").write_bytes(b"not ours")
    resume(data, folder)
    (folder / ".film.3.part").unlink()
    assert_same_run(whole, folder)
    assert_clean(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_saves_the_epoch_it_was_in(data: Path, tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    arguments = ["train", str(data), "--out", str(folder), "--epochs", "100000", "--patience", "0", "--engine", "plain"]
    with subprocess.Popen([sys.executable, "-m", "srns", *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1:"):  # training has begun, and no minute has passed
                break
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "with --resume goes on from there" in said
    assert "Traceback" not in said
    tensors, note = artifacts.read_tensors(folder / artifacts.CHECKPOINT)
    assert f"stopped after epoch {len(json.loads(note)['history'])}" in said
    assert tensors
