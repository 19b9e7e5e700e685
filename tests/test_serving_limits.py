"""What keeps the service answering: limits, turns, time, a model that comes at a bad moment; the rest of test_serving.py."""

# ruff: noqa: F811 (fixtures are arguments)

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import shutil
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from test_serving import ITEMS, USERS, get, model, refused, replace_run, run, trained, until  # noqa: F401 (fixtures)

from srns import artifacts
from srns.best import Best
from srns.errors import ArtifactError
from srns.recommender import Recommender
from srns.serving import Limits, Settings, answers, listing, make_app
from srns.serving.guard import RefusalError
from srns.serving.server import START_SECONDS
from srns.serving.state import State, load

Start = Callable[..., Any]


def asked(app: Any, *requests: Any) -> list[httpx.Response]:
    """The answers to paths to get, and to contents to post, one after another."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://shop") as client:
            return [
                await (client.get(each) if isinstance(each, str) else client.post("/recommendations", json=each))
                for each in requests
            ]

    return asyncio.run(ask())


def test_defaults_are_within_the_limits(model: Recommender) -> None:
    app = make_app(model, limits=Limits(k=5, why=1, items=3, users=2))
    paths = ("/users/u01/recommendations", "/items/i01/similar", "/users/u01/items", "/users", "/health", "/openapi.json")
    best, near, had, found, health, schema = (answer.json() for answer in asked(app, *paths))
    (posted,) = asked(app, {"users": ["u01"]})
    assert len(best["items"]) == len(near["similar"]) == len(posted.json()["recommendations"][0]["items"]) == 5
    assert (len(had["items"]), len(found["users"])) == (3, 2)
    assert health["limits"].items() >= {"k": 5, "why": 1, "items": 3, "users": 2}.items()
    described = [each["schema"] for path in schema["paths"].values() for each in path.get("get", {}).get("parameters", [])]
    described += schema["components"]["schemas"]["Question"]["properties"].values()
    bounded = [each for each in described if "maximum" in each]
    assert len(bounded) >= 7
    assert all(each["minimum"] <= each["default"] <= each["maximum"] for each in bounded)


def test_an_answer_that_would_be_too_long(model: Recommender) -> None:
    app = make_app(model, limits=Limits(listed=60))
    fine = ["/users/u01/recommendations?k=20&why=2", {"users": USERS[:6], "k": 10}, {"items": ["i01"], "k": 30, "why": 1}]
    wrong = ["/users/u01/recommendations?k=21&why=2", {"users": USERS[:7], "k": 9}, {"items": ["i01"], "k": 31, "why": 1}]
    assert {answer.status_code for answer in asked(app, *fine)} == {200}
    for answer in asked(app, *wrong):
        assert answer.status_code == 422
        assert "users x k x (1 + why) is 6" in refused(answer)


def test_what_takes_long_is_made_and_written_beside_the_event_loop(model: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(model)
    where: list[str] = []
    calls: list[int] = []
    for name in ("encoded", "encoded_by_item"):
        function = getattr(listing, name)

        def noted(answer: Any, function: Any = function) -> bytes:
            where.append(threading.current_thread().name)
            return bytes(function(answer))

        monkeypatch.setattr(listing, name, noted)
    best = Best.items

    def counted(self: Best, users: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(users))
        return best(self, users, *args, **options)

    monkeypatch.setattr(Best, "items", counted)
    quick = ["/users/u01/recommendations", "/items/i01/similar", "/users/u01/items", {"users": ["u01"]}]
    long: list[Any] = ["/users/u01/recommendations?k=101", "/users/u01/recommendations?why=1", "/users/u01/items?limit=101"]
    lists: list[Any] = [{"users": ["u01"], "exclude": ["i01"]}, {"users": ["u01"], "candidates": ["i01"]}, {"items": ["i01"]}]
    main = threading.current_thread().name
    for expected, requests in ((True, quick), (False, [*long, *lists, {"users": USERS}])):
        for request in requests:
            where.clear()
            (answer,) = asked(app, request)
            assert answer.status_code == 200
            assert {name == main for name in where} == {expected}, request
    assert calls[-1] == len(USERS)  # all at once
    assert calls.count(len(USERS)) == 1


def test_an_answer_written_item_by_item_is_the_same(model: Recommender) -> None:
    served = make_app(model).state.serving.model
    options: dict[str, Any] = {"exclude_seen": False, "unknown": "popular", "why": 2}
    found = answers.recommend(served, ["u01", "nobody", "a/b"], 30, **options)
    for answer in (found[0], found[1], {"recommendations": found}, answers.similar(served, "i01", 5), {"users": []}):
        assert listing.encoded_by_item(answer) == listing.encoded(answer)


def test_a_batch_is_what_each_of_its_users_gets(model: Recommender) -> None:
    app = make_app(model)
    users = ["u01", "nobody", "a/b", "u01"]
    (batch,) = asked(app, {"users": users, "unknown": "popular", "k": 40, "exclude": ["i01", "i02"], "candidates": ITEMS[:20]})
    for user, found in zip(users, batch.json()["recommendations"], strict=True):
        ids, scores = model.recommend(user, 40, unknown="popular", exclude=["i01", "i02"], candidates=ITEMS[:20])
        assert [each["item"] for each in found["items"]] == ids.tolist()
        np.testing.assert_allclose([each["score"] for each in found["items"]], scores, atol=1e-5)
        assert (found["user"], found.get("unknown", False)) == (user, user == "nobody")


def test_shares_add_up_to_the_score_of_somebody_folded_in(model: Recommender) -> None:
    had = model.split_.train.item_ids.take(model.split_.train.items_of(model.split_.train.user_ids.index("u01"))).to_list()
    (item,), (shown,) = model.recommend("u01", 1)
    _, shares = model.explain("u01", item, len(had))
    ids, folded = model.recommend_for(had, len(ITEMS))
    assert shares.sum() == pytest.approx(folded[ids.tolist().index(item)], rel=0.05)
    assert shares.sum() != pytest.approx(shown, rel=0.5)  # which is why no text may say so
    (schema,) = asked(make_app(model), "/openapi.json")
    assert "folded in" in schema.json()["components"]["schemas"]["Reason"]["properties"]["share"]["description"]


def test_no_request_waits_for_what_cannot_be_done_in_time(model: Recommender) -> None:
    state: State = make_app(model, limits=Limits(answer_seconds=10)).state.serving

    async def ask() -> None:
        with pytest.raises(RefusalError, match="would take about 11 seconds, of at most 10") as refusal:
            await state.in_turn(lambda: None, 11.0)
        assert refusal.value.status == 422
        release = threading.Event()
        first = asyncio.create_task(state.in_turn(release.wait, 6.0))
        await asyncio.sleep(0.05)
        with pytest.raises(RefusalError, match="about 6 seconds are waiting") as refusal:
            await state.in_turn(lambda: None, 5.0)
        assert refusal.value.status == 429
        second = asyncio.create_task(state.in_turn(lambda: "done", 3.0))
        await asyncio.sleep(0.05)
        release.set()
        assert (await first, await second) == (True, "done")
        await asyncio.sleep(0.05)
        assert await state.in_turn(lambda: "again", 9.0) == "again"  # what ended is no longer ahead of anybody

    asyncio.run(ask())


def test_an_answer_that_takes_too_long_is_given_up(model: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(model, limits=Limits(answer_seconds=0.3))
    release = threading.Event()
    monkeypatch.setattr(answers, "batch", lambda *_: release.wait(20) and {"recommendations": []})
    start = time.monotonic()
    late, next_one = asked(app, {"users": USERS}, {"users": USERS})
    assert time.monotonic() - start < 10
    assert [answer.status_code for answer in (late, next_one)] == [429, 429]  # nobody waits behind what is stuck
    assert refused(late).startswith("no answer within 0.3 seconds")
    assert "still at work" in refused(next_one)
    assert late.headers["retry-after"] == next_one.headers["retry-after"] == "1"
    assert asked(app, "/users/u01/recommendations")[0].status_code == 200  # others go on meanwhile
    release.set()


def version(folder: Path) -> str:
    return artifacts.json_digest(artifacts.read_run(folder))[:12]


def test_a_model_that_is_published_while_another_is_loaded(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, folder = trained(tmp_path, seed=1), tmp_path / "served"
    shutil.copytree(run, folder)
    read, done = Recommender.load, threading.Event()

    def overtaken(path: Path) -> Recommender:
        found = read(path)
        if not done.is_set():
            done.set()
            replace_run(folder, other)
        return found

    monkeypatch.setattr(Recommender, "load", overtaken)
    served = load(Settings(run=folder))
    assert served.version == version(other)
    assert served.recommender.recommend("u05", 5)[0].tolist() == read(other).recommend("u05", 5)[0].tolist()
    app = make_app(folder, reload_seconds=0.05)
    replace_run(folder, run)  # before anybody watches
    assert asyncio.run(newest(app, version(run))) == version(run)


async def newest(app: Any, expected: str) -> str:
    """The version in use once it is the expected one, or after a while."""
    state: State = app.state.serving
    async with state:
        end = time.monotonic() + 30
        while state.model.version != expected and time.monotonic() < end:
            await asyncio.sleep(0.02)
    return state.model.version


def test_a_model_that_is_not_taken_is_gone_before_the_next_is_loaded(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    there: list[int] = []
    table = tmp_path / "items.csv"
    moments = iter([0, 1, 2, 3, 4, 5, 6, 6])  # the files change while they are read, three times
    read = Recommender.load

    def noted(path: Path) -> Recommender:
        there.append(sum(model() is not None for model in models))
        table.write_text(f"id,title\n{'none' if len(models) == 1 else 'i01'},One\n", encoding="utf-8")  # the second fails
        model = read(path)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(Recommender, "load", noted)
    monkeypatch.setattr("srns.serving.state._signature", lambda settings: (next(moments),))
    gc.disable()  # what refers to itself would stay until Python looks for it, whenever that is
    try:
        assert load(Settings(run=run, items=table)).signature == (6,)
    finally:
        gc.enable()
    assert there == [0, 0, 0, 0]


def short_of_files() -> ArtifactError:
    error = ArtifactError("run.json is damaged: too many open files")
    error.__context__ = OSError(errno.EMFILE, "too many open files")
    return error


@pytest.mark.parametrize("trouble", [MemoryError(), OSError(errno.EIO, "input/output error"), short_of_files()], ids=repr)
def test_a_failure_that_may_pass_is_tried_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    other, folder = trained(tmp_path, seed=1), tmp_path / "served"
    shutil.copytree(run, folder)
    app = make_app(folder, reload_seconds=0.05)
    failed: list[Exception] = []

    def fails_twice(settings: Settings) -> Any:
        if len(failed) < 2:
            failed.append(trouble)
            raise trouble
        return load(settings)

    monkeypatch.setattr("srns.serving.state.load", fails_twice)
    replace_run(folder, other)
    assert asyncio.run(newest(app, version(other))) == version(other)
    assert (len(failed), app.state.serving.failure) == (2, None)


@pytest.fixture(scope="module")
def strict(serve: Start, run: Path) -> Any:
    return serve(run, limits={"connections": 5, "answer_seconds": 1, "client_seconds": 1})


def test_a_client_that_never_reads_is_left(strict: Any) -> None:
    request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
    length = len(get(strict, "/openapi.json").content)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(60)
        raw.connect(("127.0.0.1", strict.port))
        raw.sendall(request * 1000)
        assert get(strict, "/users/u01/recommendations").status_code == 200
        until(lambda: open_connections(strict) == 0)
        received = 0
        try:
            while part := raw.recv(1 << 20):
                received += len(part)
        except ConnectionResetError:
            pass
    assert received < 1000 * length
    assert get(strict, "/users/u01/recommendations").status_code == 200


def open_connections(service: Any) -> int:
    """Established on the service's side, or closed there with something unsent."""
    local = f"0100007F:{service.port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()]
    return sum(fields[1] == local and fields[3] in ("01", "04") for fields in lines)


def test_more_connections_than_there_may_be(strict: Any) -> None:
    until(lambda: open_connections(strict) == 0)
    waiting = [socket.create_connection(("127.0.0.1", strict.port), 10) for _ in range(5)]
    until(lambda: open_connections(strict) == 5)
    with socket.create_connection(("127.0.0.1", strict.port), 10) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        raw.settimeout(30)
        head, _, content = b"".join(iter(lambda: raw.recv(65536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nretry-after: 1" in head
    assert list(json.loads(content)) == ["error"]
    for each in waiting:
        each.close()
    until(lambda: open_connections(strict) == 0)
    assert get(strict, "/health").status_code == 200


@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for workers in /proc, which this system has not")
def test_what_a_dead_worker_said_of_its_model_is_forgotten(serve: Start, run: Path) -> None:
    service = serve(run, "--workers", "2")
    assert httpx.get(f"{service.url}/health", timeout=120).status_code == 200  # workers start after the address is known
    workers: dict[int, Path] = {}

    def found() -> bool:
        for pid in Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split():
            settings = dict(each.partition("=")[::2] for each in Path(f"/proc/{pid}/environ").read_text().split("\0"))
            folder = settings.get("PROMETHEUS_MULTIPROC_DIR")
            if folder and list(Path(folder).glob(f"gauge_*_{pid}.db")):
                workers[int(pid)] = Path(folder)
        return len(workers) == 2

    until(found, 120)
    pid, folder = next(iter(workers.items()))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)  # now it is being asked for a sign of life, which may take long; that it died is noticed all the same
    os.kill(pid, signal.SIGKILL)
    until(lambda: not list(folder.glob(f"gauge_live*_{pid}.db")), START_SECONDS / 2)
    assert list(folder.glob("gauge_live*.db"))
    until(lambda: get(service, "/users/u01/recommendations").status_code == 200)
    assert service.stop() == 0
