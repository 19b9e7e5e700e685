"""Files of recommendations in parts: interrupted, resumed, and of the same bytes as those made in one go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from srns import lists
from srns import recommender as module
from srns.cli import app
from srns.display import Progress
from srns.errors import ConfigError
from srns.lists import write_all_users, write_frames
from srns.locks import owned
from srns.recommender import Recommender
from srns.splits import Split

K = 5


@pytest.fixture(scope="module")
def run(world: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists") / "run"
    Recommender(dim=4, epochs=1, engine="plain").fit(world).save(folder)
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, world: Split) -> None:
    """Blocks of seven users, parts of two blocks: 120 users are nine parts."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 7 * 4 * world.train.n_items)
    monkeypatch.setattr(lists, "PART_ROWS", 2 * 7 * K)


def stopping(after: int, error: type[BaseException] = KeyboardInterrupt) -> Any:
    def track(frames: Iterable[pl.DataFrame], *, done: int) -> Iterator[pl.DataFrame]:
        for number, frame in enumerate(frames):
            if number == after:
                raise error
            yield frame

    return track


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("after", [0, 2, 7, 16])
def test_a_resumed_job_ends_with_the_bytes_of_an_uninterrupted_one(run: Path, tmp_path: Path, ending: str, after: int) -> None:
    recommender = Recommender.load(run)
    wanted = pl.concat(list(recommender.recommend_frames(k=K)))
    whole, broken = tmp_path / f"whole.{ending}", tmp_path / "new" / f"broken.{ending}"
    assert write_all_users(recommender, run, whole, K) == len(wanted) == 600
    read: Any = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[ending]
    assert read(whole).cast(dict(wanted.schema)).equals(wanted)
    with pytest.raises(KeyboardInterrupt, match=rf"{after // 2} of 9 parts are in .*broken\.{ending}\.partial"):
        write_all_users(recommender, run, broken, K, track=stopping(after))
    assert not broken.exists()
    (broken.parent / f"broken.{ending}.partial" / ".killed.1.part").write_bytes(b"half a part")
    counted = []

    def track(frames: Iterable[pl.DataFrame], *, done: int) -> Iterator[pl.DataFrame]:
        counted.append(done)
        for frame in frames:
            counted.append(frame["user_id"].n_unique())
            yield frame

    assert write_all_users(recommender, run, broken, K, resume=True, track=track) == 600
    assert counted[0] == after // 2 * 14
    assert sum(counted) == 120
    assert broken.read_bytes() == whole.read_bytes()
    assert [path.name for path in broken.parent.iterdir()] == [broken.name]


@pytest.mark.usefixtures("small")
def test_only_the_same_job_is_resumed(run: Path, tmp_path: Path, world: Split) -> None:
    recommender, path = Recommender.load(run), tmp_path / "recs.parquet"

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            write_all_users(recommender, run, path, K, track=stopping(6))

    interrupted()
    with pytest.raises(
        ConfigError, match=r"recs\.parquet\.partial was begun with another k; --replace without --resume begins anew"
    ):
        write_all_users(recommender, run, path, K + 1, resume=True)
    with pytest.raises(ConfigError, match="was begun with another exclude_seen"):
        write_all_users(recommender, run, path, K, exclude_seen=False, resume=True)
    Recommender(dim=4, epochs=2, engine="plain").fit(world).save(tmp_path / "other")
    with pytest.raises(ConfigError, match="was begun with another model"):
        write_all_users(Recommender.load(tmp_path / "other"), tmp_path / "other", path, K, resume=True)
    (tmp_path / "recs.parquet.partial" / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged"):
        write_all_users(recommender, run, path, K, resume=True)
    with pytest.raises(ConfigError, match=r"left 3 parts in .*: --resume goes on with them, --replace begins anew"):
        write_all_users(recommender, run, path, K + 1)
    assert write_all_users(recommender, run, path, K + 1, anew=True) == 720
    (tmp_path / "recs.parquet.partial").mkdir()
    (tmp_path / "recs.parquet.partial" / "mine.txt").touch()
    with pytest.raises(ConfigError, match="is in the way, and holds no parts of recommendations"):
        write_all_users(recommender, run, path, K)
    assert (tmp_path / "recs.parquet.partial" / "mine.txt").exists()


@pytest.mark.usefixtures("small")
def test_two_jobs_do_not_write_to_one_file(run: Path, tmp_path: Path) -> None:
    recommender, path = Recommender.load(run), tmp_path / "recs.parquet"
    with owned(tmp_path / "recs.parquet.partial"), pytest.raises(ConfigError, match="in use by another srns command"):
        write_all_users(recommender, run, path, K)
    assert write_all_users(recommender, run, path, K)  # the lock went with its holder
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.usefixtures("small")
def test_what_fails_at_once_leaves_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        write_all_users(Recommender.load(run), run, tmp_path / "recs.csv", K, track=stopping(1, ValueError))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small")
def test_the_command_line_resumes(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*args: str) -> Any:
        path = str(tmp_path / "recs.parquet")
        return CliRunner().invoke(app, ["recommend", str(run), "--all-users", "-k", str(K), "--out", path, *args])

    def track(self: Progress, frames: Iterable[pl.DataFrame], users: int, done: int = 0) -> Iterator[pl.DataFrame]:
        return stopping(4)(frames, done=done)  # type: ignore[no-any-return]

    (tmp_path / "recs.parquet").write_text("of yesterday")
    with monkeypatch.context() as broken:
        broken.setattr(Progress, "track", track)
        said = call("--replace")
    assert said.exit_code == 130
    assert (tmp_path / "recs.parquet").read_text() == "of yesterday"
    assert "interrupted: 2 of 9 parts are in" in said.stderr
    assert "the same command with --resume goes on from there" in said.stderr
    said = call("--resume", "--json")
    assert json.loads(said.stdout)["rows"] == len(pl.read_parquet(tmp_path / "recs.parquet")) == 600
    assert "is there already" in call("--resume").stderr  # nothing is left to go on with
    said = CliRunner().invoke(app, ["recommend", str(run), "--user", "1", "--resume"])
    assert "--resume goes on with --all-users --out FILE" in said.stderr


def test_parquet_is_written_in_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(lists, "PART_ROWS", 1000)
    frame = pl.DataFrame({"user_id": range(100)})
    assert write_frames((frame for _ in range(50)), tmp_path / "recs.parquet") == 5000
    assert pq.ParquetFile(tmp_path / "recs.parquet").num_row_groups == 5
    assert pl.read_parquet(tmp_path / "recs.parquet").equals(pl.concat([frame] * 50))
    assert [path.name for path in tmp_path.iterdir()] == ["recs.parquet"]
