"""How many recommendations a second `srns serve` gives, how long each takes, and whether its memory stays as it is.

    SRNS_DATA=... python benchmarks/serving.py [RUN] [--requests 100000] [--connections 4] [--rate 0] [--workers 1] [--out FILE]

Without RUN, a model of two epochs is trained on ml-1m-paper: what is served takes as long whether it is good or not. The
service is one process, this client another, over loopback; each connection sends its next request when it has the answer to the
last (with --rate, at that many a second over all connections, late ones counted from when they should have been sent). Every
answer is checked: status 200, and as many items as were asked for. Where others use the same cores, two numbers say what to
make of the rest: the processor time of the service per request, and the same requests to a bare ASGI application under uvicorn,
which answers each with the same bytes and does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from srns import artifacts
from srns.runs import environment

WARM_UP, PARTS, SEED = 1_000, 10, 0
CHANCE = random.Random(SEED)  # one sequence of users over all connections and parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--out", type=Path, help="where to write the numbers, with data, model, versions and machine")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = asked.run or _train(Path(folder) / "run")
        model = _described(run)
        command = [sys.executable, "-m", "srns", "serve", str(run), "--port", "0", "--json", "--workers", str(asked.workers)]
        with Path(folder, "log").open("w") as log:
            service = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert service.stdout is not None
            port = int(json.loads(service.stdout.readline())["url"].rsplit(":", 1)[1])
            try:
                found = asyncio.run(_measure(service.pid, port, asked))
            finally:
                service.terminate()
                print(f"exit status {service.wait()}")
        found["bare"] = _control(asked)
    if asked.out is not None:
        settings = {name: getattr(asked, name) for name in ("requests", "connections", "rate", "workers", "k")}
        settings |= {"warm_up": WARM_UP, "seed": SEED}
        written = {"settings": settings, "model": model, "environment": environment() | {"served by": _versions()}, **found}
        asked.out.write_text(json.dumps(written, indent=1) + "\n")


def _described(run: Path) -> dict[str, Any]:
    """What is served: its data, all settings of its training with the seed, and the versions that trained it."""
    found = artifacts.read_run(run)
    kept = {name: found[name] for name in ("data", "config", "epochs", "environment") if name in found}
    return {"digest": artifacts.json_digest(found), **kept}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("fastapi", "starlette", "uvicorn", "httptools", "uvloop", "pydantic")}


def _train(folder: Path) -> Path:
    command = [sys.executable, "-m", "srns", "train", "ml-1m-paper", "--epochs", "2", "--out", str(folder), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The application that does nothing."""
    items = [{"item": 1000 + n, "score": 1.234567} for n in range(10)]
    body = json.dumps({"user": 1, "items": items}, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _control(asked: argparse.Namespace) -> dict[str, Any]:
    """A tenth of the requests to an application that does nothing."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(Path(__file__).parent), "serving:bare", "--port", str(port)]
    service = subprocess.Popen([*command, "--no-access-log", "--lifespan", "off", "--log-level", "error"])
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)

        async def ask() -> dict[str, Any]:
            await _ask(port, ["1"], WARM_UP, asked)
            begun, busy = time.perf_counter(), _busy(service.pid)
            times, errors = await _ask(port, ["1"], asked.requests // 10, asked)
            found = _facts(times, time.perf_counter() - begun, errors, _busy(service.pid) - busy)
            print(f"bare uvicorn: {_shown(found)}, {errors} errors, {found['cpu_ms']:.3f} ms a request")
            return found

        return asyncio.run(ask())
    finally:
        service.terminate()
        service.wait()


async def _measure(pid: int, port: int, asked: argparse.Namespace) -> dict[str, Any]:
    users = await _users(port)
    load = [os.getloadavg()[0]]
    print(f"{len(users)} users at hand; load average {load[0]:.1f} on {os.cpu_count()} cores")
    await _ask(port, users, WARM_UP, asked)
    memory = [_memory(pid)]
    part = asked.requests // PARTS
    every, parts, errors, start, busy = [], [], 0, time.perf_counter(), _busy(pid)
    for number in range(PARTS):
        begun, before = time.perf_counter(), _busy(pid)
        times, wrong = await _ask(port, users, part, asked)
        every.append(times)
        errors += wrong
        memory.append(_memory(pid))
        parts.append(_facts(times, time.perf_counter() - begun, wrong, _busy(pid) - before))
        print(f"  {(number + 1) * part:>7,}: {_shown(parts[-1])}, {memory[-1]:.1f} MB")
    whole = _facts(np.concatenate(every), time.perf_counter() - start, errors, _busy(pid) - busy)
    load.append(os.getloadavg()[0])
    print(f"in all: {_shown(whole)}, {errors} errors")
    spent = whole["cpu_ms"]
    print(f"processor time of the service: {spent:.3f} ms a request, so {1000 / spent:,.0f} a second of one core's time")
    print(f"memory: {memory[0]:.1f} MB after {WARM_UP:,} requests, {memory[-1]:.1f} MB after {asked.requests + WARM_UP:,}")
    print(f"load average at the end {load[1]:.1f}")
    return {"service": whole, "parts": parts, "memory_mb": memory, "load_average": load}


def _facts(times: np.ndarray, seconds: float, errors: int, busy: float) -> dict[str, Any]:
    p50, p99, worst = np.percentile(times, [50, 99, 100]) * 1000
    per_second, spent = len(times) / seconds, busy / len(times) * 1000
    found = {"per_second": per_second, "p50_ms": p50, "p99_ms": p99, "longest_ms": worst, "cpu_ms": spent}
    return {name: round(float(value), 3) for name, value in found.items()} | {"errors": errors}


def _shown(found: dict[str, Any]) -> str:
    times = f"p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms, longest {found['longest_ms']:.1f} ms"
    return f"{found['per_second']:,.0f} a second, {times}"


def _processes(pid: int) -> list[str]:
    """The service and its workers."""
    return [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _memory(pid: int) -> float:
    """Resident memory of the service in MB."""
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in _processes(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _busy(pid: int) -> float:
    """Seconds of processor time that the service has used."""
    fields = [Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split() for each in _processes(pid)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


async def _users(port: int) -> list[str]:
    """Some hundred users, by the beginnings of their ids; of ids that are text, the first hundred."""
    found: set[str] = set()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for prefix in ("", *range(1, 100)):
        _, body = await _request(reader, writer, f"/users?limit=100&prefix={prefix}")
        found.update(map(str, json.loads(body)["users"]))
    writer.close()
    return sorted(found)


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> tuple[int, bytes]:
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    return int(head[9:12]), await reader.readexactly(length)


async def _ask(port: int, users: list[str], requests: int, asked: argparse.Namespace) -> tuple[np.ndarray, int]:
    """Seconds of each request, and how many answers were wrong."""
    times: list[float] = []
    errors = 0
    begun = time.perf_counter()
    numbers = iter(range(requests))

    async def one() -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            due = begun + number / asked.rate if asked.rate else 0.0
            if due > (now := time.perf_counter()):
                await asyncio.sleep(due - now)
            start = due or now
            status, body = await _request(reader, writer, f"/users/{CHANCE.choice(users)}/recommendations?k={asked.k}")
            times.append(time.perf_counter() - start)
            errors += status != 200 or body.count(b'"item":') != asked.k
        writer.close()

    await asyncio.gather(*(one() for _ in range(asked.connections)))
    return np.array(times), errors


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.install()
    except ImportError:
        pass
    main()
