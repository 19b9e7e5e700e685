"""How this package compiles: one set of Numba options, and a way to know whether compilation lies ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered so that dot products vectorise; the order is fixed once compiled, so results stay reproducible.
REORDER_SUMS = {"reassoc", "nsz", "contract"}


def compiled(*, parallel: bool = False, reorder_sums: bool = False, inline: bool = False) -> Callable[[Function], Function]:
    """`numba.njit` as used here: cached on disk, without the GIL, division as in NumPy.

    The NumPy error model matters: Python's test for division by zero keeps loops with a division from vectorising
    (measured on the Adam update: 4x). `inline` is for what runs once per row: a call with six arrays costs 25 ns in arguments.
    """
    return numba.njit(
        cache=True,
        nogil=True,
        error_model="numpy",
        parallel=parallel,
        fastmath=REORDER_SUMS if reorder_sums else False,
        forceinline=inline,
    )


def needs_compiling(kernel: Any) -> bool:
    """Whether the first call of `kernel` will compile it, which takes seconds, instead of loading it from disk."""
    if kernel.signatures:
        return False
    source = Path(kernel.py_func.__code__.co_filename)
    indexes = list(Path(kernel.stats.cache_path).glob(f"{source.stem}.{kernel.py_func.__name__}-*.nbi"))
    return not any(index.stat().st_mtime >= source.stat().st_mtime for index in indexes)
