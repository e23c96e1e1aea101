"""The kernel that multiplies rows by weights in tiles without unpacking them. Needs llvmlite.

The 32 outputs of a tile are 32 lanes of a vector. For each pair of inputs, the kernel loads one
vector of weights, decodes it in registers, and adds its products with every row. So weights are
decoded once for up to `MAX_ROWS` rows, and decoded weights are never stored. The kernel is written
in LLVM's vector instructions, which LLVM lowers to the machine's (AVX-512, AVX2, NEON) when a
kernel is first used: no C compiler is needed, and ctypes, which calls it, releases the GIL.

Alternatives: numba's loops kept the sums in memory, `jax.ffi` needs a library compiled for each
kind of machine, and XLA decodes weights into memory, which takes ten times as long.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from llvmlite import ir

from llada_jax.llvm_code import (
    BYTE,
    FLOAT,
    INT,
    LONG,
    POINTER,
    FunctionEmitter,
    Value,
    Values,
)
from llada_jax.revision.tiles import BIAS, NIBBLE_BYTES, Q4_0_BYTES, TILE

MAX_ROWS = 8
"""Maximum number of rows in one pass over the weights."""

_INTS, _FLOATS = ir.VectorType(INT, TILE), ir.VectorType(FLOAT, TILE)
_MAX_ROWS_FOR_TWO_SUMS = 3  # see `Emitter._products`


@cache
def kernel_for(n_rows: int) -> Callable[..., None]:
    """Compiles the kernel for this number of rows, 1 to `MAX_ROWS`.

    `kernel(blocks, inputs, outputs, first, last)` computes columns `first` to `last` of tiles [o,
    i, length]: `inputs` [In, R], contiguous, times these, into `outputs` [Out, R]; both float32.
    """
    function = Emitter(n_rows).compile()

    def kernel(
        blocks: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, first: int, last: int
    ) -> None:
        pointers = (array.ctypes.data for array in (blocks, inputs, outputs))
        function(*pointers, blocks.shape[1], first, last)

    return kernel


class Emitter(FunctionEmitter):
    """Generates a function that has no calls and decodes into registers."""

    def __init__(self, n_rows: int):
        super().__init__("multiply", [POINTER] * 3 + [LONG] * 3)
        self._n_rows = n_rows
        for argument in self.function.args[:3]:
            argument.add_attribute("noalias")
        self._columns(*self.function.args)
        self.build.ret_void()

    def _columns(self, blocks, inputs, outputs, n_tiles, first, last) -> None:
        def column(index: Value, _: Values) -> Values:
            start = self.build.mul(index, n_tiles)

            def tile(row: Value, sums: Values) -> Values:
                tile_offset = self.build.mul(self.build.add(start, row), LONG(Q4_0_BYTES))
                input_offset = self.build.mul(row, LONG(4 * TILE * self._n_rows))
                tile_inputs = self.at(inputs, input_offset)
                return self._tile(self.at(blocks, tile_offset), tile_inputs, sums)

            _, sums = self.loop(0, n_tiles, [_FLOATS(None)] * self._n_rows, tile)
            offset = self.build.mul(index, LONG(4 * TILE * self._n_rows))
            for r, total in enumerate(sums):
                target = self.at(outputs, self.build.add(offset, LONG(4 * TILE * r)))
                self.build.store(total, target, align=4)
            return []

        self.loop(first, last, [], column)

    def _tile(self, tile: Value, inputs: Value, sums: Values) -> Values:
        """Returns the sums plus a tile's inputs times the tile."""
        products = self._products(tile, inputs)
        halfs = self.load(tile, LONG(NIBBLE_BYTES), ir.VectorType(ir.HalfType(), TILE))
        scale = self.build.fpext(halfs, _FLOATS)
        return [
            self._multiply_add(scale, product, total)
            for product, total in zip(products, sums, strict=True)
        ]

    def _products(self, tile: Value, inputs: Value) -> Values:
        """Returns a tile's inputs times its weights, without the scales.

        With few rows there are few sums, and each addition waits for the previous one to the same
        sum. So these get a second sum for the odd inputs.
        """
        n_rows = self._n_rows
        two_sums = n_rows <= _MAX_ROWS_FOR_TWO_SUMS
        carried = [_FLOATS(None)] * (2 * n_rows if two_sums else n_rows)

        def pair(index: Value, sums: Values) -> Values:
            pair_inputs = self.at(inputs, self.build.mul(index, LONG(2 * 4 * n_rows)))
            even, odd = self._weights(tile, index)
            first = self._add_products(sums[:n_rows], even, pair_inputs, 0)
            second = self._add_products(sums[n_rows:] or first, odd, pair_inputs, n_rows)
            return [*first, *second] if two_sums else second

        _, sums = self.loop(0, TILE // 2, carried, pair)
        if not two_sums:
            return sums
        return [self.build.fadd(sums[r], sums[n_rows + r]) for r in range(n_rows)]

    def _weights(self, tile: Value, pair: Value) -> Values:
        """Returns the weights of a pair of inputs, first the even one's, as floats."""
        offset = self.build.mul(pair, LONG(TILE))
        packed = self.load(tile, offset, ir.VectorType(BYTE, TILE))
        low, shift, bias = (ir.Constant(packed.type, [BYTE(n)] * TILE) for n in (15, 4, BIAS))
        nibbles = self.build.and_(packed, low), self.build.lshr(packed, shift)
        return [self.build.sitofp(self.build.sub(n, bias), _FLOATS) for n in nibbles]

    def _add_products(self, sums: Values, weights: Value, inputs: Value, first: int) -> Values:
        """Returns the sums plus one input's weights times that input, for each row."""
        added = []
        for r, total in enumerate(sums):
            value = self.load(inputs, LONG(4 * (first + r)), FLOAT)
            added.append(self._multiply_add(self.splat(value, _FLOATS), weights, total))
        return added

    def _multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        return self.call(f"llvm.fmuladd.v{TILE}f32", _FLOATS, [a, b, c])
