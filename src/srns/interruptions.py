"""Ctrl-C and SIGTERM, noted so that what is under way can come to a good end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_noted: list[list[int]] = []  # of the outermost block, while there is one


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """The signals (Ctrl-C, SIGTERM) that arrive within the block: an epoch can end and be saved; a second one ends at once.

    A block within another has the same list, so that a signal in the last epoch of one training also ends the search that the
    training is part of.

    >>> with interruptions() as received:
    ...     with interruptions():
    ...         signal.raise_signal(signal.SIGTERM)
    ...     received == [signal.SIGTERM]
    True
    """
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python delivers no signals
        yield []
        return
    if _noted:
        yield _noted[0]
        return
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    _noted.append(received)
    try:
        yield received
    finally:
        _noted.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
