"""Named data: a real web server on this machine stands for GroupLens, with small zip files and their checksums."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import threading
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srns import datasets
from srns.datasets import DATASETS, available, load
from srns.errors import DataError
from srns.interactions import Interactions
from srns.splits import Split

RATINGS = [(1, 10, 5, 100), (1, 20, 3, 200), (2, 10, 4, 300), (3, 30, 1, 400)]


def zipped(member: str, separator: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, "".join(separator.join(map(str, row)) + "\n" for row in RATINGS))
        archive.writestr("README", os.urandom(200_000).hex())  # long enough to be cut in the middle
    return buffer.getvalue()


def expect_ratings(data: Any, rows: Sequence[tuple[int, ...]] = RATINGS) -> None:
    assert isinstance(data, Interactions)
    assert data.weight is not None
    assert data.time is not None
    users, items = data.user_ids.take(data.users).to_list(), data.item_ids.take(data.items).to_list()
    assert list(zip(users, items, data.weight.tolist(), data.time.tolist(), strict=True)) == sorted(rows)


class Server(ThreadingHTTPServer):
    """Serves `files`; `cut` is how many bytes of a body are sent before the connection is dropped."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.cut: int | None = None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        body = self.server.files.get(self.path.lstrip("/"))
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.files = {"ml-100k.zip": zipped("ml-100k/u.data", "\t"), "ml-1m.zip": zipped("ml-1m/ratings.dat", "::")}
    for name in ("ml-100k", "ml-1m"):
        md5 = hashlib.md5(server.files[f"{name}.zip"]).hexdigest()
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], md5=md5))
    monkeypatch.setenv("SRNS_MIRROR", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("SRNS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SRNS_DATA", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def refused(name: str, **options: Any) -> str:
    with pytest.raises(DataError) as error:
        load(name, **options)
    return str(error.value)


def cached(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").glob("*"))


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
def test_download_once_then_cache(server: Server, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    expect_ratings(load(name))
    assert cached(tmp_path) == [f"{name}.zip"]
    output = capfd.readouterr()
    assert output.out == ""  # standard output belongs to results
    assert "100%" in output.err
    expect_ratings(load(name, min_weight=4), [row for row in RATINGS if row[2] >= 4])
    assert server.requests == [f"/{name}.zip"]


def test_wrong_checksum_keeps_nothing(server: Server, tmp_path: Path) -> None:
    right = server.files["ml-100k.zip"]
    server.files["ml-100k.zip"] = right[:-1] + b"?"
    message = refused("ml-100k")
    assert "wrong checksum" in message
    assert DATASETS["ml-100k"].md5 in message
    assert cached(tmp_path) == []
    server.files["ml-100k.zip"] = right
    expect_ratings(load("ml-100k"))


def test_broken_connection_restarts_cleanly(server: Server, tmp_path: Path) -> None:
    server.cut = 50_000
    message = refused("ml-100k")
    assert "cannot download" in message
    assert "ml-100k.zip" in message
    assert cached(tmp_path) == []
    server.cut = None
    expect_ratings(load("ml-100k"))


def test_damaged_cache_is_replaced(server: Server, tmp_path: Path) -> None:
    load("ml-100k")
    (tmp_path / "cache" / "ml-100k.zip").write_bytes(server.files["ml-100k.zip"][:1000])
    expect_ratings(load("ml-100k"))
    assert len(server.requests) == 2


def test_missing_file_on_the_server(server: Server) -> None:
    server.files.clear()
    message = refused("ml-1m")
    assert "404" in message
    assert "SRNS_DATA" in message


def test_offline_says_what_to_do(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SRNS_MIRROR", f"http://127.0.0.1:{closed.getsockname()[1]}")
    message = refused("ml-100k")
    for words in ("cannot download", "SRNS_DATA", "ml-100k.zip", "ml-100k.inter"):
        assert words in message
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "ml-100k.zip").write_bytes(server.files["ml-100k.zip"])
    monkeypatch.setenv("SRNS_DATA", str(folder))
    expect_ratings(load("ml-100k"))
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float", *("\t".join(map(str, row)) for row in RATINGS[:2])]
    (folder / "ml-100k.inter").write_text("\n".join(lines))
    expect_ratings(load("ml-100k"), RATINGS[:2])  # .inter before .zip
    assert server.requests == []


def test_cache_that_cannot_be_written(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SRNS_CACHE", str(tmp_path / "file" / "cache"))
    assert "SRNS_CACHE" in refused("ml-100k")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"PK\x03\x04 but no more", "not a zip file"), (zipped("other/u.data", "\t"), "no member ml-100k/u.data")],
)
def test_wrong_zip_in_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "ml-100k.zip").write_bytes(content)
    monkeypatch.setenv("SRNS_DATA", str(tmp_path))
    assert said in refused("ml-100k")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of data like the one we develop with, in small."""
    np.savez(tmp_path / "paper.npz", train=[[0, 0], [1, 1]], test=[[0, 1]])
    np.savez(tmp_path / "clicks.npz", interactions=[[0, 0, 5], [1, 1, 6]])
    np.savez(tmp_path / "paper-models.npz", gmf_users=np.ones((2, 3)), gmf_items=np.ones((2, 3)))
    (tmp_path / "damaged.npz").write_bytes((tmp_path / "paper.npz").read_bytes()[:-30])
    (tmp_path / "games.inter").write_text("user_id:token\titem_id:token\n1\t2\n")
    (tmp_path / "README.md").write_text("not data")
    monkeypatch.setenv("SRNS_DATA", str(tmp_path))
    return tmp_path


def test_listing_shows_data_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {dataset.name: dataset.kind for dataset in available()}
    builtin = {"synthetic": "simulated", "ml-100k": "download", "ml-1m": "download"}
    assert kinds == {**builtin, "clicks": "interactions", "games": "interactions", "paper": "split"}
    assert all(dataset.source and dataset.description for dataset in available())
    monkeypatch.setenv("SRNS_DATA", str(folder / "absent"))
    assert [dataset.name for dataset in available()] == list(builtin)
    monkeypatch.delenv("SRNS_DATA")
    assert [dataset.source for dataset in available()][1] == "https://files.grouplens.org/datasets/movielens/ml-100k.zip"


def test_load_by_name_and_by_path(folder: Path) -> None:
    for name in ("paper", folder / "paper.npz", str(folder / "paper.npz")):
        split = load(name)
        assert isinstance(split, Split)
        assert (split.name, len(split.train)) == ("paper", 2)
    for name in ("clicks", folder / "clicks.npz"):
        data = load(name)
        assert isinstance(data, Interactions)
        assert data.time is not None
        assert data.time.tolist() == [5, 6]
    assert len(load("games", user="user_id")) == 1  # type: ignore[arg-type]
    (folder / "x.csv").write_text("who,item\n1,2\n")
    assert len(load(folder / "x.csv", user="who")) == 1  # type: ignore[arg-type]


def test_names_and_options_that_are_wrong(folder: Path) -> None:
    message = refused("papr")
    assert "did you mean paper?" in message
    assert "synthetic, ml-100k, ml-1m, clicks, games, paper" in message
    assert str(folder) in message
    assert "no such file" in refused("nowhere/paper.npz")
    assert "no such file" in refused("paper.csv")
    assert "fixed split is used as it is; min_weight" in refused("paper", min_weight=4)
    assert "damaged.npz" in refused(str(folder / "damaged.npz"))
    assert "user cannot be chosen" in refused("synthetic", user="u")
    assert "format cannot be chosen" in refused_zip(folder)
    assert "needs a weight column" in refused("clicks", min_weight=4)


def test_data_that_have_to_be_brought(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SRNS_DATA", str(tmp_path))
    for name in ("ml-1m-paper", "ml-100k-paper-tuning", "pinterest", "beauty", "sports-outdoors"):
        message = refused(name)
        assert f"cannot be downloaded from here: set SRNS_DATA to a folder that has {name}.npz" in message
        assert "not a folder" not in message


@pytest.mark.parametrize("name", ["ml-1m-paper", "pinterest", "unheard-of"])
@pytest.mark.parametrize("place", ["absent", "file"])
def test_a_folder_of_data_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SRNS_DATA", str(tmp_path / place))
    message = refused(name)
    assert f"SRNS_DATA is set to {tmp_path / place}, which is not a folder" in message
    assert "also looked in" not in message


def refused_zip(folder: Path) -> str:
    (folder / "ml-1m.zip").write_bytes(zipped("ml-1m/ratings.dat", "::"))
    return refused("ml-1m", format="csv")


def test_synthetic_is_simulated_and_filtered() -> None:
    data = load("synthetic", min_user=30)
    assert isinstance(data, Interactions)
    assert int(data.user_counts.min()) >= 30


def test_cache_folder_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SRNS_CACHE", raising=False)
    assert datasets.cache_folder().name == "srns"


def test_shared_data() -> None:
    folder = os.environ.get("SRNS_DATA")
    if not folder or not (Path(folder) / "ml-1m-paper-models.npz").exists():
        pytest.skip("SRNS_DATA does not name a folder with ml-1m-paper-models.npz")
    names = [dataset.name for dataset in available()]
    assert "ml-1m-paper" in names
    assert "ml-1m-paper-models" not in names
    for name in names:
        if name not in ("ml-1m", "synthetic"):
            load(name)
    liked = load("ml-100k", min_weight=4)
    assert isinstance(liked, Interactions)
    assert len(liked) == 55_375  # as many as in the paper's split of the same data
