"""Functions of `srns.kernels.lanes` that look across lanes, and scalar products of eight rows at once."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils

from srns.kernels.lanes import (
    INT32,
    INT64,
    INTEGERS,
    LANES,
    VECTOR,
    address_of,
    integers,
    intrinsic,
    lanes,
    load_from,
    mask_of,
    shuffle,
    truths_of,
)

cgutils: Any = untyped_cgutils


def _flags_of(builder: Any, mask: Any) -> Any:
    return builder.zext(builder.bitcast(truths_of(builder, mask), ir.IntType(LANES)), INT64)


@intrinsic
def count(typing: Any, mask: Any) -> Any:
    """In how many lanes the mask is set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(_flags_of(builder, args[0]))

    return types.intp(integers), generate


@intrinsic
def flags(typing: Any, mask: Any) -> Any:
    """The lanes where the mask is set, as the bits of a number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _flags_of(builder, args[0])

    return types.uint64(integers), generate


@intrinsic
def among(typing: Any, a: Any, b: Any) -> Any:
    """A mask of the lanes of `a` that equal any lane of `b`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = ir.Constant(INTEGERS, None)
        for lane in range(LANES):
            one = shuffle(builder, args[1], args[1], [lane] * LANES)
            found = builder.or_(found, mask_of(builder, builder.icmp_signed("==", args[0], one)))
        return found

    return integers(integers, integers), generate


@intrinsic
def dots(typing: Any, a: Any, row: Any, column_a: Any, b: Any, rows: Any, column_b: Any, width: Any) -> Any:
    """The products of a[row, column_a : column_a + width] with the same of eight rows of b from column_b on.

    One register of `a` serves eight rows, and their sums are made together: half of what eight times `total` costs.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, column_a, rows, column_b, width = args[1], args[2], args[4], args[5], args[6]
        left = address_of(context, builder, signature.args[0], args[0], row, column_a)
        right = [
            address_of(context, builder, signature.args[3], args[3], builder.sext(place, INT64), column_b)
            for place in (builder.extract_element(rows, INT32(lane)) for lane in range(LANES))
        ]
        sums = [cgutils.alloca_once(builder, VECTOR) for _ in range(LANES)]
        for slot in sums:
            builder.store(ir.Constant(VECTOR, None), slot)
        with cgutils.for_range_slice(builder, INT64(0), width, INT64(LANES), INT64) as (f, _):
            value = load_from(builder, builder.gep(left, [f]))
            for slot, address in zip(sums, right, strict=True):
                product = builder.fmul(value, load_from(builder, builder.gep(address, [f])))
                builder.store(builder.fadd(builder.load(slot), product), slot)
        return _totals(builder, [builder.load(slot) for slot in sums])

    return lanes(a, types.intp, types.intp, b, integers, types.intp, types.intp), generate


def _totals(builder: Any, parts: list[Any]) -> Any:
    """Lane k is the sum of the lanes of parts[k]: neighbours are added in pairs, which halves the parts, thrice.

    Shuffles stay within halves of a register until the last, where crossing is dear.
    """
    even, odd = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
    while len(parts) > 2:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [builder.fadd(shuffle(builder, x, y, even), shuffle(builder, x, y, odd)) for x, y in pairs]
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    x, y = parts
    return builder.fadd(shuffle(builder, x, y, low), shuffle(builder, x, y, high))
