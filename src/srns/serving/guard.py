"""Around the routes: sizes and time limits of bodies, request ids, headers, log lines, and one shape of error.

An error is always JSON, {"error": "what is wrong"}, and never has a stack trace; that goes to the log.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import re
import secrets
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any

from srns.serving.metrics import Metrics
from srns.serving.settings import Limits

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("srns.serve")
ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
]
ENCODER = json.JSONEncoder(default=str)
MOST_SHOWN = 200  # characters of a path in the log


class RefusalError(Exception):
    """A request that is not granted, with the status and the reason that the client is told, and after how many seconds to try
    again where that helps."""

    def __init__(self, status: int, reason: str, seconds: float = 1.0) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.headers = {"retry-after": str(max(1, math.ceil(seconds)))} if status == 429 else {}


def log(event: str, level: str = "info", **facts: Any) -> None:
    """A line of JSON in the log `srns.serve`."""
    number = getattr(logging, level.upper())
    if LOG.isEnabledFor(number):
        record = logging.LogRecord(LOG.name, number, "", 0, event, None, None)  # LOG.log() would walk the stack for the caller
        record.facts = facts
        LOG.handle(record)


class JsonLines(logging.Formatter):
    """One JSON object a line, of this service's log and of uvicorn's."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{_second(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return ENCODER.encode(line)


@lru_cache(1)
def _second(since: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))


def start_log() -> None:
    """Lines of JSON on standard error, for a service that is a process of its own."""
    for fact in (
        "logThreads",
        "logMultiprocessing",
        "logProcesses",
        "logAsyncioTasks",
    ):  # which cost time, and no line has them
        setattr(logging, fact, False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("srns.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


def error_body(reason: str) -> bytes:
    return json.dumps({"error": reason}).encode()


class Guard:
    """ASGI middleware; everything but HTTP passes."""

    def __init__(self, app: ASGI, limits: Limits, metrics: Metrics, access_log: bool) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.access_log = access_log
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] != "websocket":
                await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0
        given = next((value for name, value in scope["headers"] if name == b"x-request-id" and ID.fullmatch(value)), None)
        request_id = given.decode() if given else f"{self._prefix}-{next(self._count):x}"
        extra = [*HEADERS, (b"x-request-id", request_id.encode())]

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in extra if each[0] not in own)]
            await send(message)

        try:
            if scope["method"] in WITH_BODY:
                receive = await self._read(scope, receive)
            await self.app(scope, receive, answer)
        except RefusalError as refusal:
            await _refuse(answer, refusal)
        except Exception:
            log("failure", "error", id=request_id, trace=traceback.format_exc())
            if status:
                raise  # too late to say anything; the server closes the connection
            await _refuse(answer, RefusalError(500, f"the service failed; its log has the reason under id {request_id}"))
        finally:
            self._note(scope, request_id, status, time.perf_counter() - started)

    async def _read(self, scope: Scope, receive: Receive) -> Receive:
        """The whole body, in time and within its limit, to be received again by the routes."""
        limit = self.limits.body
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if length.isdigit() and int(length[:20]) > limit:
            raise RefusalError(413, f"a body of {int(length[:20]):,} bytes; the limit is {limit:,}")
        try:
            body = await asyncio.wait_for(_whole(receive, limit), self.limits.client_seconds)
        except asyncio.TimeoutError:
            raise RefusalError(408, f"the body did not arrive within {self.limits.client_seconds:g} seconds") from None
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Message:
            return next(parts, None) or await receive()

        return again

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path_format", None) or "other"
        self.metrics.answered(scope["method"], route, status, seconds)
        if self.access_log:
            client = scope.get("client")
            log(
                "request",
                id=request_id,
                method=scope["method"],
                path=scope["path"][:MOST_SHOWN],
                route=route,
                status=status,
                ms=round(seconds * 1000, 3),
                client=client[0] if client else None,
            )


async def _whole(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusalError(400, "the client left before the body was complete")
        body += message.get("body", b"")
        if len(body) > limit:
            raise RefusalError(413, f"a body of more than {limit:,} bytes, which is the limit")
        if not message.get("more_body", False):
            return bytes(body)


async def _refuse(send: Send, refusal: RefusalError) -> None:
    body = error_body(refusal.reason)
    fields = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
