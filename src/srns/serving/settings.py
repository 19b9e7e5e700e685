"""What is served, and the limits that protect it: every default of the service."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from srns.errors import ConfigError

NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client")


class Limits(BaseModel):
    """What a request may ask for, and how long it may take. Beyond, the answer is a 4xx that says which limit it was."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    k: int = Field(500, ge=1, description="items in a list")
    batch: int = Field(200, ge=1, description="users in one request")
    explained: int = Field(10, ge=1, description="users in one request that asks for reasons, which take milliseconds each")
    why: int = Field(20, ge=1, description="reasons for one item")
    items: int = Field(1000, ge=1, description="items named in one request, and items of one user listed at once")
    users: int = Field(100, ge=1, description="users found by one search")
    listed: int = Field(20_000, ge=1, description="items and reasons in one answer: users x k x (1 + why)")
    body: int = Field(256 << 10, ge=1, description="bytes of a request's body")
    head: int = Field(16 << 10, ge=256, description="bytes of its address and headers")
    client_seconds: float = Field(10.0, gt=0, description="for the client to send headers, and again for the body")
    answer_seconds: float = Field(30.0, gt=0, description="from the headers to the end of the answer")
    waiting: int = Field(64, ge=1, description="costly requests that wait for their turn; further ones get 429")
    connections: int = Field(800, ge=1, description="connections of one worker; further ones get 429")
    keep_alive_seconds: float = Field(65.0, gt=0, description="for which an idle connection stays open")
    shutdown_seconds: float = Field(20.0, gt=0, description="for running requests to end after SIGTERM")


class Settings(BaseModel):
    """A service as data, which is also how worker processes learn of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path
    items: Path | None = Field(None, description="table of items: CSV, TSV, Parquet or RecBole .item, with ids and titles")
    item_column: str | None = Field(None, description="its column of ids; recognised by name")
    title_column: str | None = Field(None, description="its column of titles; recognised by name")
    reload_seconds: float = Field(2.0, ge=0, description="between looks at the run for a newer model; 0: never")
    access_log: bool = Field(True, description="a line for each request")
    limits: Limits = Limits()


class ServerSettings(Settings):
    """The same with what `srns serve` needs beside it."""

    host: str = Field("127.0.0.1", description="address to listen on; only this machine reaches 127.0.0.1")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    workers: int = Field(1, ge=1, description="processes that answer, each with the model in memory")


def require() -> None:
    """Say what to install where the service's libraries are missing."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigError(f"serving needs {', '.join(missing)}: pip install 'srns[serve]'")
