"""The kernel that multiplies rows by tiles as they lie in memory. Needs numba.

A tile's 32 outputs are 32 lanes of a vector: for each pair of inputs the kernel loads one vector of
weights, decodes it in registers, and adds its products with every row. So a weight is decoded once
for up to `MAX_ROWS` rows, and nothing decoded is ever stored. The body of a tile is written as LLVM
vectors, because loops over lanes in Python keep the sums in memory; LLVM lowers the vectors to
whatever the machine has (AVX-512, AVX2, NEON).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from llada_jax.revision.tiles import BIAS, NIBBLE_BYTES, Q4_0_BYTES, TILE, Kind

MAX_ROWS = 8
"""Rows that one pass over the weights serves."""

_BYTE, _HALF, _FLOAT = ir.IntType(8), ir.HalfType(), ir.FloatType()
_BYTES, _HALFS = ir.VectorType(_BYTE, TILE), ir.VectorType(_HALF, TILE)
_PAIR_OF_HALFS, _FLOATS = ir.VectorType(_HALF, 2 * TILE), ir.VectorType(_FLOAT, TILE)

Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray, int, int], None]
"""`kernel(blocks [o, i, length], x [In, R], out [R, Out], first, last)`: tiles' columns first to
last, into `out`; releases the GIL."""


@cache
def kernel_for(kind: Kind, n_rows: int) -> Kernel:
    """The kernel for this many rows, 1 to `MAX_ROWS`; compiled by its first call, in a second."""
    tile_product = intrinsic(_tile_product(kind, n_rows))

    @numba.njit(nogil=True, boundscheck=False)
    def kernel(blocks, x, out, first, last):
        sums = np.zeros((n_rows, TILE), np.float32)
        for column in range(first, last):
            sums[:] = 0
            for row in range(blocks.shape[1]):
                tile_product(blocks, x, sums, column * blocks.shape[1] + row, row)
            for r in range(n_rows):
                for lane in range(TILE):
                    out[r, column * TILE + lane] = sums[r, lane]

    return kernel


def _tile_product(kind: Kind, n_rows: int) -> Callable[..., Any]:
    """`tile_product(blocks, x, sums, tile, row)`: sums += x of the tile's inputs by the tile."""
    emit = partial(_EMITTERS[kind], n_rows=n_rows)

    def tile_product(typing, blocks, x, sums, tile, row):  # noqa: ANN
        def codegen(context, builder, signature, args):
            pointers = [
                context.make_array(array_type)(context, builder, value).data
                for array_type, value in zip(signature.args[:3], args[:3], strict=True)
            ]
            emit(builder, *pointers, *args[3:])
            return context.get_dummy_value()

        return types.void(blocks, x, sums, types.intp, types.intp), codegen

    return tile_product


def _emit_q4_0(builder, blocks, x, sums, tile, row, *, n_rows: int) -> None:
    start = _offset(builder, blocks, builder.mul(tile, _int(Q4_0_BYTES)), _BYTE)
    inputs = _offset(builder, x, builder.mul(row, _int(TILE * n_rows)), _FLOAT)
    partial_sums = [_FLOATS(None)] * n_rows
    mask, shift, bias = (ir.Constant(_BYTES, [_BYTE(v)] * TILE) for v in (15, 4, BIAS))
    for pair in range(TILE // 2):
        packed = _load(builder, start, pair * TILE, _BYTE, _BYTES)
        nibbles = builder.and_(packed, mask), builder.lshr(packed, shift)
        for half, integers in enumerate(nibbles):
            weights = builder.sitofp(builder.sub(integers, bias), _FLOATS)
            first = (2 * pair + half) * n_rows
            partial_sums = _add_products(builder, partial_sums, weights, inputs, first)
    scale = builder.fpext(_load(builder, start, NIBBLE_BYTES, _BYTE, _HALFS), _FLOATS)
    for r, product in enumerate(partial_sums):
        place = _pointer(builder, sums, r * TILE, _FLOAT, _FLOATS)
        total = builder.load(place, align=4)
        builder.store(_multiply_add(builder, scale, product, total), place, align=4)


def _emit_float16(builder, blocks, x, sums, tile, row, *, n_rows: int) -> None:
    start = _offset(builder, blocks, builder.mul(tile, _int(TILE * TILE)), _HALF)
    inputs = _offset(builder, x, builder.mul(row, _int(TILE * n_rows)), _FLOAT)
    places = [_pointer(builder, sums, r * TILE, _FLOAT, _FLOATS) for r in range(n_rows)]
    totals = [builder.load(place, align=4) for place in places]
    for pair in range(TILE // 2):
        both = _load(builder, start, pair * 2 * TILE, _HALF, _PAIR_OF_HALFS)
        for half in range(2):
            lanes = ir.Constant(
                ir.VectorType(ir.IntType(32), TILE), [2 * lane + half for lane in range(TILE)]
            )
            halfs = builder.shuffle_vector(both, ir.Constant(both.type, ir.Undefined), lanes)
            weights = builder.fpext(halfs, _FLOATS)
            totals = _add_products(builder, totals, weights, inputs, (2 * pair + half) * n_rows)
    for place, total in zip(places, totals, strict=True):
        builder.store(total, place, align=4)


_EMITTERS: dict[Kind, Callable[..., None]] = {"q4_0": _emit_q4_0, "float16": _emit_float16}


def _add_products(builder, sums, weights, inputs, first: int) -> list[ir.Value]:
    """The sums with one input's weights, times that input of each row."""
    added = []
    for r, total in enumerate(sums):
        value = builder.load(_pointer(builder, inputs, first + r, _FLOAT, _FLOAT), align=4)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), TILE), [0] * TILE)
        undefined = ir.Constant(_FLOATS, ir.Undefined)
        splat = builder.insert_element(undefined, value, ir.IntType(32)(0))
        splat = builder.shuffle_vector(splat, undefined, lanes)
        added.append(_multiply_add(builder, splat, weights, total))
    return added


def _multiply_add(builder, a, b, c) -> ir.Value:
    """a * b + c, rounded once where the machine can."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    function = get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{TILE}f32")
    return builder.call(function, [a, b, c])


def _int(value: int) -> ir.Constant:
    return ir.IntType(64)(value)


def _offset(builder, pointer, index, element: ir.Type) -> ir.Value:
    typed = builder.bitcast(pointer, element.as_pointer())
    return builder.gep(typed, [index])


def _pointer(builder, base, index: int, element: ir.Type, target: ir.Type) -> ir.Value:
    return builder.bitcast(_offset(builder, base, _int(index), element), target.as_pointer())


def _load(builder, base, index: int, element: ir.Type, target: ir.Type) -> ir.Value:
    return builder.load(_pointer(builder, base, index, element, target), align=1)
