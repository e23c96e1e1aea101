"""The kernel that multiplies rows by weights in tiles without unpacking them. Needs llvmlite.

The 32 outputs of a tile are 32 lanes of a vector. For each pair of inputs, the kernel loads one
vector of weights, decodes it in registers, and adds its products with every row. So weights are
decoded once for up to `MAX_ROWS` rows, and decoded weights are never stored. The kernel is written
in LLVM's vector instructions, which LLVM lowers to the machine's (AVX-512, AVX2, NEON) when a
kernel is first used: no C compiler is needed, and ctypes, which calls it, releases the GIL.

Alternatives: numba's loops kept the sums in memory, `jax.ffi` needs a library compiled for each
kind of machine, and XLA decodes weights into memory, which takes ten times as long.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from llada_jax.revision.tiles import BIAS, NIBBLE_BYTES, Q4_0_BYTES, TILE

MAX_ROWS = 8
"""Maximum number of rows in one pass over the weights."""

_INT, _LONG, _BYTE = ir.IntType(32), ir.IntType(64), ir.IntType(8)
_HALF, _FLOAT = ir.HalfType(), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_INT, TILE), ir.VectorType(_FLOAT, TILE)
_ARGUMENTS = (ctypes.c_void_p,) * 3 + (ctypes.c_int64,) * 3
_SYMBOL = "multiply"

Value = Any
"""A value of the function that is generated; llvmlite has no types."""
Values = Sequence[Value]
_Body = Callable[[Value, Values], Values]
"""Maps a loop's index and carried values to the next carried values."""
_MAX_ROWS_FOR_TWO_SUMS = 3  # see `Emitter._products`


@cache
def kernel_for(n_rows: int) -> Callable[..., None]:
    """Compiles the kernel for this number of rows, 1 to `MAX_ROWS`.

    `kernel(blocks, inputs, outputs, first, last)` computes columns `first` to `last` of tiles [o,
    i, length]: `inputs` [In, R], contiguous, times these, into `outputs` [Out, R]; both float32.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    module = llvm.parse_assembly(str(Emitter(n_rows).module))
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    function = ctypes.CFUNCTYPE(None, *_ARGUMENTS)(engine.get_function_address(_SYMBOL))

    def kernel(
        blocks: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, first: int, last: int
    ) -> None:
        assert engine is not None  # the closure keeps the engine, and with it the code, alive
        pointers = (array.ctypes.data for array in (blocks, inputs, outputs))
        function(*pointers, blocks.shape[1], first, last)

    return kernel


class Emitter:
    """Generates a module with one function, which has no calls and decodes into registers."""

    def __init__(self, n_rows: int):
        self._n_rows = n_rows
        self.module = ir.Module(_SYMBOL)
        self.module.triple = llvm.get_default_triple()
        pointer = ir.PointerType()
        signature = ir.FunctionType(ir.VoidType(), [pointer] * 3 + [_LONG] * 3)
        function = ir.Function(self.module, signature, _SYMBOL)
        for argument in function.args[:3]:
            argument.add_attribute("noalias")
        self._multiply_add = ir.Function(
            self.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fmuladd.v{TILE}f32"
        )
        self._build: Any = ir.IRBuilder(function.append_basic_block())
        self._columns(*function.args)
        self._build.ret_void()

    def _columns(self, blocks, inputs, outputs, n_tiles, first, last) -> None:
        def column(index: Value, _: Values) -> Values:
            start = self._build.mul(index, n_tiles)

            def tile(row: Value, sums: Values) -> Values:
                tile_offset = self._build.mul(self._build.add(start, row), _LONG(Q4_0_BYTES))
                input_offset = self._build.mul(row, _LONG(4 * TILE * self._n_rows))
                tile_inputs = self._at(inputs, input_offset)
                return self._tile(self._at(blocks, tile_offset), tile_inputs, sums)

            sums = self._loop(_LONG(0), n_tiles, [_FLOATS(None)] * self._n_rows, tile)
            offset = self._build.mul(index, _LONG(4 * TILE * self._n_rows))
            for r, total in enumerate(sums):
                target = self._at(outputs, self._build.add(offset, _LONG(4 * TILE * r)))
                self._build.store(total, target, align=4)
            return []

        self._loop(first, last, [], column)

    def _tile(self, tile: Value, inputs: Value, sums: Values) -> Values:
        """Returns the sums plus a tile's inputs times the tile."""
        products = self._products(tile, inputs)
        halfs = self._load(tile, _LONG(NIBBLE_BYTES), ir.VectorType(_HALF, TILE))
        scale = self._build.fpext(halfs, _FLOATS)
        return [
            self._build.call(self._multiply_add, [scale, product, total])
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
            pair_inputs = self._at(inputs, self._build.mul(index, _LONG(2 * 4 * n_rows)))
            even, odd = self._weights(tile, index)
            first = self._add_products(sums[:n_rows], even, pair_inputs, 0)
            second = self._add_products(sums[n_rows:] or first, odd, pair_inputs, n_rows)
            return [*first, *second] if two_sums else second

        sums = self._loop(_LONG(0), _LONG(TILE // 2), carried, pair)
        if not two_sums:
            return sums
        return [self._build.fadd(sums[r], sums[n_rows + r]) for r in range(n_rows)]

    def _weights(self, tile: Value, pair: Value) -> Values:
        """Returns the weights of a pair of inputs, first the even one's, as floats."""
        offset = self._build.mul(pair, _LONG(TILE))
        packed = self._load(tile, offset, ir.VectorType(_BYTE, TILE))
        low, shift, bias = (ir.Constant(packed.type, [_BYTE(n)] * TILE) for n in (15, 4, BIAS))
        nibbles = self._build.and_(packed, low), self._build.lshr(packed, shift)
        return [self._build.sitofp(self._build.sub(n, bias), _FLOATS) for n in nibbles]

    def _add_products(self, sums: Values, weights: Value, inputs: Value, first: int) -> Values:
        """Returns the sums plus one input's weights times that input, for each row."""
        added = []
        for r, total in enumerate(sums):
            value = self._load(inputs, _LONG(4 * (first + r)), _FLOAT)
            undefined = ir.Constant(_FLOATS, ir.Undefined)
            one = self._build.insert_element(undefined, value, _INT(0))
            everywhere = self._build.shuffle_vector(one, undefined, _INTS(None))
            added.append(self._build.call(self._multiply_add, [everywhere, weights, total]))
        return added

    def _loop(self, start: Value, stop: Value, carried: Values, body: _Body) -> Values:
        """Returns the carried values after a loop over [start, stop), which must not be empty."""
        build = self._build
        before, inside = build.block, build.append_basic_block()
        build.branch(inside)
        build.position_at_end(inside)
        index = build.phi(_LONG)
        phis = [build.phi(value.type) for value in carried]
        results = body(index, phis)
        after = build.add(index, _LONG(1))
        entries = zip([index, *phis], [start, *carried], [after, *results], strict=True)
        for phi, first, again in entries:
            phi.add_incoming(first, before)
            phi.add_incoming(again, build.block)
        done = build.append_basic_block()
        build.cbranch(build.icmp_signed("<", after, stop), inside, done)
        build.position_at_end(done)
        return results

    def _at(self, base: Value, offset: Value) -> Value:
        """Returns a pointer `offset` bytes after `base`."""
        return self._build.gep(base, [offset], source_etype=_BYTE)

    def _load(self, base: Value, offset: Value, kind: Any) -> Value:
        return self._build.load(self._at(base, offset), align=1, typ=kind)
