"""How this package compiles: one set of Numba options, and a way to know whether compilation lies ahead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Numba's cache on disk watches the file of a function, not those it calls into, whose code it also holds. With the state of all
# kernels in the name, a change in any of them is a change in each, and machine code of an older version is never run.
CONSTANTS = ("ahns", "aobpr", "elementary", "observations", "srns")
SOURCES = [
    *sorted(Path(__file__).parent.glob("*.py")),
    *(Path(__file__).parent.parent / name for name in ("rng.py", "adam.py", *(f"samplers/{each}.py" for each in CONSTANTS))),
]
STATE = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:8]


def compiled(
    *, parallel: bool = False, inline: bool = False, allocates: bool = False, entry: bool = True
) -> Callable[[Function], Function]:
    """`numba.njit` as used here: cached on disk, without the GIL, division as in NumPy.

    The NumPy error model matters: Python's test for division by zero keeps loops with a division from vectorising
    (measured on the Adam update: 4x). `inline` is for what runs once per row: a call with six arrays costs 25 ns in arguments.
    Only a function that makes arrays `allocates`; in the others no array is counted, which took a sixth of an epoch of SRNS:
    the callers, and above them Python, hold on to all there is. What is not an `entry`, and nothing inline is, has no wrapper
    for Python, which saves a sixth of the time to compile; called from Python, it ends the process.
    """
    compile_ = numba.njit(
        cache=True,
        nogil=True,
        error_model="numpy",
        parallel=parallel,
        forceinline=inline,
        _nrt=allocates or parallel,
        no_cpython_wrapper=inline or not entry,
        no_cfunc_wrapper=True,
    )

    def decorate(function: Function) -> Function:
        function.__qualname__ = f"{function.__name__}_{STATE}"
        return compile_(function)

    return decorate


def needs_compiling(kernel: Any) -> bool:
    """Whether the first call of `kernel` will compile it, which takes seconds, instead of loading it from disk."""
    if kernel.signatures:
        return False
    function = kernel.py_func
    source = Path(function.__code__.co_filename)
    indexes = list(Path(kernel.stats.cache_path).glob(f"{source.stem}.{function.__qualname__}-*.nbi"))
    return not any(index.stat().st_mtime >= source.stat().st_mtime for index in indexes)
