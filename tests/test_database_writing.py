"""Recommendations into databases in one transaction, and secrets that stay out of everything: the rest of test_databases.py."""

# ruff: noqa: F811 (fixtures are arguments)

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from postgres_server import PASSWORD, TOKEN, Server
from test_databases import CLICKS, OLD, RECS, Database, call, database, postgres  # noqa: F401 (the last two are fixtures)

from srns.databases import write_at_once, write_database
from srns.display import Progress
from srns.errors import ArtifactError, ConfigError, UnknownIdError

only_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
WRITTEN = sorted(zip(*[RECS[column].to_list() for column in RECS.columns], strict=True))


MANY = pl.concat([RECS] * 17_000, rechunk=True)


def made(database: Database, old: list[tuple[Any, ...]] = OLD) -> None:
    """A table of recommendations as another job left it."""
    write_database([pl.DataFrame(old, schema=RECS.schema, orient="row")], database.url, "recs")
    assert database.rows() == old


def endless(trouble: Any = None, after: int = 0) -> Iterator[pl.DataFrame]:
    """Frames without end; `trouble` is called once that many are out."""
    number = 0
    while True:
        if number == after and trouble is not None:
            trouble()
        yield MANY
        number += 1
        assert number < 400, "nothing went wrong"


def test_tables_are_made_refused_replaced_and_added_to(database: Database) -> None:
    assert write_database([RECS[:1], RECS[:0], RECS[1:]], database.url, 'new "recs"') == 3
    assert database.rows('new "recs"') == WRITTEN
    made(database)
    with pytest.raises(ConfigError, match=r"table recs is there already: --replace .*, --append"):
        write_database([RECS], database.url, "recs")
    write_database([RECS], database.url, "recs", "append")
    assert database.rows() == sorted([*OLD, *WRITTEN])
    write_database([RECS], database.url, "recs", "replace")
    assert database.rows() == WRITTEN
    write_database([RECS], database.url, "more", "replace")
    assert database.rows("more") == WRITTEN


def test_tables_of_other_columns_are_refused(database: Database) -> None:
    database.make(CLICKS)
    for how in ("append", "replace"):
        with pytest.raises(ConfigError, match=r"clicks has no column score: expected user_id \(integers\), item_id \(text\)"):
            write_database([RECS], database.url, "clicks", how)  # type: ignore[arg-type]
    assert len(database.sql("SELECT * FROM clicks")) == 6
    made(database)
    other = RECS.with_columns(user_id=pl.Series(["a", "b", "c"]))
    with pytest.raises(ConfigError, match=r"(?i)recs has user_id as (bigint|integer), for text: expected user_id \(text\)"):
        write_database([other], database.url, "recs", "append")
    assert database.rows() == OLD
    kind = "timestamp DEFAULT CURRENT_TIMESTAMP"
    database.sql(f"CREATE TABLE dated (made_at {kind}, rank integer, score real, item_id text, user_id bigint)")
    write_database([RECS], database.url, "dated", "append")
    assert database.rows("dated") == WRITTEN
    assert database.sql("SELECT count(made_at) FROM dated") == [(3,)]


def test_others_use_the_database_while_recommendations_are_made(database: Database) -> None:
    made(database)
    database.sql("CREATE TABLE other (n integer)")

    def frames() -> Iterator[pl.DataFrame]:
        for number in range(3):
            yield MANY
            database.sql(f"INSERT INTO other VALUES ({number})")  # an application, on a connection of its own
            assert database.rows() == OLD
        yield RECS

    assert write_database(frames(), database.url, "recs", "replace") == 3 * len(MANY) + 3
    assert database.sql("SELECT count(*) FROM other") == [(3,)]
    assert database.sql("SELECT count(*) FROM recs") == [(3 * len(MANY) + 3,)]


def test_what_cannot_be_written_is_said_before_all_is_made(database: Database) -> None:
    made(database)

    def frames() -> Iterator[pl.DataFrame]:
        yield RECS
        raise AssertionError("hours of work")

    with pytest.raises(ConfigError, match="is there already"):
        write_database(frames(), database.url, "recs")
    with pytest.raises(ArtifactError, match="nothing was changed there"):
        write_database(frames(), database.url, "nowhere.recs")
    assert database.rows() == OLD


@only_postgresql
def test_types_are_those_of_the_run(database: Database) -> None:
    write_database([RECS], database.url, "recs")
    kinds = database.sql(
        "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'recs'::regclass AND attnum > 0"
    )
    assert dict(kinds) == {"user_id": "bigint", "item_id": "text", "score": "real", "rank": "integer"}


@pytest.mark.parametrize("how", ["replace", "append"])
def test_what_goes_wrong_on_our_side_changes_nothing(database: Database, how: Any) -> None:
    made(database)
    for error in (UnknownIdError("half way"), KeyboardInterrupt()):

        def trouble(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            write_at_once(endless(trouble, after=5), database.url, "recs", how)
        assert database.rows() == OLD
    with pytest.raises(UnknownIdError):
        write_at_once(endless(lambda: trouble(UnknownIdError("x")), after=3), database.url, "fresh")
    assert len(database.sql("SELECT * FROM recs")) == 1


def test_a_new_file_of_a_failed_job_is_gone(tmp_path: Path) -> None:
    def trouble() -> None:
        raise UnknownIdError("half way")

    for kind in ("sqlite", "duckdb"):
        with pytest.raises(UnknownIdError):
            write_at_once(endless(trouble, after=2), f"{kind}:///{tmp_path / 'new.db'}", "recs")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_new_file_of_another_job_stays(tmp_path: Path, kind: str) -> None:
    url = f"{kind}:///{tmp_path / 'new.db'}"

    def overtaken() -> Iterator[pl.DataFrame]:
        yield MANY
        write_database([RECS[:1]], url, "recs")  # between our look for the file and our end
        yield RECS

    with pytest.raises(ArtifactError, match=r"another process has made this file meanwhile.*nothing was changed"):
        write_at_once(overtaken(), url, "recs")
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]
    write_database([RECS[1:]], url, "recs", "append")
    with pytest.raises(ConfigError, match="is there already"):
        write_database([RECS], url, "recs")


@only_postgresql
def test_a_dropped_connection_changes_nothing(database: Database) -> None:
    made(database)

    def drop() -> None:
        ended = database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'srns'")
        assert ended == [(True,)]

    for how in ("replace", "append"):
        with pytest.raises(
            ArtifactError, match=r"cannot write to postgresql://127\.0\.0\.1:\d+/postgres, table recs: .*"
        ) as caught:
            write_at_once(endless(drop, after=3), database.url, "recs", how)  # type: ignore[arg-type]
        assert str(caught.value).endswith("; nothing was changed there")
        assert TOKEN not in str(caught.value)
        assert database.rows() == OLD


def test_a_table_that_cannot_grow_changes_nothing(database: Database) -> None:
    """Files may not grow beyond a few pages: for SQLite and DuckDB this process's, for PostgreSQL its server's."""
    made(database)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    own = os.getpid()

    def limit() -> None:
        if database.kind == "postgresql":
            ((pid,),) = database.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'srns'")
            as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
            subprocess.run([*as_user, "prlimit", "--pid", str(pid), f"--fsize={256 << 10}:"], check=True)
        else:
            resource.prlimit(own, resource.RLIMIT_FSIZE, (256 << 10, unlimited[1]))

    try:
        with pytest.raises(ArtifactError, match=r"cannot write to .*; nothing was changed there"):
            write_at_once(endless(limit, after=1), database.url, "recs", "replace")
    finally:
        resource.prlimit(own, resource.RLIMIT_FSIZE, unlimited)
        signal.signal(signal.SIGXFSZ, before)
    assert database.rows() == OLD
    write_database([RECS], database.url, "recs", "replace")
    assert database.rows() == WRITTEN


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
from srns.databases import write_at_once
from test_database_writing import endless
write_at_once(endless(lambda: os.kill(os.getpid(), signal.SIGKILL), after=8), {url!r}, "recs", "replace")
"""


def test_a_killed_process_changes_nothing(database: Database) -> None:
    made(database)
    code = KILLED.format(path=[str(Path(__file__).parent), *sys.path], url=database.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert database.rows() == OLD
    write_database([RECS], database.url, "recs", "append")
    assert len(database.rows()) == 4


# The whole way, on the command line


def leaks(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


@only_postgresql
def test_no_secret_is_printed_or_kept(
    postgres: Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = database.url
    database.sql("CREATE TABLE clicks AS SELECT g % 40 AS user_id, (g * 7) % 31 AS item_id FROM generate_series(1, 900) g")
    train = ["train", url, "--table", "public.clicks", "--dim", "4", "--epochs", "2", "--engine", "plain"]
    said = call(*train, "--checkpoint-epochs", "1")
    assert said.exit_code == 0, said.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name == "postgres-public.clicks-srns-seed0"
    run = json.loads((folder / "run.json").read_text())
    assert (run["data"]["name"], run["config"]["table"]) == (postgres.shown, "public.clicks")
    outputs = [said.stdout, said.stderr]
    for command in (
        [*train, "--out", folder, "--resume", "--json"],
        ["info", folder],
        ["report", folder, "--out", "page.html", "--json"],
        ["look", url, "--table", "public.clicks"],
        ["update", folder, url, "--out", tmp_path / "updated", "--json"],
        ["recommend", folder, "--all-users", "--to", url, "--table", "recs", "-k", "3"],
        ["recommend", folder, "--user", "7", "--to", url, "--table", "recs", "--append", "-k", "3", "--json"],
    ):
        said = call(*command)
        assert said.exit_code == 0, said.stderr
        outputs += [said.stdout, said.stderr]
    assert "nothing to resume" in outputs[3]
    assert f"wrote 120 recommendations for 40 users to table recs of {postgres.shown}" in outputs[-4]
    assert json.loads(outputs[-2]) | {"run": ""} == {"run": "", "to": postgres.shown, "table": "recs", "users": 1, "rows": 3}
    closed = url.replace(str(postgres.port), "9")
    for command in (
        [*train[:1], postgres.url(password=f"wrong {PASSWORD}"), *train[2:]],
        [*train[:1], closed, *train[2:]],
        [*train[:1], url.replace("/postgres", "/nothing"), *train[2:]],
        [*train[:1], url.replace("@127", "127"), *train[2:]],
        [*train[:1], url + "?nonsense=1", *train[2:]],
        [*train[:1], url, "--table", "nothing"],
        ["audit", url, "--set", "table=public.clicks", "--ask", "questions.csv"],
        ["audit", url, "--set", "table=public.clicks"],
        ["tune", url, "--set", "table=public.clicks"],
        ["train", url],
        ["recommend", folder, "--all-users", "--to", url, "--table", "recs"],
        ["recommend", folder, "--all-users", "--to", closed, "--table", "recs", "--json"],
        ["recommend", folder, "--all-users", "--out", url],
        ["recommend", url, "--user", "7"],
    ):
        said = call(*command)
        assert said.exit_code == 2, said.output
        outputs += [said.stdout, said.stderr]
    assert "password authentication failed" in outputs[-28] + outputs[-27]
    assert not [text for text in outputs if TOKEN in text]
    assert leaks(tmp_path) == []
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) >= 5


def test_a_run_from_a_database_is_resumed_by_the_same_command(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.sql("CREATE TABLE clicks (user_id bigint, item_id text)")
    pairs = ", ".join(f"({n % 30}, 'i{n * 7 % 23}')" for n in range(600))
    database.sql(f"INSERT INTO clicks VALUES {pairs}")
    common = ["--table", "clicks", "--dim", "4", "--epochs", "4", "--engine", "plain", "--checkpoint-epochs", "1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert call("train", database.url, *common, "--out", whole).exit_code == 0
    with monkeypatch.context() as interrupted:
        seen = []

        def stop(self: Progress, record: Any) -> None:
            seen.append(record)
            if len(seen) == 3:
                raise KeyboardInterrupt

        interrupted.setattr(Progress, "on_epoch", stop)
        assert call("train", database.url, *common, "--out", broken).exit_code == 130
    said = call("train", database.url, *common, "--out", broken, "--resume")
    assert said.exit_code == 0, said.stderr
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert leaks(tmp_path) == []
    said = call("train", database.url, *common[2:], "--query", "SELECT * FROM clicks", "--out", broken, "--resume")
    assert said.exit_code == 2
    assert "was started with query = None" in said.stderr


@only_postgresql
def test_a_million_rows_in_and_recommendations_out(database: Database, tmp_path: Path) -> None:
    database.sql(
        "CREATE TABLE clicks AS SELECT hashint8(g) & 16383 AS user_id, 'i' || ((hashint8(g + 10000000) & 2047)) AS item_id, "
        "to_timestamp(1.7e9 + g) AS happened FROM generate_series(1, 1000000) g"
    )
    ((pairs, users, items),) = database.sql(
        "SELECT count(DISTINCT (user_id, item_id)), count(DISTINCT user_id), count(DISTINCT item_id) FROM clicks"
    )
    options = ["--time-column", "happened", "--dim", "4", "--epochs", "1", "--sampler", "uniform", "--split", "leave-one-out"]
    said = call("train", database.url, "--table", "clicks", *options, "--out", tmp_path / "run", "--json")
    assert said.exit_code == 0, said.stderr
    run = json.loads(said.stdout)
    data = run["data"]
    assert (data["users"], data["items"]) == (users, items)
    assert data["train"] + data["valid"] + data["test"] == pairs
    assert any(note.startswith(f"merged {1_000_000 - pairs:,} repeated pairs") for note in data["notes"])
    said = call("recommend", tmp_path / "run", "--all-users", "--to", database.url, "--table", "recs", "-k", "3", "--json")
    assert said.exit_code == 0, said.stderr
    assert json.loads(said.stdout)["rows"] == 3 * users
    ((written, per_user, highest),) = database.sql("SELECT count(*), count(DISTINCT user_id), max(rank) FROM recs")
    assert (written, per_user, highest) == (3 * users, users, 3)
    assert database.sql("SELECT count(*) FROM recs JOIN clicks USING (user_id, item_id)") == [(0,)]  # nothing they had
