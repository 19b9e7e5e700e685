"""Runs on disk: what is read is what was written, bit for bit, or an error that names the file; and nothing is executed."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from srns import artifacts
from srns.config import RunConfig
from srns.errors import ArtifactError
from srns.interactions import Interactions
from srns.lists import write_frames
from srns.recommender import Recommender
from srns.scorers import GMF
from srns.splits import Split
from srns.storage import save_model
from srns.trainer import Callback, Trainer

DIM = 3
FILES = ("run.json", "model.safetensors", "ids.safetensors", "interactions.safetensors")
labels = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8, unique=True),
    st.lists(st.text(max_size=4), min_size=1, max_size=8, unique=True),
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def random_model(split: Split, seed: int = 0, dim: int = DIM) -> GMF:
    rng = np.random.default_rng(seed)
    shapes = ((split.train.n_users, dim), (split.train.n_items, dim), (dim,))
    return GMF(*(rng.standard_normal(shape, np.float32) for shape in shapes))


def small_split(users: Any = ("ann", "bob", ""), items: Any = (7, -1, 2**62, 0)) -> Split:
    """Everyone has the first item in train, the second in valid and the third in test."""
    everything = Interactions.from_pairs([u for u in users for _ in items], [i for _ in users for i in items])
    place = everything.items % len(items)
    negatives = np.full((len(users), 1), len(items) - 1, np.int64)
    train, valid, test = (everything.select(place == part) for part in range(3))
    return Split("small", train, valid, test, negatives)


def save(folder: Path, split: Split, model: GMF | None = None, **more: Any) -> None:
    model = model or random_model(split)
    config = RunConfig(dim=model.dim).model_dump(mode="json")
    save_model(folder, model, split, {"status": "finished", "config": config, **more})


def contents(recommender: Recommender) -> list[Any]:
    """All that a loaded run consists of, exactly."""
    split = recommender.split_
    arrays: list[NDArray[Any] | None] = [*recommender.model_.tensors().values(), split.negatives]
    for part in (split.train, split.valid, split.test):
        arrays += [None, None] if part is None else [part.indptr, part.items]
    exact = [None if array is None else (array.dtype.str, array.shape, array.tobytes()) for array in arrays]
    ids = [split.train.user_ids.labels.to_list(), split.train.item_ids.labels.to_list()]
    return [exact, ids, split.name, recommender.get_params()]


def read_all(folder: Path) -> list[Any]:
    return [contents(Recommender.load(folder)), artifacts.read_run(folder)]


def read_or_error(folder: Path) -> list[Any] | str:
    """The whole run, or what is wrong with it; any other exception is a failure."""
    try:
        return read_all(folder)
    except ArtifactError as error:
        return str(error)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save(folder, small_split(), metrics={"ndcg@3": 0.125})
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copied"))


@st.composite
def worlds(draw: st.DrawFn) -> Split:
    users, items = draw(labels), draw(labels)
    everything = Interactions.from_pairs([u for u in users for _ in items], [i for _ in users for i in items])
    where = np.array(draw(st.lists(st.integers(0, 3), min_size=len(everything), max_size=len(everything))))
    train, valid, test = (everything.select(where == part) for part in range(3))
    negatives = draw(st.none() | st.integers(0, 4).map(lambda k: np.zeros((len(users), k), np.int64)))
    return Split("drawn", train, draw(st.sampled_from([valid, None])), draw(st.sampled_from([test, None])), negatives)


@given(split=worlds(), values=st.data())
@settings(max_examples=40, deadline=None)
def test_a_run_comes_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, split: Split, values: st.DataObject) -> None:
    numbers = st.lists(floats, min_size=DIM, max_size=DIM)
    model = random_model(split)
    model.items[0] = values.draw(numbers)
    model.beta[:] = values.draw(numbers)
    folder = tmp_path_factory.mktemp("run")
    save(folder, split, model)
    expected = Recommender(dim=DIM)._use(model, split)
    assert contents(Recommender.load(folder)) == contents(expected)


def test_equal_runs_are_equal_files_that_the_safetensors_library_reads(tmp_path: Path) -> None:
    split = small_split()
    for name in ("one", "two"):
        save(tmp_path / name, split)
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in FILES)
    found = load_file(tmp_path / "one" / "model.safetensors")
    assert {name: tensor.tobytes() for name, tensor in found.items()} == {
        name: tensor.tobytes() for name, tensor in random_model(split).tensors().items()
    }


def test_header_is_in_one_order_in_every_process(tmp_path: Path) -> None:
    """The safetensors library itself writes metadata in an order that differs between processes."""
    path = tmp_path / "a.safetensors"
    tensors: dict[str, NDArray[Any]] = {
        "wide": np.arange(3),
        "narrow": np.ones(5, np.uint8),
        "number": np.asarray(4),
        "none": np.zeros((0, 2), np.float32),
    }
    artifacts.write_tensors(path, tensors, '{"a": 1}')
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert list(header) == ["__metadata__", "number", "wide", "none", "narrow"]
    assert list(header["__metadata__"]) == ["note", "note_sha256", "sha256"]
    found, note = artifacts.read_tensors(path)
    assert note == '{"a": 1}'
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor, strict=True)


def test_other_users_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        save(tmp_path / "run", small_split())
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()} == {0o644}


@given(file=st.sampled_from(FILES), where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(max_examples=400, deadline=None)
def test_a_flipped_byte_is_an_error_that_names_the_file_or_changes_nothing(
    saved: Path, file: str, where: float, flip: int
) -> None:
    whole = (saved / file).read_bytes()
    at = int(where * len(whole))
    check_damage(saved, file, whole, whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])


@given(file=st.sampled_from(FILES), where=st.floats(0, 1, exclude_max=True), tail=st.binary(max_size=3))
@settings(max_examples=100, deadline=None)
def test_a_cut_or_lengthened_file_is_an_error_that_names_it_or_changes_nothing(
    saved: Path, file: str, where: float, tail: bytes
) -> None:
    whole = (saved / file).read_bytes()
    check_damage(saved, file, whole, whole[: int(where * len(whole))] + tail)
    check_damage(saved, file, whole, whole + tail)


def check_damage(folder: Path, file: str, whole: bytes, damaged: bytes) -> None:
    expected = read_all(folder)
    try:
        (folder / file).write_bytes(damaged)
        found = read_or_error(folder)
    finally:
        (folder / file).write_bytes(whole)
    assert found == expected or str(folder / file) in found


@pytest.mark.parametrize("file", FILES)
def test_most_flips_are_found(saved: Path, file: str) -> None:
    """The flips above do bite: of one flip in each of 50 places, nearly all are errors."""
    whole = (saved / file).read_bytes()
    found = 0
    places = np.linspace(0, len(whole) - 1, 50).astype(int)
    for at in places:
        (saved / file).write_bytes(whole[:at] + bytes([whole[at] ^ 0x11]) + whole[at + 1 :])
        try:
            Recommender.load(saved)
        except ArtifactError:
            found += 1
    (saved / file).write_bytes(whole)
    assert found > 40


@pytest.mark.parametrize("file", FILES[1:])
def test_files_of_two_runs_cannot_be_mixed(copied: Path, tmp_path: Path, file: str) -> None:
    split = small_split(users=("ann", "bob", "cid"), items=(7, -1, 5, 0)) if file != "interactions.safetensors" else None
    everything = small_split()
    other = split or Split("other", everything.train, None, everything.test)
    save(tmp_path / "other", other, random_model(other, seed=1))
    shutil.copy(tmp_path / "other" / file, copied / file)
    with pytest.raises(ArtifactError, match=f"{file} does not belong to this run"):
        Recommender.load(copied)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(copied: Path, file: str) -> None:
    (copied / file).unlink()
    with pytest.raises(ArtifactError, match=file):
        Recommender.load(copied)


@pytest.mark.parametrize("file", FILES)
def test_a_folder_in_place_of_a_file_is_named(copied: Path, file: str) -> None:
    (copied / file).unlink()
    (copied / file).mkdir()
    with pytest.raises(ArtifactError, match=file):
        Recommender.load(copied)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ["pickle", "npz", "npy"])
def test_loading_executes_nothing(copied: Path, tmp_path: Path, file: str, kind: str) -> None:
    marker = tmp_path / "executed"
    bomb = Bomb(marker)
    with (copied / file).open("wb") as stream:
        if kind == "pickle":
            pickle.dump(bomb, stream)
        elif kind == "npz":
            np.savez(stream, users=np.array([bomb], object))
        else:
            np.save(stream, np.array([bomb], object), allow_pickle=True)
    with pytest.raises(ArtifactError, match=file):
        Recommender.load(copied)
    assert not marker.exists()
    pickle.loads(pickle.dumps(bomb))
    assert marker.exists()  # it was live


def test_a_safetensors_file_of_another_origin_is_refused(copied: Path) -> None:
    save_file({"users": np.zeros((3, DIM), np.float32)}, copied / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"model\.safetensors is damaged: its header does not match its checksum"):
        Recommender.load(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": 5}, "field 'files' is 5"),
        ({"files": {}}, "has no checksum of ids.safetensors"),
        ({"files": {"ids.safetensors": None}}, "has no checksum of ids.safetensors"),
        ({"config": []}, r"field 'config' is \[\]"),
        ({"config": {"dim": "wide"}}, "dim = 'wide'"),
        ({"config": {"flavour": 1}}, "'flavour' is not a field"),
        ({"data": "x"}, "field 'data' is 'x'"),
        ({"data": {}}, "lacks the name of the data"),
        ({"status": 3}, "field 'status' is 3"),
        ({"metrics": [1]}, r"field 'metrics' is \[1\]"),
        ({"version": 2}, "has format version 2; this srns reads version 1"),
        ({"version": "1"}, "has format version '1'"),
        ({"format": "pickle"}, "is not a run of srns"),
    ],
)
def test_a_run_json_of_wrong_content_is_an_error_that_names_the_field(
    copied: Path, change: dict[str, Any], message: str
) -> None:
    artifacts.write_run(copied, {**artifacts.read_run(copied), **change})
    with pytest.raises(ArtifactError, match=rf"run\.json.*{message}"):
        Recommender.load(copied)


@pytest.mark.parametrize("field", ["status", "config", "data", "files"])
def test_a_run_json_without_a_field_is_an_error_that_names_it(copied: Path, field: str) -> None:
    run = artifacts.read_run(copied)
    del run[field]
    artifacts.write_run(copied, run)
    with pytest.raises(ArtifactError, match=rf"run\.json is not a whole run: it lacks field '{field}'"):
        Recommender.load(copied)


@given(field=st.sampled_from(sorted(artifacts.SHAPE)), value=json_values)
@settings(max_examples=100, deadline=None)
def test_any_value_of_any_field_loads_or_is_an_artifact_error(saved: Path, field: str, value: Any) -> None:
    whole = (saved / "run.json").read_bytes()
    try:
        artifacts.write_run(saved, {**artifacts.read_run(saved), field: value})
        found = read_or_error(saved)
    finally:
        (saved / "run.json").write_bytes(whole)
    assert isinstance(found, list) or str(saved) in found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "5",
        "[]",
        '"srns-run"',
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        f'{{"format": "srns-run", "version": 1, "a": {"[" * 900}{"]" * 900}}}',
        f'{{"format": "srns-run", "version": {"9" * 5000}}}',
        '{"format": "srns-run", "version": 1}',
        '{"format": "srns-run", "version": NaN}',
        '"\\ud800"',
    ],
)
def test_a_run_json_that_is_no_run_is_an_error(copied: Path, text: str) -> None:
    (copied / "run.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"run\.json"):
        Recommender.load(copied)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("model.safetensors", {"beta": np.ones(DIM + 1, np.float32)}),
        ("model.safetensors", {"users": np.ones((3, DIM))}),
        ("model.safetensors", {"items": np.ones(DIM, np.float32)}),
        ("model.safetensors", {"users": None}),
        ("ids.safetensors", {"user.bytes": None}),
        ("ids.safetensors", {"user.bytes": np.full(6, 255, np.uint8)}),
        ("ids.safetensors", {"user.ends": np.zeros((2, 2), np.int64)}),
        ("ids.safetensors", {"item.labels": np.ones((2, 2))}),
        ("ids.safetensors", {"user": np.ones(2)}),
        ("interactions.safetensors", {"train.indptr": np.zeros(0, np.int64)}),
        ("interactions.safetensors", {"train.indptr": np.zeros((4, 1), np.int64)}),
        ("interactions.safetensors", {"train.items": None}),
        ("interactions.safetensors", {"train.items": np.array([99, 99, 99], np.int32)}),
        ("interactions.safetensors", {"train.indptr": None}),
        ("interactions.safetensors", {"negatives": np.zeros(7, np.int64)}),
    ],
)
def test_tensors_that_fit_their_checksum_but_make_no_run_are_refused(copied: Path, file: str, change: dict[str, Any]) -> None:
    tensors = {**artifacts.read_tensors(copied / file)[0], **change}
    run = artifacts.read_run(copied)
    run["files"][file] = artifacts.write_tensors(copied / file, {k: v for k, v in tensors.items() if v is not None})
    artifacts.write_run(copied, run)
    with pytest.raises(ArtifactError, match=file):
        Recommender.load(copied)


def test_an_unfinished_run_says_how_to_finish_it(copied: Path) -> None:
    artifacts.write_run(copied, {**artifacts.read_run(copied), "status": "running"})
    with pytest.raises(ArtifactError, match="unfinished run; finish it with `srns train"):
        Recommender.load(copied)


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"is not a run: it has no run\.json"):
        Recommender.load(tmp_path)


@pytest.fixture(params=["tmpfs", "file size limit"])
def tiny_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder to which no more than 128 KiB (in all, or in a file) can be written."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "tmpfs":
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
        yield folder
        subprocess.run(["umount", folder], check=True)
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (128 << 10, hard))
        yield folder
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


FULL = "No space left on device|File too large"


def test_a_full_disk_is_named_and_leaves_the_old_run_whole(tiny_disk: Path) -> None:
    split = small_split()
    save(tiny_disk / "run", split)
    before = {path.name: path.read_bytes() for path in (tiny_disk / "run").iterdir()}
    other = small_split(users=range(5))
    with pytest.raises(ArtifactError, match=rf"cannot write .*model\.safetensors.*({FULL})"):
        save(tiny_disk / "run", other, random_model(other, dim=4096))
    assert {path.name: path.read_bytes() for path in (tiny_disk / "run").iterdir()} == before
    assert contents(Recommender.load(tiny_disk / "run")) == contents(Recommender(dim=DIM)._use(random_model(split), split))


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_recommendations_that_do_not_fit_the_disk_leave_the_old_file_whole(tiny_disk: Path, ending: str) -> None:
    path = tiny_disk / f"recs.{ending}"
    write_frames([pl.DataFrame({"user_id": [1]})], path)
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match=rf"cannot write .*recs\.{ending}: .*({FULL})"):
        write_frames([pl.DataFrame({"user_id": np.random.default_rng(0).integers(0, 2**60, 50_000)})], path)
    assert path.read_bytes() == before
    assert list(tiny_disk.iterdir()) == [path]


class Messages(Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def test_training_goes_on_where_checkpoints_cannot_be_written(tiny_disk: Path, world: Split) -> None:
    config = RunConfig(dim=64, epochs=3, engine="plain", checkpoint_epochs=1)
    expected = Trainer(config, world).run()
    said, checkpoint = Messages(), tiny_disk / "checkpoint.safetensors"
    checkpoint.write_bytes(b"the one before")
    found = Trainer(config, world, callbacks=[said], checkpoint=checkpoint).run()
    warnings = [message for message in said.messages if message.startswith("checkpoint not written, training goes on")]
    assert len(warnings) == 3
    assert all(str(checkpoint) in warning for warning in warnings)
    assert [path.name for path in tiny_disk.iterdir()] == [checkpoint.name]
    assert checkpoint.read_bytes() == b"the one before"
    for name, tensor in expected.model.tensors().items():
        np.testing.assert_array_equal(found.model.tensors()[name], tensor)


def test_a_file_where_a_folder_is_expected_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"cannot write .*file.*(not a folder|Not a directory)"):
        save(tmp_path / "file", small_split())
    with pytest.raises(ArtifactError, match=r"cannot write .*file/run\.json: .*file is not a folder"):
        artifacts.write_run(tmp_path / "file", {})
    with pytest.raises(ArtifactError, match=r"cannot write .*(not a folder|Not a directory)"):
        write_frames([pl.DataFrame({"user_id": [1]})], tmp_path / "file" / "recs.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
