"""A PostgreSQL server for tests: made in a folder of its own, on loopback, as the user postgres where the tests run as root."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

TOKEN = f"Zx{secrets.token_hex(8)}"  # what no file or output may hold
PASSWORD = f"{TOKEN} a@b/c?d#e'f\"g\\h%i:j"


class Server(NamedTuple):
    port: int

    def url(self, password: str = PASSWORD, database: str = "postgres") -> str:
        return f"postgresql://postgres:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    @property
    def shown(self) -> str:
        return f"postgresql://127.0.0.1:{self.port}/postgres"


def programs() -> Path | str:
    """The folder of the server's programs, or why there is none to use."""
    beside = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    folders = [*beside, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    found = next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)
    if found is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
    return found


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """A running server whose programs are in `folder`; gone at the end, with all its data."""
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    home = Path(tempfile.mkdtemp(prefix="srns-postgres-"))
    try:
        (home / "password").write_text(PASSWORD + "\n")
        if as_user:
            for path in (home, home / "password"):
                shutil.chown(path, "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]

        def run(program: str, *arguments: str) -> None:
            done = subprocess.run(
                [*as_user, str(folder / program), "-D", str(home / "data"), *arguments],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=home, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout

        run("initdb", "-U", "postgres", "-A", "scram-sha-256", "--pwfile", str(home / "password"), "-E", "UTF8", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={home} -c fsync=off"
        run("pg_ctl", "-o", options, "-l", str(home / "log"), "-w", "start")
        try:
            yield Server(port)
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
