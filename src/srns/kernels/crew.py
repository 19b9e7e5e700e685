"""Several threads inside compiled code: a crew that shares work and waits for one another without leaving it.

Numba's own parallel loops end with every loop, and where a thread has gone to sleep until the next it takes longer to wake up
than half a batch takes to draw: an epoch of SRNS on two cores took 0.9 s, with a crew 0.4 s. They also compile everything
several times. Here each member is a thread of Python's that runs the same compiled function from start to end.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numpy.typing import NDArray

from srns.kernels.compiler import compiled
from srns.kernels.lanes import intrinsic

cgutils: Any = untyped_cgutils
Gate = NDArray[np.int64]
LINE = 8  # numbers of a cache line: what one thread writes often, and others read, has a line of its own
ARRIVED, ROUND, BROKEN, JOBS = (
    0,
    LINE,
    2 * LINE,
    3 * LINE,
)  # JOBS and the line after it count the jobs taken of two batches in turn
PATIENCE = 2000  # looks at the gate before a thread that waits lets others run
INT64 = ir.IntType(64)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def add_one(typing: Any, array: Any, index: Any) -> Any:
    """array[index] += 1 as one indivisible act; returns what was there before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _address(context, builder, signature.args[0], *args), INT64(1), "acq_rel")

    return types.int64(array, types.intp), generate


@intrinsic
def look(typing: Any, array: Any, index: Any) -> Any:
    """array[index] as it is now, and all that was written before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_address(context, builder, signature.args[0], *args), "acquire", 8)

    return types.int64(array, types.intp), generate


@intrinsic
def put(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] = value, seen by others after all that was written before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _address(context, builder, signature.args[0], *args[:2]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


@intrinsic
def give_way(typing: Any) -> Any:
    """Let another thread of this machine run."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if sys.platform != "win32":
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@compiled()
def wait_for_all(crew: int, gate: Gate) -> None:
    """Return when all of the crew have come here."""
    if crew > 1:
        this_round = look(gate, ROUND)
        if add_one(gate, ARRIVED) == crew - 1:
            put(gate, ARRIVED, 0)
            add_one(gate, ROUND)
        else:
            looks = 0
            while look(gate, ROUND) == this_round and look(gate, BROKEN) == 0:
                looks += 1
                if looks > PATIENCE:
                    give_way()


def run(member: Any, threads: int, *args: Any) -> None:
    """Call member(task, crew, gate, *args) in as many threads at once, task 0 in this one; fewer if no more can be started."""
    gate: Gate = np.zeros(5 * LINE, np.int64)
    ready = threading.Event()
    crew: list[threading.Thread] = []
    failures: list[BaseException] = []

    def work(task: int) -> None:
        ready.wait()
        try:
            if not gate[BROKEN]:
                member(task, 1 + len(crew), gate, *args)
        except BaseException as error:
            failures.append(error)
            gate[BROKEN] = 1  # nobody is to wait for this one

    try:
        with suppress(RuntimeError):  # the system allows no more
            for task in range(1, threads):
                thread = threading.Thread(target=work, args=(task,), daemon=True)
                thread.start()
                crew.append(thread)
        ready.set()
        member(0, 1 + len(crew), gate, *args)
    except BaseException:
        gate[BROKEN] = 1
        raise
    finally:
        ready.set()
        for thread in crew:
            thread.join()
    if failures:
        raise failures[0]
