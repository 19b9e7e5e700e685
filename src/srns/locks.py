"""One process at a time in a folder: sweeps and searches hold theirs while they work."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from srns.errors import ConfigError

LOCK = "lock.db"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder in which another process does; the lock goes with its holder, however that ends.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, owned(Path(folder) / "runs"):
    ...     pass
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}; name another folder with --out") from None
    with closing(sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None)) as lock:
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"{folder} is in use by another srns command ({error}); wait for it, or choose another --out"
            ) from None
        yield
