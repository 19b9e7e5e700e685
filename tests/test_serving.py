"""The service over real HTTP: its answers beside the Recommender's, hostile requests, a new model under load, the end."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from srns import artifacts
from srns.cli import app as cli
from srns.errors import ConfigError, DataError
from srns.ids import IdMap
from srns.presets import make_config
from srns.recommender import Recommender
from srns.runs import train_run
from srns.serving import Limits, Settings, answers, make_app
from srns.serving.guard import RefusalError
from srns.serving.settings import require
from srns.serving.state import Served, load
from srns.serving.titles import Titles

ODD = ["a/b", "é #1", "50% off?", "../../etc/passwd", "x\\y", "a+b c", "日本", "recommendations", "random"]
USERS = [*ODD, *(f"u{n:02d}" for n in range(40))]
ITEMS = ["film/1", "film é", *(f"i{n:02d}" for n in range(30))]
SHORT = 2.0  # seconds that clients have
Start = Callable[..., Any]


def rows(seed: int = 0) -> list[tuple[str, str, int]]:
    chance = random.Random(seed)
    return [(user, item, chance.randrange(10**6)) for user in USERS for item in chance.sample(ITEMS, chance.randint(5, 15))]


def trained(folder: Path, seed: int = 0, **fields: Any) -> Path:
    data = folder / "clicks.csv"
    with data.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("user_id", "item_id", "timestamp"), *rows()])
    values = {"dim": 4, "epochs": 3, "engine": "plain", "threads": 1, "seed": seed, **fields}
    train_run(data, make_config(values), out=folder / f"run-{seed}")
    return folder / f"run-{seed}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="module")
def table(run: Path) -> Path:
    path = run.parent / "items.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        body = [(item, f"The {item}", 1990 + n, "") for n, item in enumerate(ITEMS[1:])]
        csv.writer(file).writerows([("item_id", "title", "year", "remark"), *body, ("nobody's", "Unknown", 1, "")])
    return path


@pytest.fixture(scope="module")
def model(run: Path) -> Recommender:
    return Recommender.load(run)


@pytest.fixture(scope="module")
def service(serve: Start, run: Path, table: Path) -> Any:
    return serve(run, "--items", table, "--client-seconds", SHORT)


def get(service: Any, path: str, **options: Any) -> Any:
    return httpx.get(service.url + path, timeout=30, **options)


def post(service: Any, **content: Any) -> Any:
    return httpx.post(f"{service.url}/recommendations", json=content, timeout=30)


def refused(answer: Any) -> str:
    """The reason in an answer that refuses as all should."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert set(content) == {"error"}
    assert "Traceback" not in answer.text
    return str(content["error"])


@pytest.mark.parametrize("user", [*ODD[:3], *ODD[4:], "u07"])
def test_answers_are_those_of_the_recommender(service: Any, model: Recommender, user: str) -> None:
    answer = get(service, f"/users/{quote(user, safe='')}/recommendations?k=5&why=2").json()
    ids, scores = model.recommend(user, 5)
    assert answer["user"] == user
    assert [each["item"] for each in answer["items"]] == ids.tolist()
    assert [each["score"] for each in answer["items"]] == pytest.approx(scores.tolist(), abs=1e-5)
    for each in answer["items"]:
        why, shares = model.explain(user, each["item"], 2)
        kept = [(label, share) for label, share in zip(why.tolist(), shares.tolist(), strict=True) if round(share, 6) > 0]
        assert [reason["item"] for reason in each["why"]] == [label for label, _ in kept]
        assert [reason["share"] for reason in each["why"]] == pytest.approx([share for _, share in kept], abs=1e-4)
    seen = {item for name, item, _ in rows() if name == user}
    assert not seen & {each["item"] for each in answer["items"]}
    everything = get(service, f"/users/{quote(user, safe='')}/recommendations?k=100&exclude_seen=false").json()
    assert {each["item"] for each in everything["items"]} == set(ITEMS)


def test_dots_between_slashes_are_an_id_where_it_is_encoded(service: Any, model: Recommender) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 10) as raw:  # clients tidy such paths up
        path = f"/users/{quote('../../etc/passwd', safe='')}/recommendations?k=3"
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        status, content = whole(raw)
    assert status == 200
    assert [each["item"] for each in json.loads(content)["items"]] == model.recommend("../../etc/passwd", 3)[0].tolist()


def test_a_batch_of_users_and_an_anonymous_one(service: Any, model: Recommender) -> None:
    found = post(service, users=USERS, k=4).json()["recommendations"]
    assert [each["user"] for each in found] == USERS
    assert [[item["item"] for item in each["items"]] for each in found] == model.recommend(USERS, 4)[0].tolist()
    liked = ["i03", "film/1", "i10"]
    (anonymous,) = post(service, items=liked, k=6, why=1, exclude=["i01"], candidates=ITEMS[:20]).json()["recommendations"]
    ids, scores = model.recommend_for(liked, 6, exclude=["i01"], candidates=ITEMS[:20])
    assert anonymous["user"] is None
    assert [each["item"] for each in anonymous["items"]] == ids.tolist()
    assert [each["score"] for each in anonymous["items"]] == pytest.approx(scores.tolist(), abs=1e-5)
    assert {reason["item"] for each in anonymous["items"] for reason in each["why"]} <= set(liked)


def test_people_who_are_not_known(service: Any, model: Recommender) -> None:
    assert "'nobody'" in refused(answer := get(service, "/users/nobody/recommendations"))
    assert answer.status_code == 404
    found = get(service, "/users/nobody/recommendations?unknown=popular&k=5").json()
    assert found["unknown"]
    assert [each["item"] for each in found["items"]] == model.recommend("nobody", 5, unknown="popular")[0].tolist()
    assert post(service, users=["u01", "nobody"]).status_code == 404
    mixed = post(service, users=["u01", "nobody"], unknown="popular", k=5).json()["recommendations"]
    assert [each["items"][0]["item"] for each in mixed] == [model.recommend("u01", 1)[0][0], found["items"][0]["item"]]
    assert post(service, items=["no such film"]).status_code == 404


def test_similar_items(service: Any, model: Recommender) -> None:
    for item in ("film/1", "film é", "i07"):
        answer = get(service, f"/items/{quote(item, safe='')}/similar?k=3").json()
        ids, cosines = model.similar_items(item, 3)
        assert answer["item"] == item
        assert [each["item"] for each in answer["similar"]] == ids.tolist()
        assert [each["similarity"] for each in answer["similar"]] == pytest.approx(cosines.tolist(), abs=1e-5)
    assert get(service, "/items/nothing/similar").status_code == 404


def test_titles_and_what_users_had_with_the_latest_first(service: Any) -> None:
    answer = get(service, f"/users/{quote('a/b', safe='')}/items?limit=1000").json()
    latest = sorted(((when, item) for user, item, when in rows() if user == "a/b"), reverse=True)
    assert [each["item"] for each in answer["items"]] == [item for _, item in latest]
    assert (answer["order"], answer["total"]) == ("time", len(latest))
    titles = {
        each["item"]: each for each in get(service, "/users/u01/recommendations?k=100&exclude_seen=false").json()["items"]
    }
    assert titles["film/1"]["title"] is None  # not in the table
    assert titles["i00"] | {"score": 0} == {"item": "i00", "title": "The i00", "about": "1991", "score": 0}


def test_search(service: Any) -> None:
    assert get(service, "/users?prefix=u1").json() == {"users": [f"u1{n}" for n in range(10)], "more": False}
    assert get(service, "/users?limit=3").json() == {"users": sorted(USERS)[:3], "more": True}
    assert get(service, "/users?prefix=nobody").json() == {"users": [], "more": False}
    assert get(service, "/users/random").json()["user"] in USERS


def test_health_and_metrics_and_request_ids(service: Any) -> None:
    health = get(service, "/health").json()
    assert {name: health[name] for name in ("status", "users", "items", "stale", "titles", "explains", "compares")} == {
        "status": "ok", "users": len(USERS), "items": len(ITEMS), "stale": False, "titles": True, "explains": True,
        "compares": True,
    }  # fmt: skip

    def count() -> float:
        line = 'srns_requests_total{method="GET",route="/items/{item}/similar",status="404"}'
        found = [each for each in get(service, "/metrics").text.splitlines() if each.startswith(line)]
        return float(found[0].rsplit(" ", 1)[1]) if found else 0.0

    before = count()
    answer = get(service, "/items/none/similar", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert get(service, "/health", headers={"x-request-id": "no\tgood"}).headers["x-request-id"] != "no\tgood"
    assert count() == before + 1
    text = get(service, "/metrics").text
    assert f"srns_users {float(len(USERS))}" in text
    assert "srns_model_reload_failures_total 0.0" in text
    assert 'srns_request_seconds_bucket{le="0.02",route="/health"}' in text


def test_the_log_is_json_and_the_command_says_where(service: Any) -> None:
    get(service, "/users/%0A%22evil/recommendations", headers={"x-request-id": "look-here"})
    time.sleep(0.2)
    lines = [json.loads(line) for line in service.log.read_text(encoding="utf-8").splitlines()]
    (mine,) = [line for line in lines if line.get("id") == "look-here"]
    assert (mine["event"], mine["status"], mine["route"]) == ("request", 404, "/users/{user}/recommendations")
    assert mine["path"] == '/users/\n"evil/recommendations'
    assert mine["ms"] < 5_000
    assert service.url.startswith("http://127.0.0.1:")


HOSTILE = [
    *(f"/users/u01/recommendations?k={k}" for k in ("0", "-1", "501", "1e9", "NaN", "inf", "9" * 400, "", "1.5", "%00")),
    *(f"/users/u01/recommendations?{rest}" for rest in ("why=-1", "why=10000", "exclude_seen=perhaps", "unknown=all")),
    *(f"/items/i01/similar?k={k}" for k in ("0", "-5", "100000000000000000000", "NaN")),
    *(f"/users/{name}/recommendations" for name in ("%00", "%FF%FE", "%F0%9F%92%A9", "", "/", "a" * 9000)),
    *(f"/users/{name}/recommendations" for name in ("..", "%2e%2e%2f", "u01%20", "%0Au01")),
    *("/users?limit=0", "/users?limit=1000000", f"/users?prefix={'a' * 300}", "/users/u01/items?limit=-3"),
    *("/users/u01", "/users/", "/items", "/..%2f..%2fetc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page.js/../run.json", "//"),
    *("/run.json", "/model.safetensors", "/static/../run.json", "/docs/", "/page.html", "/.env", "/page.css%00.js", "/redoc"),
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: path[:60])
def test_hostile_addresses_are_refused_with_a_reason(service: Any, path: str) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 10) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        status, content = whole(raw)
    assert 400 <= status < 500, (status, content)
    assert json.loads(content)["error"]
    assert b"Traceback" not in content


BODIES: list[bytes] = [
    b"", b"{", b"[]", b"null", b"{}", b'{"users": []}', b'{"users": "u01"}', b'{"users": ["u01"], "items": ["i01"]}',
    b'{"users": ["u01"], "k": NaN}', b'{"users": ["u01"], "k": 1e400}', b'{"users": ["u01"], "k": -1}',
    b'{"users": ["u01"], "k": true}', b'{"users": ["u01"], "k": 10000}', b'{"users": [NaN]}', b'{"users": [1.5]}',
    b'{"users": [null]}', b'{"users": [["u01"]]}',
    b'{"users": ["u01"], "evil": 1}', b'{"users": ["\\ud800"]}', b'{"items": ["\\udfff"]}',
    b'{"users": ["\\ud800"], "unknown": "popular"}', b'{"users": [' + b"9" * 5000 + b"]}", b"[" * 100_000,
    b'{"users": ' + json.dumps(["u01"] * 201).encode() + b"}",
    b'{"users": ' + json.dumps(["u01"] * 11).encode() + b', "why": 1}',
    b'{"items": []}', b'{"items": ["i01"], "candidates": []}', b'{"items": ["i01"], "exclude": ["none"]}',
    b"\xff\xfe", b"\0" * 100,
    b'{"users": ["u01"], "unknown": "x"}', b'{"users": ["' + b"a" * 300_000 + b'"]}',
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:40]))
def test_hostile_bodies_are_refused_with_a_reason(service: Any, body: bytes) -> None:
    answer = httpx.post(
        f"{service.url}/recommendations", content=body, headers={"content-type": "application/json"}, timeout=30
    )
    assert refused(answer)


def test_other_methods_and_content(service: Any) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = httpx.request(method, f"{service.url}/health", timeout=30)
        assert answer.status_code == 405
        assert refused(answer)
        assert answer.headers["allow"] == "GET"
    assert httpx.request("PROPFIND", f"{service.url}/", timeout=30).status_code in (400, 405)
    assert refused(httpx.post(f"{service.url}/recommendations", content=b"<xml/>", headers={"content-type": "text/xml"}))
    form = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d sends
    answer = httpx.post(f"{service.url}/recommendations", content=b'{"users": ["u01"]}', headers=form)
    assert "content-type: application/json" in refused(answer)


def test_a_body_that_is_too_large(service: Any) -> None:
    large = b" " * 10_000_000
    answer = httpx.post(f"{service.url}/recommendations", content=large, timeout=30)
    assert answer.status_code == 413
    assert "limit is 262,144" in refused(answer)
    answer = httpx.post(f"{service.url}/recommendations", content=iter([large[:100_000]] * 100), timeout=30)  # no length
    assert answer.status_code == 413
    assert refused(answer)


def whole(raw: socket.socket) -> tuple[int, bytes]:
    """Status and content of what comes until the server closes."""
    raw.settimeout(30)
    received = b""
    while part := raw.recv(65536):
        received += part
    head, _, content = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


SLOW = {
    "nothing": (b"", 408),
    "half a line": (b"GET /hea", 408),
    "half the headers": (b"GET /health HTTP/1.1\r\nhost: x\r\n", 408),
    "half a body": (b"POST /recommendations HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{", 408),
    "no HTTP": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03 hello\r\n\r\n", 400),
    "no HTTP either": (b"hello there\r\n\r\n", 400),
    "endless address": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
    "endless header": (b"GET / HTTP/1.1\r\nx: " + b"a" * 600_000, 431),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000, 431),
    "two lengths": (b"POST /recommendations HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}", 400),
    "a length below zero": (b"POST /recommendations HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n{}", 400),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_slow_and_broken_clients_are_told_why(service: Any, name: str) -> None:
    sent, expected = SLOW[name]
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", service.port), 10) as raw:
        raw.sendall(sent)
        status, content = whole(raw)
    assert (status, sorted(json.loads(content))) == (expected, ["error"])
    assert time.monotonic() - start < 20


def test_many_slow_clients_are_in_nobodys_way(service: Any) -> None:
    waiting = [socket.create_connection(("127.0.0.1", service.port), 10) for _ in range(100)]
    for raw in waiting:
        raw.sendall(b"GET /users/u01/recommendations HTTP/1.1\r\nx: ")
    assert get(service, "/users/u01/recommendations").status_code == 200
    for raw in waiting:
        raw.close()


def test_every_answer_forbids_what_pages_do_not_need(service: Any) -> None:
    for path in ("/", "/page.js", "/docs", "/health", "/nothing"):
        headers = get(service, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_the_interface_as_openapi_describes_it(service: Any) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis needs Python 3.11")
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    right, wrong = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    tried: Counter[tuple[str, Any]] = Counter()

    def check(operation: Any, mode: Any) -> None:
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=12, deadline=None, database=None, derandomize=True)
        def asked(case: Any) -> None:
            tried[operation.label, mode] += 1
            case.call_and_validate(timeout=30)

        asked()

    least: dict[tuple[str, Any], int] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        takes = bool([*operation.iter_parameters(), *operation.body])
        for mode in (right, wrong) if takes else (right,):  # without parameters, nothing can be wrong
            check(operation, mode)
            least[operation.label, mode] = 10 if takes else 1
    assert len(least) >= 13
    assert {key: tried[key] for key in least if tried[key] < least[key]} == {}
    assert '"level": "error"' not in service.log.read_text(encoding="utf-8")


def replace_run(folder: Path, source: Path) -> None:
    """As training does it: files first, run.json last."""
    for name in (artifacts.IDS, artifacts.INTERACTIONS, artifacts.MODEL, artifacts.RUN):
        shutil.copy(source / name, folder / f".{name}.part")
        (folder / f".{name}.part").replace(folder / name)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_new_model_under_load_a_broken_one_and_the_end(serve: Start, run: Path, tmp_path: Path) -> None:
    other = trained(tmp_path, seed=1)
    folder = tmp_path / "served"
    shutil.copytree(run, folder)
    service = serve(folder, "--reload-seconds", "0.1")
    expected = {
        str(artifacts.json_digest(artifacts.read_run(each)))[:12]: Recommender.load(each).recommend("u05", 5)[0].tolist()
        for each in (run, other)
    }
    assert len({tuple(each) for each in expected.values()}) == 2
    answered: list[tuple[int, str, list[str]]] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=30) as client:
            try:
                while not stop.is_set():
                    answer = client.get("/users/u05/recommendations?k=5")
                    items = [each["item"] for each in answer.json()["items"]]
                    answered.append((answer.status_code, answer.headers["x-model"], items))
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(answered) > 20)
        for source in (other, run, other):
            want = artifacts.json_digest(artifacts.read_run(source))[:12]
            replace_run(folder, source)
            until(lambda want=want: answered[-1][1] == want)  # type: ignore[misc]
        good = answered[-1][1]
        (folder / artifacts.MODEL).write_bytes((folder / artifacts.MODEL).read_bytes()[:-7])
        until(lambda: get(service, "/health").json()["stale"])
        before = reload_failures(service)  # a file may be looked at while it is written, and again when it is there
        assert before >= 1
        (folder / artifacts.RUN).write_text("{", encoding="utf-8")
        until(lambda: reload_failures(service) > before)
        assert get(service, "/health").json()["model"] == good
        replace_run(folder, run)
        until(lambda: not get(service, "/health").json()["stale"])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert {status for status, _, _ in answered} == {200}
    assert all(items == expected[version] for _, version, items in answered)  # never one model's header on another's list
    assert {version for _, version, _ in answered} == set(expected)
    end_while_a_request_runs(service)


def reload_failures(service: Any) -> float:
    found = re.search(r"^srns_model_reload_failures_total (\S+)", get(service, "/metrics").text, re.M)
    assert found is not None
    return float(found[1])


def end_while_a_request_runs(service: Any) -> None:
    """What has begun is finished, what comes later finds nobody."""
    body = b'{"users": ["u01"]}'
    with socket.create_connection(("127.0.0.1", service.port), 10) as raw:
        head = "POST /recommendations HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body[:5])
        time.sleep(0.3)
        service.process.terminate()

        def gone() -> bool:
            try:
                socket.create_connection(("127.0.0.1", service.port), 5).close()
            except ConnectionRefusedError:
                return True
            return False

        until(gone)
        assert service.process.poll() is None
        raw.sendall(body[5:])
        status, content = whole(raw)
    assert status == 200
    assert json.loads(content)["recommendations"][0]["user"] == "u01"
    assert service.process.wait(30) == 0
    assert "Traceback" not in service.log.read_text(encoding="utf-8")


def test_several_workers_share_the_port_and_the_metrics(serve: Start, run: Path) -> None:
    service = serve(run, "--workers", "2")
    for _ in range(20):
        assert get(service, "/users/u01/recommendations").status_code == 200  # each a connection of its own
    line = 'srns_requests_total{method="GET",route="/users/{user}/recommendations",status="200"} 20.0'
    assert line in get(service, "/metrics").text
    assert service.stop() == 0


def test_what_is_wrong_is_said_before_anything_listens(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: str | Path) -> str:
        result = CliRunner().invoke(cli, ["serve", *map(str, args)])
        assert result.exit_code == 2, (result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        return " ".join(result.stderr.split())

    assert "is not a run" in fails(tmp_path)
    assert "cannot be read" in fails(run, "--items", tmp_path / "none.csv")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "cannot listen on 127.0.0.1" in fails(run, "--port", str(taken.getsockname()[1]))
        assert "no authentication" in fails(tmp_path, "--host", "0.0.0.0")
    monkeypatch.setattr("srns.serving.settings.find_spec", lambda name: None)
    assert "pip install 'srns[serve]'" in fails(run)
    with pytest.raises(ConfigError, match="fastapi"):
        require()


def test_the_application_within_another(model: Recommender) -> None:
    import asyncio

    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/shop", app=make_app(model, limits=Limits(k=7)))])

    async def ask() -> list[Any]:
        transport = httpx.ASGITransport(app=outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            paths = ("/shop/users/u01/recommendations?k=7", "/shop/users/u01/recommendations?k=8", "/shop/openapi.json")
            return [await client.get(path) for path in paths]

    good, too_many, schema = asyncio.run(ask())
    assert [each["item"] for each in good.json()["items"]] == model.recommend("u01", 7)[0].tolist()
    assert "less than or equal to 7" in refused(too_many)
    assert schema.json()["components"]["schemas"]["Question"]["properties"]["k"]["maximum"] == 7
    with pytest.raises(ConfigError, match="as it is"):
        make_app(model, items="titles.csv")


def test_a_model_without_reasons_says_so(tmp_path: Path) -> None:
    folder = trained(tmp_path, scorer="popularity", engine="auto")
    model = load(Settings(run=folder))
    assert (model.explains, model.compares) == (False, False)
    (found,) = answers.recommend(model, ["u01"], 3, exclude_seen=True, unknown="raise", why=0)
    assert len(found["items"]) == 3
    assert len(answers.recommend_for(model, ["i01"], 3, exclude_seen=True, why=0)["items"]) == 3


labels = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200), min_size=1, max_size=40),
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4), min_size=1, max_size=40),
)


@given(ids=labels, chance=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=200)
def test_search_finds_what_a_look_at_all_finds(ids: list[Any], chance: random.Random) -> None:
    users = IdMap.of(ids, "user").labels
    stub: Any = type("Model", (), {"users": users})
    whole_id = str(chance.choice(ids))
    prefix = whole_id[: chance.randint(0, len(whole_id))]
    expected = {label for label in users.to_list() if str(label).startswith(prefix)}
    found = answers.search(stub, prefix, 100)
    assert set(found["users"]) == expected
    assert len(found["users"]) == len(expected)
    assert not found["more"]
    few = answers.search(stub, prefix, 3)
    assert (few["users"], few["more"]) == (found["users"][:3], len(expected) > 3)
    for odd in ("-0", "00", "+1", " 1", "x"):
        assert set(answers.search(stub, odd, 100)["users"]) == {
            label for label in users.to_list() if str(label).startswith(odd)
        }


@given(ids=labels, asked=st.text(max_size=4) | st.integers(-300, 300))
@settings(deadline=None, max_examples=200)
def test_an_id_is_known_in_its_own_form_alone(ids: list[Any], asked: Any) -> None:
    users = IdMap.of(ids, "user")
    expected = next((users.index(label) for label in ids if str(label) == str(asked)), -1)
    assert answers.known(users, [asked]).tolist() == [expected]
    assert answers.known(users, [asked, *ids] * 10).tolist() == [expected, *map(users.index, ids)] * 10  # many at once


def test_reasons_for_many_items_are_those_for_each(model: Recommender) -> None:
    ids, _ = model.recommend("u03", 6)
    many, shares = model.explain("u03", ids, 3)
    assert many.shape == shares.shape == (6, 3)
    for item, labels, values in zip(ids, many, shares, strict=True):
        one, share = model.explain("u03", item, 3)
        assert labels.tolist() == one.tolist()
        np.testing.assert_allclose(values, share, rtol=1e-4, atol=1e-6)


def test_tables_of_items(tmp_path: Path) -> None:
    ids = IdMap.of([1, 2, 30], "item")
    path = tmp_path / "films.item"
    path.write_text("item_id:token\tmovie_title:token_seq\tclass:token_seq\n2\tB\tx y\n1\tA\t\n2\tagain\t\n99\tC\t\n", "utf-8")
    found = Titles.read(path, ids)
    assert (found.titles, found.about) == (["A", "B", None], [None, "x y", None])
    path = tmp_path / "films.csv"
    path.write_text('code,called\n30,"Tic, ""Tac"""\n', "utf-8")
    with pytest.raises(DataError, match="--item-column"):
        Titles.read(path, ids)
    with pytest.raises(DataError, match="--title-column"):
        Titles.read(path, ids, item="code")
    assert Titles.read(path, ids, item="code", title="called").titles == [None, None, 'Tic, "Tac"']
    path.write_text("id,title\n1,A\n2,B\n", "utf-8")
    assert Titles.read(path, ids) == Titles(["A", "B", None], [None, None, None]), "a table of ids and titles alone"
    path.write_text("id,title\n4,x\n", "utf-8")
    with pytest.raises(DataError, match="none of the 1 values"):
        Titles.read(path, ids)


def test_a_model_that_cannot_recommend_is_not_taken(run: Path) -> None:
    model = Recommender.load(run)
    model.model_.items[:] = np.nan  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="nan"):
        Served.of(model, "broken", "0")


def test_too_many_costly_requests_at_once(model: Recommender) -> None:
    import asyncio

    app = make_app(model, limits=Limits(waiting=1))
    state = app.state.serving

    async def two() -> None:
        first = asyncio.create_task(state.in_turn(lambda: time.sleep(0.3), 0.1))
        await asyncio.sleep(0.05)
        with pytest.raises(RefusalError, match="waiting already") as refusal:
            await state.in_turn(lambda: None, 0.1)
        assert refusal.value.status == 429
        await first

    asyncio.run(two())


def test_help_needs_none_of_its_libraries() -> None:
    code = "import sys, srns.cli; print([m for m in ('fastapi', 'uvicorn', 'prometheus_client') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
