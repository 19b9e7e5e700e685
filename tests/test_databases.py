"""Databases as sources and sinks: real SQLite and DuckDB files, and a PostgreSQL server that the tests start themselves.

The oracle of reading is the same rows in a Parquet file; tables are made and looked at with the databases' own drivers.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from postgres_server import PASSWORD, TOKEN, Server, programs, server
from typer.testing import CliRunner, Result

from srns.cli import app
from srns.databases import addresses, shown
from srns.datasets import load
from srns.errors import ConfigError, DataError
from srns.readers import read
from srns.streams import Gathering

duckdb = pytest.importorskip("duckdb", reason="srns[sql] is not installed: no duckdb")
psycopg = pytest.importorskip("psycopg", reason="srns[sql] is not installed: no psycopg")

WHEN = [datetime(2026, 1, day, 12, 30, 0, 125) for day in range(1, 7)]
CLICKS = pl.DataFrame(
    {
        "user_id": [1, 2, 1, 3, 2, 1],
        "item_id": ["b", 'a"; --', "é,\n", "b", "b", "b"],
        "rating": [5.0, 1.5, 4.0, 3.0, 2.0, 4.5],
        "created at": WHEN,
    }
)
TYPES = {pl.Int64: "bigint", pl.String: "text", pl.Float64: "double precision", pl.Datetime("us"): "timestamp"}
RECS = pl.DataFrame(
    {"user_id": [1, 1, 2], "item_id": ["b", 'a"\n,', "\\."], "score": [1.5, 1 / 3, -2e-7], "rank": [1, 2, 1]},
    schema_overrides={"score": pl.Float32, "rank": pl.Int32},
)
OLD = [(9, "old", 0.5, 1)]


class Database(NamedTuple):
    """One database under test: its URL, and SQL on it through its own driver."""

    kind: str
    url: str
    sql: Callable[..., list[tuple[Any, ...]]]

    def make(self, frame: pl.DataFrame, table: str = "clicks") -> None:
        name = addresses.quoted_table(table)
        columns = ", ".join(f'"{column}" {TYPES[dtype]}' for column, dtype in frame.schema.items())
        self.sql(f"CREATE TABLE {name} ({columns})")
        mark = "%s" if self.kind == "postgresql" else "?"
        for row in frame.rows():
            values = [str(value) if self.kind == "sqlite" and isinstance(value, datetime) else value for value in row]
            self.sql(f"INSERT INTO {name} VALUES ({', '.join([mark] * len(row))})", values)

    def rows(self, table: str = "recs") -> list[tuple[Any, ...]]:
        found = self.sql(f"SELECT user_id, item_id, score, rank FROM {addresses.quoted_table(table)}")
        return sorted((user, item, float(np.float32(score)), rank) for user, item, score, rank in found)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    found = programs()
    if isinstance(found, str):
        pytest.skip(found)
    with server(found) as running:
        yield running


def _connect(kind: str, where: Any) -> Any:
    if kind == "postgresql":
        return psycopg.connect(host="127.0.0.1", port=where, user="postgres", password=PASSWORD, autocommit=True)
    return sqlite3.connect(where, isolation_level=None) if kind == "sqlite" else duckdb.connect(where)


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    kind = str(request.param)
    if kind == "postgresql":
        running: Server = request.getfixturevalue("postgres")
        where: Any = running.port
        url = running.url()
        with _connect(kind, where) as connection:
            connection.execute("DROP SCHEMA IF EXISTS public CASCADE; DROP SCHEMA IF EXISTS shop CASCADE; CREATE SCHEMA public")
    else:
        where = str(tmp_path / "shop.db")
        url = f"{kind}:///{where}"

    def sql(statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        with closing(_connect(kind, where)) as connection:
            cursor = connection.execute(statement, values) if values else connection.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    return Database(kind, url, sql)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from srns import streams
    from srns.databases import duckdb as duck
    from srns.databases import postgresql, sqlite

    monkeypatch.setattr(streams, "BATCH", 1)
    monkeypatch.setattr(postgresql, "BATCH_BYTES", 40)
    monkeypatch.setattr(sqlite, "BATCH", 2)
    monkeypatch.setattr(duck, "BATCH", 2)


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


# Addresses


anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
hosts = st.sampled_from(["", "db", "10.0.0.1:5432", "[::1]:5432", "a:1,b:2", "db:secret"])


@settings(max_examples=200, deadline=None)
@given(user=anything, password=anything, host=hosts, database=anything, encoded=st.booleans(), after=st.booleans())
def test_no_password_is_ever_shown(user: str, password: str, host: str, database: str, encoded: bool, after: bool) -> None:
    secret = f"{password}{TOKEN}{password}"
    as_written = quote(secret, safe="") if encoded else secret
    place = f"{host}/{quote(database, safe='')}" + (f"?sslmode=require&password={quote(secret, safe='')}" if after else "")
    for scheme in ("postgresql", "postgres", "PostgreSQL+psycopg", "mysql", "sqlite", "duckdb"):
        for slashes in ("://", ":/", ":"):
            url = f"{scheme}{slashes}{quote(user, safe='') if encoded else user}:{as_written}@{place}"
            if not addresses.is_url(url):  # nothing that could be taken for a database
                assert scheme == "mysql"
                continue
            if scheme in ("sqlite", "duckdb") and url.startswith(f"{scheme}:///"):  # the path of a file, which has no password
                continue
            assert TOKEN not in shown(url), url
            assert TOKEN not in repr(shown(url))
            with pytest.raises((ConfigError, DataError)) as caught:
                read(url)
            assert TOKEN not in str(caught.value)
    assert TOKEN not in repr(addresses.parse(f"postgresql://u:{quote(secret, safe='')}@h/d"))


def test_urls_are_taken_apart() -> None:
    parsed = addresses.parse("postgresql://an%40n:p%2Fw:x@db:5433/my%20shop?sslmode=require&sslpassword=s")
    assert parsed.options == {
        "user": "an@n", "password": "p/w:x", "host": "db", "port": "5433", "dbname": "my shop", "sslmode": "require",
        "sslpassword": "s",
    }  # fmt: skip
    assert parsed.name == "postgresql://db:5433/my%20shop"
    assert addresses.parse("postgres://u:p@w@[::1]/d").options == {"user": "u", "password": "p@w", "host": "::1", "dbname": "d"}
    assert addresses.parse("postgresql:///d?host=/run/postgresql").name == "postgresql:///d?host=/run/postgresql"
    assert addresses.parse("postgresql+psycopg2://a:1,b:2/d").options == {"host": "a,b", "port": "1,2", "dbname": "d"}
    assert addresses.parse("sqlite:///shop@home?.db").database == "shop@home?.db"
    assert addresses.parse("duckdb:////data/shop.db").database == "/data/shop.db"
    assert shown("./clicks@home.csv") == "./clicks@home.csv"
    assert addresses.parse("postgresql://u:pw@h/d").scrubbed("dsn pw, postgresql://u:pw@h") == "dsn ***, postgresql://h"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://u:pw@h/d", "mysql:// is no database that can be used here; expected postgresql://"),
        ("sqlite://", "sqlite:// needs a file"),
        ("sqlite://clicks.db", "sqlite:// needs a file"),
        ("duckdb:///md:shop?motherduck_token=pw", "only DuckDB files"),
        ("postgresql:/u:pw@h/d", "not the address of a database after postgresql:"),
        ("postgresql://u:pw", "the port is a number"),
        ("postgresql://h/d?pw", "a value is missing"),
        ("sqlite:///nowhere.db", "sqlite:///nowhere.db: no such file"),
        ("duckdb:///nowhere.db", "duckdb:///nowhere.db: no such file"),
    ],
)
def test_wrong_addresses_are_named(url: str, expected: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        read(url, table="clicks")
    assert expected in str(caught.value)
    assert "pw" not in str(caught.value)


def test_what_to_read_must_be_said_and_files_have_no_tables(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("user,item\n1,2\n")
    for options in ({}, {"table": "a", "query": "SELECT 1"}):
        with pytest.raises(ConfigError, match=r"--table NAME or --query SQL \(in Python table=, query=\)"):
            read("sqlite:///clicks.db", **options)
    with pytest.raises(ConfigError, match="table is for databases"):
        read(tmp_path / "clicks.csv", table="clicks")
    said = call("train", tmp_path / "clicks.csv", "--query", "SELECT 1")
    assert said.exit_code == 2
    assert "--query is for databases, named by a URL" in said.stderr
    with pytest.raises(ConfigError, match=r"table 'a\.\.b': expected NAME or SCHEMA\.NAME"):
        read("sqlite:///clicks.db", table="a..b")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, url in (("psycopg", "postgresql://h/d"), ("duckdb", "duckdb:///f"), ("pyarrow", "duckdb:///f")):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, name, None)
            with pytest.raises(ConfigError, match=r"needs more packages: pip install 'srns\[sql\]'"):
                read(url, table="clicks")


# Reading


def same_as_file(database: Database, frame: pl.DataFrame, tmp_path: Path, **options: Any) -> None:
    frame.write_parquet(tmp_path / "clicks.parquet")
    expected = read(tmp_path / "clicks.parquet", **options)
    data = read(database.url, table="clicks", **options)
    assert data.fingerprint() == expected.fingerprint()
    assert data.notes == expected.notes
    for name in ("weight", "time"):
        left, right = getattr(data, name), getattr(expected, name)
        assert (left is None) == (right is None)
        if left is not None:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


@pytest.mark.usefixtures("small_batches")
def test_a_table_is_read_as_the_same_rows_in_a_file(database: Database, tmp_path: Path) -> None:
    database.make(CLICKS)
    same_as_file(database, CLICKS, tmp_path, time="created at")
    same_as_file(database, CLICKS, tmp_path, weight=False, time=False)
    same_as_file(database, CLICKS, tmp_path, min_weight=3, min_user=2, time="created at")
    loaded: Any = load(database.url, table="clicks")
    assert loaded.item_ids.labels.to_list() == sorted(set(CLICKS["item_id"]))


def test_a_database_is_closed_before_its_rows_are_put_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What DuckDB remembers of a file would stand beside them."""
    file = str(tmp_path / "clicks.db")
    with duckdb.connect(file) as shop:
        shop.execute("CREATE TABLE clicks AS SELECT 1 AS user_id, 2 AS item_id")
    order = Gathering.interactions

    def once_closed(self: Gathering) -> Any:
        with duckdb.connect(file):  # for writing, which nobody may who is still reading
            return order(self)

    monkeypatch.setattr(Gathering, "interactions", once_closed)
    assert len(read(f"duckdb:///{file}", table="clicks")) == 1


def test_more_types_of_postgresql(postgres: Server) -> None:
    rows = """SELECT * FROM (VALUES
        (1::smallint, '00000000-0000-0000-0000-000000000001'::uuid, 2.5::numeric, true, '2026-01-01 00:00:00+01'::timestamptz),
        (2::smallint, '00000000-0000-0000-0000-000000000002'::uuid, 3::numeric, false, '2026-01-02 00:00:00.5+00'::timestamptz)
        ) AS rows (uid, sku, rating, liked, "when")"""
    data = read(postgres.url(), query=rows)
    assert data.item_ids.label(0) == "00000000-0000-0000-0000-000000000001"
    assert data.weight is not None
    assert data.weight.tolist() == [2.5, 3.0]
    assert data.time is not None
    assert data.time.tolist() == [1767222000_000000, 1767312000_500000]
    liked = read(postgres.url(), query=rows, weight="liked", time=False)
    assert liked.weight is not None
    assert liked.weight.tolist() == [1.0, 0.0]
    day = read(postgres.url(), query="SELECT 1 AS u, 2.0::numeric AS i, '2026-01-01'::date AS date")
    assert day.time is not None
    assert day.time.tolist() == [1767225600_000000]
    for wrong in ("'{1}'::int[]", "'x'::bytea", "'{}'::jsonb", "'1 day'::interval"):
        with pytest.raises(DataError, match=r"column 'u' is (int4\[\]|bytea|jsonb|interval), expected"):
            read(postgres.url(), query=f"SELECT {wrong} AS u, 1 AS i")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"user_id": None}, r"user id in column 'user_id' is missing"),
        ({"item_id": None}, r"item id in column 'item_id' is missing"),
        ({"rating": None}, r"weight in column 'rating' is missing, expected a number"),
    ],
)
@pytest.mark.usefixtures("small_batches")
def test_missing_values_are_named_as_in_files(database: Database, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    ((column, value),) = change.items()
    frame = CLICKS.with_columns(pl.when(pl.int_range(6) == 4).then(value).otherwise(pl.col(column)).alias(column))
    database.make(frame)
    frame.write_parquet(tmp_path / "clicks.parquet")
    for source, options in ((tmp_path / "clicks.parquet", {}), (database.url, {"table": "clicks"})):
        with pytest.raises(DataError, match=rf"row 4 \(from 0\): {message}"):
            read(source, time=False, **options)


def test_columns_are_chosen_as_in_files(database: Database) -> None:
    database.make(CLICKS)
    with pytest.raises(DataError, match="no column 'uid' for the user"):
        read(database.url, table="clicks", user="uid")
    with pytest.raises(DataError, match="no item column recognised; found 'user_id', 'n'"):
        read(database.url, query="SELECT user_id, count(*) AS n FROM clicks GROUP BY 1")
    if database.kind == "postgresql":  # the others rename the second
        with pytest.raises(DataError, match="column name 'user_id' occurs more than once; rename one with AS"):
            read(database.url, query="SELECT user_id, user_id, item_id FROM clicks")
    with pytest.raises(DataError, match="no rows, expected at least one interaction"):
        read(database.url, query="SELECT user_id, item_id FROM clicks WHERE user_id < 0")
    query = "SELECT user_id AS who, item_id AS what, rating FROM clicks -- all; of them\n ;"
    data = read(database.url, query=query, user="who", item=1)
    assert len(data) == 5
    assert data.weight is not None


def test_names_of_tables_are_names_and_nothing_else(database: Database) -> None:
    for table in ('a"b', "Clicks; DROP TABLE clicks --", '"a.b"', "名"):
        database.make(CLICKS, table)
        assert len(read(database.url, table=table)) == 5
    schema = "main" if database.kind != "postgresql" else "shop"
    if database.kind == "postgresql":
        database.sql("CREATE SCHEMA shop")
    database.make(CLICKS, f"{schema}.visits")
    assert len(read(database.url, table=f"{schema}.visits")) == 5
    for table in ("nothing", 'visits" --', "(SELECT 1 AS u, 2 AS i)"):
        with pytest.raises(DataError, match=r"(?i)(no such table|does not exist)"):
            read(database.url, table=table)


def test_reading_changes_nothing(database: Database) -> None:
    database.make(CLICKS)
    for query in (
        "DELETE FROM clicks RETURNING user_id, item_id",
        "SELECT 1 AS u, 2 AS i) AS s; DROP TABLE clicks; SELECT * FROM (SELECT 1",
        "SELECT 1 AS u, 2 AS i) AS s; COMMIT; DROP TABLE clicks; SELECT * FROM (SELECT 1 AS u, 2 AS i",
        "SELECT 1 AS u, 2 AS i) AS s; ROLLBACK; SELECT * FROM (SELECT 1 AS u, 2 AS i",
        "WITH gone AS (DELETE FROM clicks RETURNING *) SELECT user_id, item_id FROM gone",
        "DROP TABLE clicks",
        "SELECT nothing",
    ):
        with pytest.raises(DataError, match="query: "):
            read(database.url, query=query)
    assert database.sql("SELECT count(*) FROM clicks") == [(6,)]
    if database.kind == "postgresql":
        database.sql("CREATE FUNCTION sly() RETURNS int LANGUAGE sql AS 'DELETE FROM clicks; SELECT 1'")
        with pytest.raises(DataError, match="read-only transaction"):
            read(database.url, query="SELECT sly() AS u, 1 AS i")


def test_a_second_statement_is_refused_whatever_it_does(database: Database, tmp_path: Path) -> None:
    database.make(CLICKS)
    other = tmp_path / "other"
    copied = f"COPY clicks TO '{other}'" if database.kind == "duckdb" else f"ATTACH '{other}' AS other"
    with pytest.raises(
        DataError, match=r"query: .*" + ("one statement" if database.kind == "sqlite" else "expected one SELECT")
    ):
        read(database.url, query=f"SELECT 1 AS u, 2 AS i) AS s; {copied}; SELECT * FROM (SELECT 1 AS u, 2 AS i")
    assert not other.exists()
    data = read(database.url, query="SELECT user_id, ';' AS sku /* ; */ FROM clicks -- ;")
    assert data.item_ids.labels.to_list() == [";"]


def refusal(url: str, **options: Any) -> str | None:
    try:
        read(url, **options)
    except DataError as error:
        return str(error)
    return None


def test_every_type_of_duckdb_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "types.db"
    with closing(duckdb.connect(str(path))) as connection:
        connection.execute("CREATE TABLE every AS SELECT 1 AS item, * FROM test_all_types() WHERE int IS NOT NULL")
        names = [name for name in connection.sql("FROM every").columns if name != "item"]
    refused = set()
    for name in names:
        for role, query in (("user", f'"{name}", 1 AS item'), ("time", f'"{name}", 1 AS u, 1 AS item')):
            said = refusal(f"duckdb:///{path}", query=f"SELECT {query} FROM every", **{role: name})
            if said is not None:
                refused.add((name, role))
                assert re.search(rf"types\.db, query(: |, row \d ).*column '{name}'", said)
    assert {(name, "user") for name in ("interval", "union", "uhugeint", "blob")} < refused
    assert {(name, "time") for name in ("timestamp", "timestamp_s", "timestamp_tz", "date")} < refused  # years beyond 9999
    assert not {("bigint", "user"), ("ubigint", "user"), ("varchar", "user"), ("uuid", "user"), ("int", "time")} & refused


def test_times_without_end_are_no_times_of_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "times.db"
    duckdb.connect(str(path)).close()
    for kind in ("timestamp", "timestamptz", "timestamp_ns", "timestamp_s", "date"):
        good = f"SELECT 1 AS u, 1 AS i, '2026-01-01'::{kind} AS time"
        assert read(f"duckdb:///{path}", query=good).time is not None
        for value in ("infinity", "-infinity"):
            with pytest.raises(
                DataError, match=r"query: row 1 \(from 0\): time in column 'time' is infinity or far away, expected"
            ):
                read(f"duckdb:///{path}", query=f"{good} UNION ALL SELECT 2, 2, '{value}'::{kind}")


def test_values_of_postgresql_that_no_file_has(postgres: Server) -> None:
    marked = read(postgres.url(), query="SELECT U&'\\FEFFa' AS item, 1 AS u UNION ALL SELECT U&'\\FEFF\\FEFFb', 2")
    assert marked.item_ids.labels.to_list() == ["\ufeffa", "\ufeff\ufeffb"]
    for kind in ("timestamp", "timestamptz", "date"):
        for value, found in (("infinity", "infinity"), ("-infinity", "-infinity"), ("0044-03-15 BC", "0044-03-15.* BC")):
            query = f"SELECT 1 AS u, 1 AS i, '2026-01-01'::{kind} AS time UNION ALL SELECT 2, 2, '{value}'::{kind}"
            with pytest.raises(
                DataError, match=rf"query: row 1 \(from 0\): time in column 'time' is '{found}', expected one of"
            ):
                read(postgres.url(), query=query)
    with pytest.raises(DataError, match="time in column 'time' is missing"):
        read(postgres.url(), query="SELECT 1 AS u, 1 AS i, NULL::date AS time")


def test_sqlite_columns_of_several_types(tmp_path: Path) -> None:
    path = tmp_path / "odd.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE odd (user, item, real_text, blob)")
        connection.executemany(
            "INSERT INTO odd VALUES (?, ?, ?, ?)", [(1, 1, 1.5, b"x"), ("x", 2.0, "a", b"y"), ("1", 3, 2, b"z")]
        )
    data = read(f"sqlite:///{path}", query="SELECT user, item FROM odd")
    assert data.user_ids.labels.to_list() == ["1", "x"]  # as of files: among text, integers are text
    assert data.item_ids.labels.to_list() == [1, 2, 3]
    with pytest.raises(
        DataError, match=r"odd\.db, table odd: column 'real_text' holds integers and real numbers and text in different rows"
    ):
        read(f"sqlite:///{path}", table="odd", user="real_text", item="item")
    with pytest.raises(DataError, match="user column 'blob' is Binary; expected one of float, integer, text"):
        read(f"sqlite:///{path}", table="odd", user="blob", item="item")
    path.write_bytes(b"no database at all, but some bytes of text" * 100)
    with pytest.raises(DataError, match="file is not a database"):
        read(f"sqlite:///{path}", table="odd")
