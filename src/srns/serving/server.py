"""The service as a process of its own: sockets, signals, workers."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import disable_created_metrics, multiprocess
from threadpoolctl import threadpool_limits
from uvicorn.supervisors import Multiprocess

from srns.errors import ConfigError
from srns.serving.app import build
from srns.serving.guard import start_log
from srns.serving.metrics import FOLDER
from srns.serving.protocol import Protocol
from srns.serving.settings import ServerSettings
from srns.serving.state import load

START_SECONDS = 120  # for a worker to give a sign of life, which it cannot while it imports on a busy machine
SETTINGS = "SRNS_SERVE"  # the environment variable by which workers learn what to serve


def application() -> FastAPI:
    """The application of a worker process."""
    _prepare()
    settings = ServerSettings.model_validate_json(os.environ[SETTINGS])
    return build(load(settings), settings, settings.limits)


def serve(settings: ServerSettings, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is told the address once the model is loaded and connections are accepted."""
    _prepare()
    model = load(settings)  # here, so that what is wrong with it is said before anything listens
    listening = _listen(settings.host, settings.port)
    url = _url(listening)
    options: dict[str, Any] = {
        "http": Protocol,
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": True,
        "timeout_keep_alive": settings.limits.keep_alive_seconds,
        "timeout_graceful_shutdown": settings.limits.shutdown_seconds,
        "timeout_worker_healthcheck": START_SECONDS,
    }
    for each in (signal.SIGTERM, signal.SIGINT):  # uvicorn sends itself the signal again once it has ended: this is the end
        signal.signal(each, lambda *_: None)
    if settings.workers == 1:
        config = uvicorn.Config(build(model, settings, settings.limits), **options)
        config.srns_limits = settings.limits  # type: ignore[attr-defined]
        ready(url)
        uvicorn.Server(config).run(sockets=[listening])
        return
    del model
    with tempfile.TemporaryDirectory(prefix="srns-serve-") as folder:
        os.environ[FOLDER] = folder
        os.environ[SETTINGS] = settings.model_dump_json()
        config = uvicorn.Config("srns.serving.server:application", factory=True, workers=settings.workers, **options)
        config.srns_limits = settings.limits  # type: ignore[attr-defined]
        ready(url)
        Workers(config, sockets=[listening]).run()


class Workers(Multiprocess):
    """Worker processes; one that died is replaced, and what it said of its model is no longer said."""

    _pids: frozenset[int | None] = frozenset()

    def keep_subprocess_alive(self) -> None:
        # Each worker has its end of the pipe it is asked by for signs of life. As long as the copy here is open, too, a worker
        # that is killed while it is asked looks like one that takes its time to start.
        for process in self.processes:
            process.child_conn.close()
        super().keep_subprocess_alive()
        now = frozenset(process.pid for process in self.processes)
        for pid in self._pids - now:
            multiprocess.mark_process_dead(pid, os.environ[FOLDER])  # type: ignore[no-untyped-call]
        self._pids = now


def _prepare() -> None:
    """What holds for a process that does nothing but serve."""
    start_log()
    threadpool_limits(1, "blas")  # one user is too little work to divide; requests are what runs side by side
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each, which nobody reads


def is_local(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
        listening.set_inheritable(True)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
