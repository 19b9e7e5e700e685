"""A connection that is lost while a transaction is being committed: nobody knows what came of it, and that is what is said.

Between srns and a real PostgreSQL server stands a proxy that cuts the line when it sees COMMIT pass: before the server gets it,
or when it has answered.
"""

# ruff: noqa: F811 (fixtures are arguments)

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from postgres_server import TOKEN, Server
from test_databases import Database, database, postgres  # noqa: F401 (the last two are fixtures)
from typer.testing import CliRunner

from srns.cli import app
from srns.recommender import Recommender
from srns.splits import Split

COMMIT = b"Q\0\0\0\x0bCOMMIT\0"  # a simple query, as the protocol has it
DONE = b"C\0\0\0\x0bCOMMIT\0"  # what the server answers


@contextmanager
def cutting(port: int, answered: bool) -> Iterator[int]:
    """The port of a proxy to the server at `port` that cuts at COMMIT or, where it is `answered`, before the client hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(source: socket.socket, target: socket.socket, last: bytes, with_it: bool, ends: list[socket.socket]) -> None:
        """Pass on what comes until `last` does, or to the end; then cut both lines."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if last not in data or with_it:
                    target.sendall(data)
                if last in data and not with_it:
                    break
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                ends = [client, server]
                for line in ((client, server, COMMIT, answered, ends), (server, client, DONE, False, ends)):
                    threading.Thread(target=forward, args=line, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


@pytest.fixture(scope="module")
def run(world: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lost") / "run"
    Recommender(dim=4, epochs=1, engine="plain").fit(world).save(folder)
    return folder


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ("new", "If the table is there, they are in it; if not, run the command again"),
        ("replace", "Run the command again: it puts them in the place of whatever is there"),
        ("append", "Look before you run the command again, which would add them twice: SELECT count(*) FROM"),
    ],
)
def test_a_commit_without_an_answer_is_told_as_unknown(
    database: Database, postgres: Server, run: Path, how: str, advice: str, answered: bool
) -> None:
    table, flags = ("fresh", []) if how == "new" else ("recs", [f"--{how}"])
    database.sql("CREATE TABLE recs (user_id text, item_id text, score real, rank integer)")
    database.sql("INSERT INTO recs VALUES ('somebody', 'old', 0.5, 1)")
    wanted = ["recommend", str(run), "--all-users", "-k", "5", "--table", table, *flags, "--to"]
    with cutting(postgres.port, answered) as port:
        said = srns(*wanted, postgres.url().replace(f":{postgres.port}/", f":{port}/"))
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.count("\n") == 1, said.stderr  # no stack trace, and nothing of the driver's own
    assert (
        f"error: postgresql://127.0.0.1:{port}/postgres, table {table}: the connection was lost in the last step" in said.stderr
    )
    assert "whether 600 new rows are there is not known: all of them or none (" in said.stderr
    assert advice in said.stderr
    assert TOKEN not in said.stderr

    def rows() -> int:
        there = database.sql("SELECT to_regclass(%s) IS NOT NULL", [table]) == [(True,)]
        return int(database.sql(f"SELECT count(*) FROM {table}")[0][0]) if there else 0

    before = {"new": 0, "replace": 1, "append": 1}[how]
    after = {"new": 600, "replace": 600, "append": 601}[how]
    assert rows() == (after if answered else before)
    again = CliRunner().invoke(app, [*wanted, postgres.url()])  # what the advice says of it
    assert again.exit_code == (2 if how == "new" and answered else 0), again.output
    assert rows() == after + 600 * (how == "append" and answered)


def srns(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "srns", *arguments], capture_output=True, text=True, timeout=200, check=False)
