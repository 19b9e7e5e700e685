"""What uvicorn leaves open: headers that come slowly or without end, answers that nobody reads, its errors as JSON."""

from __future__ import annotations

import asyncio
import socket
import struct
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from srns.serving.guard import RefusalError, error_body
from srns.serving.settings import Limits

LINGER = 2.0  # seconds for a refused client to read the reason and leave
AT_ONCE = struct.pack("ii", 1, 0)  # of SO_LINGER: closing resets
SPARE = 100  # connections beyond the limit that are told so; any more are closed


class Protocol(HttpToolsProtocol):
    """A connection with one clock: for headers, then for the answer until the client has read it, then for what is left of the
    body."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._limits: Limits = config.srns_limits
        self._clock: asyncio.TimerHandle | None = None
        self._in_head = True
        self._head_bytes = 0
        self._whole = False  # whether the body has arrived
        self._refusal: tuple[int, str] | None = None
        self._ended = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if (beyond := len(self.connections) - self._limits.connections) > SPARE:
            transport.abort()
        elif beyond > 0:
            self._refuse(429, f"{self._limits.connections} connections are open already; try again in a second")
        else:
            self._start(self._limits.client_seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ended or self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head and not self._ended:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head:
                self._refuse(431, self._too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._whole = True, 0, False
        self._start(self._limits.client_seconds, self._late)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self._limits.head:
            self._refusal = (431, self._too_large())
            raise ValueError(self._refusal[1])  # which the parser turns into send_400_response
        self._start(self._limits.answer_seconds + 2 * self._limits.client_seconds, self._over)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        if self._done():
            self._stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._done():
            self._stop()
        elif not self._whole:  # the rest of a body that was refused is read and forgotten, for a while
            self._unset_keepalive_if_required()
            self._start(self._limits.client_seconds, self._over)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, "this is no valid HTTP request")))

    def _too_large(self) -> str:
        return f"address and headers of more than {self._limits.head:,} bytes, which is the limit"

    def _late(self) -> None:
        if self._head_bytes or self.cycle is None:
            self._refuse(408, f"the headers did not arrive within {self._limits.client_seconds:g} seconds")

    def _refuse(self, status: int, reason: str) -> None:
        if self._ended or self.transport.is_closing():
            return
        body = error_body(reason)
        fields = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in {**fields, **RefusalError(status, reason).headers}.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        # What still comes is read and forgotten: closing on it would reset the connection before the client has read why.
        self._ended = True
        self.transport.write_eof()
        self._start(LINGER, self._leave)

    def _leave(self) -> None:
        self.transport.close()  # which waits until all is sent
        self._start(self._limits.client_seconds, self._abort)

    def _done(self) -> bool:
        """Whether all that was asked is answered, and handed to the system: uvicorn calls an answer complete once it is
        written, however much of it waits for the client to read."""
        answered = self.cycle is not None and self.cycle.response_complete and not self.pipeline
        return answered and self._whole and not self.transport.get_write_buffer_size()

    def _over(self) -> None:
        self._stop()
        if not self._done():
            self._abort()

    def _abort(self) -> None:
        # The system, too, is to forget what it holds for a client that does not read; it would keep megabytes for minutes.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.transport.abort()

    def _start(self, seconds: float, then: Any) -> None:
        self._stop()
        self._clock = self.loop.call_later(seconds, then)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
