"""Eight numbers at a time, for compiled functions: `load` them from a row, calculate with operators, `store` them back.

Left to LLVM, a loop over one row of F floats costs more around the loop than in it: a hundred instructions per row to prove
that the arrays do not overlap, to wrap negative indices and to treat what is left over (Adam update with F = 32: 47 ns a row,
in lanes 28 ns, with `prefetch` 21 ns; blocks of 8 or 16 as constant inner loops do not vectorise at all). The processor needs
no registers of this width, LLVM splits them where there are none; and sums have one order on every machine.

There are lanes of float32 and of 32-bit integers, which are signed where that matters but for >> and `high_product`.
Comparisons give a mask: integers with all bits set where true, else 0. Rows must be a multiple of `LANES` wide, and the caller
answers for indices: nothing is checked. An array of one dimension is one row.
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

INT32, INT64, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR, INTEGERS, TRUTHS = (ir.VectorType(kind, LANES) for kind in (FLOAT, INT32, ir.IntType(1)))


class LanesType(types.Type):  # type: ignore[misc]
    """Numba's name for eight float32 or int32 in one register."""

    def __init__(self, kind: str) -> None:
        super().__init__(name=f"{kind}x{LANES}")


lanes, integers = LanesType("float32"), LanesType("int32")


@extending.register_model(LanesType)
class LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: LanesType) -> None:
        super().__init__(manager, kind, VECTOR if kind == lanes else INTEGERS)


def intrinsic(function: Callable[..., Any]) -> Any:
    """`numba.extending.intrinsic`, whose own type describes the decorated function and not the one it stands for."""
    return extending.intrinsic(function)


def padded(dim: int) -> int:
    """The width of a row that holds `dim` floats."""
    return -(-dim // LANES) * LANES


def whole_lines(n: int) -> int:
    """n floats, rounded up to whole cache lines."""
    return -(-n // FLOATS_PER_LINE) * FLOATS_PER_LINE


def aligned_zeros(*shape: int) -> NDArray[np.float32]:
    """Zeros that start on a cache line: rows that straddle lines cost a few per cent of an epoch."""
    size = 4 * math.prod(shape)
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(np.float32).reshape(shape)


def address_of(context: Any, builder: Any, array_type: Any, array: Any, row: Any, column: Any) -> Any:
    """Where array[row, column] of a C-ordered matrix lies in memory."""
    matrix = context.make_array(array_type)(context, builder, array)
    width = cgutils.unpack_tuple(builder, matrix.shape, array_type.ndim)[-1]
    return builder.gep(matrix.data, [builder.add(builder.mul(row, width), column)])


def load_from(builder: Any, address: Any, kind: Any = VECTOR) -> Any:
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=4)


def kind_of(array: Any) -> LanesType:
    return lanes if array.dtype == types.float32 else integers


@intrinsic
def load(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """array[row, column : column + LANES]."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = address_of(context, builder, signature.args[0], *args)
        return load_from(builder, address, context.get_value_type(signature.return_type))

    return kind_of(array)(array, types.intp, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, row: Any, column: Any, value: Any) -> Any:
    """array[row, column : column + LANES] = value."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = address_of(context, builder, signature.args[0], *args[:3])
        builder.store(args[3], builder.bitcast(address, args[3].type.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, kind_of(array)), generate


@intrinsic
def pick(typing: Any, array: Any, start: Any, places: Any) -> Any:
    """array[start + place] for each of eight places."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        picked = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
        for lane in map(INT32, range(LANES)):
            place = builder.zext(builder.extract_element(args[2], lane), INT64)
            picked = builder.insert_element(picked, builder.load(builder.gep(row, [place])), lane)
        return picked

    return kind_of(array)(array, types.intp, integers), generate


@intrinsic
def lowest_bit(typing: Any, x: Any) -> Any:
    """The place of the lowest bit of x that is set; 64 if none is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of array[row, column], which will be needed soon."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.bitcast(address_of(context, builder, signature.args[0], *args), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, INT32, INT32, INT32])
        read, keep, data = INT32(0), INT32(3), INT32(1)
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind), [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


def shuffle(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    """Lanes of a (from 0 on) and b (from its width on) by their places."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INT32, len(places)), places))


@intrinsic
def spread(typing: Any, x: Any) -> Any:
    """x in every lane."""
    kind, number = (integers, types.int32) if isinstance(x, types.Integer) else (lanes, types.float32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(context.get_value_type(kind), ir.Undefined)
        return shuffle(builder, builder.insert_element(nothing, args[0], INT32(0)), nothing, [0] * LANES)

    return kind(number), generate


@intrinsic
def count_from(typing: Any, start: Any) -> Any:
    """start, start + 1, ..."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(INTEGERS, ir.Undefined)
        starts = shuffle(builder, builder.insert_element(nothing, args[0], INT32(0)), nothing, [0] * LANES)
        return builder.add(starts, ir.Constant(INTEGERS, list(range(LANES))))

    return integers(types.int32), generate


def _fold(builder: Any, combine: Callable[[Any, Any], Any], value: Any) -> Any:
    """All lanes combined to one number, in halves."""
    size = LANES
    while size > 1:
        size //= 2
        low, high = (list(range(at, at + size)) for at in (0, size))
        value = combine(shuffle(builder, value, value, low), shuffle(builder, value, value, high))
    return builder.extract_element(value, INT32(0))


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """The sum of all lanes, added in halves."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fold(builder, builder.fadd, args[0])

    return types.float32(lanes), generate


@intrinsic
def largest(typing: Any, x: Any) -> Any:
    """The largest of all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fold(builder, lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b), args[0])

    return types.float32(lanes), generate


def _define(operation: Any, kind: LanesType, result: LanesType, generate: Callable[..., Any]) -> None:
    """Let `operation` on two lanes of `kind` be the instruction of LLVM that `generate(builder, a, b)` makes."""

    @extending.type_callable(operation)
    def typer_of(context: Any) -> Any:
        return lambda a, b: result if a == kind and b == kind else None

    extending.lower_builtin(operation, kind, kind)(lambda context, builder, signature, args: generate(builder, *args))


def mask_of(builder: Any, truths: Any) -> Any:
    return builder.sext(truths, INTEGERS)


for _operation, _name in ((operator.add, "add"), (operator.sub, "sub"), (operator.mul, "mul")):
    _define(_operation, lanes, lanes, lambda builder, a, b, name=_name: getattr(builder, f"f{name}")(a, b))
    _define(_operation, integers, integers, lambda builder, a, b, name=_name: getattr(builder, name)(a, b))
_define(operator.truediv, lanes, lanes, lambda builder, a, b: builder.fdiv(a, b))
for _operation, _name in ((operator.and_, "and_"), (operator.xor, "xor"), (operator.lshift, "shl"), (operator.rshift, "lshr")):
    _define(_operation, integers, integers, lambda builder, a, b, name=_name: getattr(builder, name)(a, b))
for _operation, _name in ((operator.lt, "<"), (operator.gt, ">"), (operator.ge, ">=")):
    _define(_operation, lanes, integers, lambda builder, a, b, name=_name: mask_of(builder, builder.fcmp_ordered(name, a, b)))
    _define(_operation, integers, integers, lambda builder, a, b, name=_name: mask_of(builder, builder.icmp_signed(name, a, b)))


def truths_of(builder: Any, mask: Any) -> Any:
    return builder.icmp_signed("!=", mask, ir.Constant(INTEGERS, None))


@intrinsic
def where(typing: Any, mask: Any, a: Any, b: Any) -> Any:
    """a in lanes where the mask is set, else b."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(truths_of(builder, args[0]), args[1], args[2])

    return a(integers, a, a), generate


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> Any:
    """The larger of a and b in each lane; b where a is not a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        compare = builder.fcmp_ordered if a == lanes else builder.icmp_signed
        return builder.select(compare(">", *args), *args)

    return a(a, a), generate


@intrinsic
def select(typing: Any, condition: Any, a: Any, b: Any) -> Any:
    """The number a if the condition holds, else b, without a jump, which is slow where nobody can guess it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chosen = builder.select(*args)
        chosen.set_metadata("unpredictable", builder.module.add_metadata([]))
        return chosen

    return a(types.boolean, a, a), generate


@intrinsic
def ones(typing: Any, x: Any) -> Any:
    """How many bits of x are set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint32(types.uint32), generate


@intrinsic
def high_product(typing: Any, a: Any, b: Any) -> Any:
    """The upper 32 bits of the products of unsigned numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(INT64, LANES)
        product = builder.mul(*(builder.zext(x, wide) for x in args))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, [32] * LANES)), INTEGERS)

    return integers(integers, integers), generate


def _conversion(name: str, instruction: str, kind: LanesType, result: LanesType, doc: str) -> Any:
    """The instruction of LLVM from lanes of `kind` to those of `result`."""

    def function(typing: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, instruction)(args[0], context.get_value_type(result))

        return result(kind), generate

    function.__name__, function.__doc__ = name, doc
    return intrinsic(function)


as_integers = _conversion("as_integers", "fptosi", lanes, integers, "Floats cut to whole numbers.")
to_floats = _conversion("to_floats", "sitofp", integers, lanes, "Whole numbers as floats.")
as_floats = _conversion("as_floats", "bitcast", integers, lanes, "The floats that have these bits.")
as_bits = _conversion("as_bits", "bitcast", lanes, integers, "The bits of floats.")


def _elementwise(name: str, doc: str) -> Any:
    """The function of LLVM of this name, on each lane."""

    def function(typing: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(VECTOR, [VECTOR])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"), args)

        return lanes(lanes), generate

    function.__name__, function.__doc__ = name, doc
    return intrinsic(function)


sqrt = _elementwise("sqrt", "The square root of each lane.")
floor = _elementwise("floor", "The next whole number below each lane.")
fabs = _elementwise("fabs", "Each lane without its sign.")
