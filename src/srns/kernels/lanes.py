"""Eight floats at a time, for compiled functions: `load` them from a row, calculate with + - * /, `store` them back.

Left to LLVM, a loop over one row of F floats costs more around the loop than in it: a hundred instructions per row to prove
that the arrays do not overlap, to wrap negative indices and to treat what is left over (Adam update with F = 32: 47 ns a row,
in lanes 28 ns, with `prefetch` 21 ns; blocks of 8 or 16 as constant inner loops do not vectorise at all). The processor needs
no registers of this width, LLVM splits them where there are none; and sums have one order on every machine.

Rows must be a multiple of `LANES` wide, padded with zeros, and the caller answers for indices: nothing is checked.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils as untyped_cgutils
from numpy.typing import NDArray

LANES = 8
LINE = 64  # bytes of a cache line
FLOATS_PER_LINE = LINE // 4
Lanes = Any  # what the functions below take and return inside compiled code
cgutils: Any = untyped_cgutils

INT32 = ir.IntType(32)
VECTOR = ir.VectorType(ir.FloatType(), LANES)


class LanesType(types.Type):  # type: ignore[misc]
    """Numba's name for eight float32 in one register."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


lanes = LanesType()


@extending.register_model(LanesType)
class LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: LanesType) -> None:
        super().__init__(manager, kind, VECTOR)


def intrinsic(function: Callable[..., Any]) -> Any:
    """`numba.extending.intrinsic`, whose own type describes the decorated function and not the one it stands for."""
    return extending.intrinsic(function)


def padded(dim: int) -> int:
    """The width of a row that holds `dim` floats."""
    return -(-dim // LANES) * LANES


def aligned_zeros(*shape: int) -> NDArray[np.float32]:
    """Zeros that start on a cache line: rows that straddle lines cost a few per cent of an epoch."""
    size = 4 * math.prod(shape)
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(np.float32).reshape(shape)


def _address(context: Any, builder: Any, array_type: Any, array: Any, row: Any, column: Any) -> Any:
    """Where array[row, column] of a C-ordered matrix lies in memory."""
    matrix = context.make_array(array_type)(context, builder, array)
    width = cgutils.unpack_tuple(builder, matrix.shape, 2)[1]
    return builder.gep(matrix.data, [builder.add(builder.mul(row, width), column)])


@intrinsic
def load(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """array[row, column : column + LANES]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args)
        return builder.load(builder.bitcast(address, VECTOR.as_pointer()), align=4)

    return lanes(array, types.intp, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, row: Any, column: Any, value: Any) -> Any:
    """array[row, column : column + LANES] = value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args[:3])
        builder.store(args[3], builder.bitcast(address, VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, lanes), generate


@intrinsic
def prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of array[row, column], which will be needed soon."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.bitcast(_address(context, builder, signature.args[0], *args), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, INT32, INT32, INT32])
        read, keep, data = INT32(0), INT32(3), INT32(1)
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind), [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@intrinsic
def spread(typing: Any, x: Any) -> Any:
    """x in every lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(VECTOR, ir.Undefined)
        single = builder.insert_element(nothing, args[0], INT32(0))
        return builder.shuffle_vector(single, nothing, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))

    return lanes(types.float32), generate


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """The sum of all lanes, added in halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        size = LANES
        while size > 1:
            size //= 2
            low, high = (ir.Constant(ir.VectorType(INT32, size), list(range(at, at + size))) for at in (0, size))
            value = builder.fadd(builder.shuffle_vector(value, value, low), builder.shuffle_vector(value, value, high))
        return builder.extract_element(value, INT32(0))

    return types.float32(lanes), generate


@intrinsic
def sqrt(typing: Any, x: Any) -> Any:
    """The square root of each lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(VECTOR, [VECTOR])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f32"), args)

    return lanes(lanes), generate


def _define(operation: Any, instruction: str) -> None:
    """Let `operation` on two lanes be one instruction of LLVM."""

    @intrinsic
    def combine(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(*args)

        return lanes(lanes, lanes), generate

    @extending.overload(operation)
    def on_lanes(a: Any, b: Any) -> Any:
        def implementation(a: Any, b: Any) -> Any:
            return combine(a, b)

        return implementation if a == lanes and b == lanes else None


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")
