"""The product of rows with an int8 matrix, both from memory: one call does it all on each thread.

First the rows are quantized as `model.quantize.linear` does it (symmetric, by their largest
magnitude), after a norm or SwiGLU if requested, so that these need no pass of their own. Then each
thread takes columns until none is left. Threads share the work by atomic counters, so a thread that
starts late or is interrupted does less, and none waits for another to arrive.

Weights are read in the order in which they are stored (`product.PackedWeight`), once for any number
of rows: with few rows the speed of memory is the limit. A piece of the rows [32, 512] stays in the
first-level cache while a group of columns passes. Sums are exact in int32.

Instructions: `tdpbusd` on tiles of 16 x 64 (AMX), `vpdpbusd` (AVX-512 VNNI), `sdot` (ARM), or plain
vector products. Rows are stored as unsigned bytes with 128 added, because both of Intel's want it;
128 times the sum of a column's weights is subtracted at the end.
"""

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import llvmlite.binding as llvm
from llvmlite import ir

from llada_jax.llvm_code import (
    BYTE,
    FLOAT,
    INT,
    LONG,
    POINTER,
    VOID,
    FunctionEmitter,
    Value,
    Values,
)
from llada_jax.model.quantize import SMALLEST

Form = Literal["plain", "norm", "swiglu"]
"""What happens to rows before the product."""
Instructions = Literal["amx", "vnni", "sdot", "plain"]

COLUMN, STEP, CHUNK_STEPS, GROUP = 32, 64, 8, 8
"""Outputs of a column, inputs of a step, steps of a chunk, columns of a group."""
BLOCK_BYTES = COLUMN * STEP
TILE_ROWS = 16
POINTERS = ("weights", "sums_of_weights", "scales", "rows", "second", "packed", "row_scales", "out")
NUMBERS = ("inputs", "row_stride", "steps", "n_rows", "n_columns", "out_stride", "eps")
FIELDS = (*POINTERS, *NUMBERS)
NEXT_ROW, ROWS_DONE, NEXT_PART, PARTS_DONE = 16, 24, 32, 40  # on cache lines of their own
JOB_WORDS = 48

_INTS, _FLOATS = ir.VectorType(INT, 16), ir.VectorType(FLOAT, 16)
_BYTES, _ALL_BYTES = ir.VectorType(BYTE, 16), ir.VectorType(BYTE, 64)
_BLOCK_ROWS = {"amx": (32, 16), "vnni": (8, 4, 2, 1), "sdot": (4, 2, 1), "plain": (4, 2, 1)}
_NEAR = 8192  # bytes that weights are prefetched ahead with few rows
_PREFETCHES = 2  # for each 4 inputs; all of a step at once would delay the loads of its weights
_FEW_ROWS = {"amx": 32}  # otherwise 16: a piece of more rows shares the first level with weights
_PAUSES = 64  # between looks at a counter, before the processor is given to another thread
_TILES = bytes([1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8)
"""Configuration of AMX: 8 tiles of 16 rows of 64 bytes."""


@cache
def best_instructions() -> Instructions:
    """Returns the best instructions of this CPU. Asks Linux to keep AMX tiles for this process."""
    features = llvm.get_host_cpu_features()
    if features.get("amx-int8") and platform.system() == "Linux":
        if ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0:  # arch_prctl(ARCH_REQ_XCOMP_PERM)
            return "amx"
    if features.get("avx512vnni"):
        return "vnni"
    return "sdot" if features.get("dotprod") else "plain"


@cache
def product_kernel(
    form: Form, adds: bool, instructions: Instructions | None = None
) -> Callable[[int], None]:
    """Returns `kernel(job)`, to be called by each thread with the address of the same `JOB_WORDS`
    integers: `FIELDS`, and counters, which are 0.

    Args:
      form: "norm": rows times the inverse of their root mean square times `second`. "swiglu":
        silu(rows) times `second`, which has the same strides.
      adds: Whether products are added to `out`, or stored.
    """
    best = best_instructions()  # also asks for AMX
    return ProductEmitter(form, adds, instructions or best).compile()


class ProductEmitter(FunctionEmitter):
    """Generates a kernel."""

    def __init__(self, form: Form, adds: bool, instructions: Instructions):
        super().__init__("product", [POINTER])
        (self._job,) = self.function.args
        self._form, self._adds = form, adds
        self._is_amx, self._is_x86 = instructions == "amx", instructions in ("amx", "vnni")
        self._sizes, self._few_rows = _BLOCK_ROWS[instructions], _FEW_ROWS.get(instructions, 16)
        self._add_block = self._add_tiles if self._is_amx else self._add_vectors
        self._dot = {"vnni": self._dot_vnni, "sdot": self._dot_sdot}.get(
            instructions, self._dot_plain
        )
        kinds = [POINTER] * len(POINTERS) + [LONG] * len(NUMBERS)
        self._field = {
            name: self.load(self._job, 8 * index, kind)
            for index, (name, kind) in enumerate(zip(FIELDS, kinds, strict=True))
        }
        self._emit()

    def _emit(self) -> None:
        build, field = self.build, self._field
        n_rows = field["n_rows"]
        tiles = build.sdiv(self.add(n_rows, TILE_ROWS - 1), LONG(TILE_ROWS))
        self._padded_rows = self.mul(tiles, TILE_ROWS) if self._is_amx else n_rows
        self._few = build.icmp_signed("<=", n_rows, LONG(self._few_rows))
        self._column_sums = self.mul(self._padded_rows, 4 * COLUMN)  # bytes
        sub_columns = build.select(self._few, LONG(GROUP), LONG(1))
        space = build.alloca(BYTE, size=self.mul(self._column_sums, sub_columns))
        space.align = 64
        self._sums = build.inttoptr(build.ptrtoint(space, LONG), POINTER)
        self._sub_columns = sub_columns
        self._share(NEXT_ROW, ROWS_DONE, n_rows, self._quantize_row)
        self._wait(ROWS_DONE, n_rows)
        if self._is_amx:
            shapes: Any = ir.GlobalVariable(self.module, ir.ArrayType(BYTE, len(_TILES)), "shapes")
            shapes.initializer = ir.Constant(shapes.value_type, [BYTE(x) for x in _TILES])
            shapes.global_constant, shapes.linkage = True, "private"
            address = build.inttoptr(build.ptrtoint(shapes, LONG), POINTER)
            self.call("llvm.x86.ldtilecfg", VOID, [address])
        last = build.sub(self.add(field["n_columns"], sub_columns), LONG(1))
        parts = build.sdiv(last, sub_columns)
        self._share(NEXT_PART, PARTS_DONE, parts, self._multiply_columns)
        self._wait(PARTS_DONE, parts)
        if self._is_amx:
            self.call("llvm.x86.tilerelease", VOID, [])
        build.ret_void()

    # Work sharing

    def _share(self, next_: int, done: int, total: Value, work: Callable[[Value], None]) -> None:
        """Takes numbers below `total` from a counter of all threads until none is left."""
        build = self.build
        head, inside, end = (build.append_basic_block() for _ in range(3))
        build.branch(head)
        build.position_at_end(head)
        index = build.atomic_rmw("add", self.at(self._job, 8 * next_), LONG(1), "monotonic")
        build.cbranch(build.icmp_signed("<", index, total), inside, end)
        build.position_at_end(inside)
        work(index)
        build.atomic_rmw("add", self.at(self._job, 8 * done), LONG(1), "acq_rel")
        build.branch(head)
        build.position_at_end(end)

    def _wait(self, done: int, total: Value) -> None:
        """Waits until all threads have done all of the work."""
        build = self.build
        head, again, end = (build.append_basic_block() for _ in range(3))
        build.branch(head)
        build.position_at_end(head)
        count = build.load_atomic(self.at(self._job, 8 * done), "acquire", 8, typ=LONG)
        build.cbranch(build.icmp_signed("<", count, total), again, end)
        build.position_at_end(again)
        if self._is_x86:
            self.loop(
                0, _PAUSES, [], lambda *_: self.call("llvm.x86.sse2.pause", VOID, []) and None
            )
        self.call("sched_yield", INT, [])
        build.branch(head)
        build.position_at_end(end)

    # Rows

    def _quantize_row(self, row: Value) -> None:
        build, field = self.build, self._field
        source = self.mul(self.mul(row, field["row_stride"]), 4)
        rows = self.at(field["rows"], source)
        second = field["second"] if self._form == "norm" else self.at(field["second"], source)
        zero = [_FLOATS(None)] * 4
        scale = None
        if self._form == "norm":

            def squares(index: Value, sums: Values) -> Values:
                parts = (self._vector(rows, index, j) for j in range(4))
                return [self._fma(x, x, total) for x, total in zip(parts, sums, strict=True)]

            _, sums = self.loop(0, field["steps"], zero, squares)
            pairs = build.fadd(sums[0], sums[1]), build.fadd(sums[2], sums[3])
            total = self.call(
                "llvm.vector.reduce.fadd.v16f32", FLOAT, [FLOAT(0.0), build.fadd(*pairs)]
            )
            mean = build.fdiv(total, build.sitofp(field["inputs"], FLOAT))
            eps = build.bitcast(build.trunc(field["eps"], INT), FLOAT)
            root = self.call("llvm.sqrt.f32", FLOAT, [build.fadd(mean, eps)])
            scale = self.splat(build.fdiv(FLOAT(1.0), root), _FLOATS)

        def value(index: Value, j: int) -> Value:
            x = self._vector(rows, index, j)
            if self._form == "plain":
                return x
            other = self._vector(second, index, j)
            left = build.fmul(x, scale) if self._form == "norm" else self._silu(x)
            return build.fmul(left, other)

        def magnitudes(index: Value, tops: Values) -> Values:
            parts = (self._absolute(value(index, j)) for j in range(4))
            return [self._larger(x, top) for x, top in zip(parts, tops, strict=True)]

        _, tops = self.loop(0, field["steps"], zero, magnitudes)
        top = self._larger(self._larger(tops[0], tops[1]), self._larger(tops[2], tops[3]))
        largest = self.call("llvm.vector.reduce.fmaximum.v16f32", FLOAT, [top])
        largest = self.call("llvm.maximum.f32", FLOAT, [largest, FLOAT(SMALLEST)])
        unit = build.fdiv(largest, FLOAT(127.0))
        self.store(unit, field["row_scales"], self.mul(row, 4))
        inverse = self.splat(build.fdiv(FLOAT(1.0), unit), _FLOATS)
        target = self._packed_row(row)

        def put(index: Value, _: Values) -> None:
            for j in range(4):
                scaled = build.fmul(value(index, j), inverse)
                whole = build.fptosi(self.call("llvm.rint.v16f32", _FLOATS, [scaled]), _INTS)
                shifted = build.add(whole, ir.Constant(_INTS, [128] * 16))
                offset = self.add(self.mul(index, TILE_ROWS * STEP), 16 * j)
                self.store(build.trunc(shifted, _BYTES), target, offset)

        self.loop(0, field["steps"], [], put)

    def _vector(self, base: Value, step: Value, j: int) -> Value:
        return self.load(base, self.add(self.mul(step, 4 * STEP), 64 * j), _FLOATS)

    def _absolute(self, x: Value) -> Value:
        return self.call("llvm.fabs.v16f32", _FLOATS, [x])

    def _larger(self, a: Value, b: Value) -> Value:
        return self.call("llvm.maximum.v16f32", _FLOATS, [a, b])  # keeps NaN

    def _fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.call("llvm.fma.v16f32", _FLOATS, [a, b, c])

    def _silu(self, x: Value) -> Value:
        one = _splat(1.0)
        return self.build.fdiv(x, self.build.fadd(one, self._exp(self.build.fneg(x))))

    def _exp(self, x: Value) -> Value:
        """Returns e ** x = 2 ** n * e ** r for the nearest integer n, with a Taylor series."""
        build = self.build
        low, high = _splat(-87.0), _splat(88.0)
        x = build.select(build.fcmp_ordered("<", x, low), low, x)
        x = build.select(build.fcmp_ordered(">", x, high), high, x)
        n = self.call("llvm.rint.v16f32", _FLOATS, [build.fmul(x, _splat(1.4426950408889634))])
        r = self._fma(n, _splat(-0.693145751953125), x)  # ln 2 in two parts
        r = self._fma(n, _splat(-1.42860682030941723212e-6), r)
        series, factorial = _splat(1 / 5040), 5040
        for k in range(7, 0, -1):
            factorial //= k
            series = self._fma(series, r, _splat(1 / factorial))
        exponent = build.add(build.fptosi(n, _INTS), ir.Constant(_INTS, [127] * 16))
        power = build.shl(exponent, ir.Constant(_INTS, [23] * 16))
        return build.fmul(series, build.bitcast(power, _FLOATS))

    def _packed_row(self, row: Value) -> Value:
        """Returns the address of a packed row; rows are in tiles [16, 64], of 16 rows after each
        other."""
        tile = self.build.lshr(row, LONG(4))
        start = self.mul(self.mul(tile, self._field["steps"]), TILE_ROWS * STEP)
        inside = self.mul(self.build.and_(row, LONG(15)), STEP)
        return self.at(self._field["packed"], self.add(start, inside))

    # Products

    def _multiply_columns(self, part: Value) -> None:
        """Multiplies all rows with `sub_columns` columns of a group.

        With few rows all columns of a group pass a chunk of the rows, which stays in the cache.
        With many rows that would move the sums of all columns in and out for each chunk.
        """
        build, steps = self.build, self._field["steps"]
        column = self.mul(part, self._sub_columns)
        first = build.and_(column, LONG(-GROUP))
        weights = self.at(self._field["weights"], self.mul(self.mul(first, steps), BLOCK_BYTES))
        columns = self.smaller(LONG(GROUP), build.sub(self._field["n_columns"], first))
        start = build.sub(column, first)
        count = self.smaller(self._sub_columns, build.sub(columns, start))
        n_chunks = build.sdiv(self.add(steps, CHUNK_STEPS - 1), LONG(CHUNK_STEPS))

        def clear(line: Value, _: Values) -> None:
            self.store(_INTS(None), self._sums, self.mul(line, 64))

        self.loop(0, self.mul(self.mul(count, self._padded_rows), 2), [], clear)

        def chunk(number: Value, _: Values) -> None:
            begin = self.mul(number, CHUNK_STEPS)
            end = self.smaller(self.add(begin, CHUNK_STEPS), steps)
            size = self.mul(build.sub(end, begin), BLOCK_BYTES)
            chunk_start = self.at(weights, self.mul(self.mul(begin, columns), BLOCK_BYTES))

            def multiply(c: Value, _: Values) -> None:
                piece = self.at(chunk_start, self.mul(self.add(start, c), size))
                # Rows of a chunk take turns to prefetch the next piece.
                next_piece = self.at(piece, self.mul(size, columns))
                ahead = build.select(self._few, self.at(piece, _NEAR), next_piece)
                sums = self.at(self._sums, self.mul(c, self._column_sums))
                self._multiply_piece(piece, begin, end, sums, ahead)

            self.loop(0, count, [], multiply)

        self.loop(0, n_chunks, [], chunk)
        self.loop(0, count, [], lambda c, _: self._finish(c, self.add(column, c)))

    def _multiply_piece(
        self, piece: Value, begin: Value, end: Value, sums: Value, ahead: Value
    ) -> None:
        """Adds the products of all rows with a piece of weights to a column's sums."""
        build, rows = self.build, self._padded_rows
        n_blocks = build.sdiv(self.add(rows, self._sizes[0] - 1), LONG(self._sizes[0]))
        lines = build.sdiv(build.sub(self.add(n_blocks, BLOCK_BYTES // 64), LONG(1)), n_blocks)
        row = LONG(0)
        for size in self._sizes:

            def block(row: Value, carried: Values, size: int = size) -> Values:
                at = self.at(sums, self.mul(row, 4 * COLUMN))
                return [self._add_block(size, row, at, piece, begin, end, carried[0], lines)]

            row, (ahead,) = self.loop(row, self.add(rows, 1 - size), [ahead], block, size)

    def _prefetch_line(self, address: Value) -> None:
        """Reads data to the first level."""
        self.call("llvm.prefetch.p0", VOID, [address, INT(0), INT(3), INT(1)])

    def _prefetch(self, address: Value, lines: Value) -> Value:
        def line(_: Value, carried: Values) -> Values:
            self._prefetch_line(carried[0])
            return [self.at(carried[0], 64)]

        return self.loop(0, lines, [address], line)[1][0]

    def _add_tiles(self, size, row, sums, piece, begin, end, ahead, lines) -> Value:
        """AMX: tiles 0 to 3 have sums, 4 and 5 rows, 6 and 7 weights."""
        halves = range(size // TILE_ROWS)
        places = [
            (BYTE(2 * i + j), self.at(sums, i * TILE_ROWS * 4 * COLUMN + 64 * j))
            for i in halves
            for j in (0, 1)
        ]
        for tile, place in places:
            self.call("llvm.x86.tileloadd64", VOID, [tile, place, LONG(4 * COLUMN)])
        rows = [self._packed_row(self.add(row, TILE_ROWS * i)) for i in halves]

        def step(k: Value, carried: Values) -> Values:
            after = self._prefetch(carried[0], lines)
            weights = self.at(piece, self.mul(self.build.sub(k, begin), BLOCK_BYTES))
            loaded = {6: weights, 7: self.at(weights, BLOCK_BYTES // 2)}
            for i in halves:
                loaded[4 + i] = self.at(rows[i], self.mul(k, TILE_ROWS * STEP))
            for tile, place in loaded.items():
                self.call("llvm.x86.tileloadd64", VOID, [BYTE(tile), place, LONG(STEP)])
            for i in halves:
                for j in (0, 1):
                    tiles = [BYTE(2 * i + j), BYTE(4 + i), BYTE(6 + j)]
                    self.call("llvm.x86.tdpbusd", VOID, tiles)
            return [after]

        _, (ahead,) = self.loop(begin, end, [ahead], step)
        for tile, place in places:
            self.call("llvm.x86.tilestored64", VOID, [tile, place, LONG(4 * COLUMN)])
        return ahead

    def _add_vectors(self, size, row, sums, piece, begin, end, ahead, lines) -> Value:
        """Vectors of 16 outputs, each with 4 inputs at a time."""
        totals = [self.load(sums, 64 * n, _INTS) for n in range(2 * size)]
        rows = self._packed_row(row)
        apart = self.mul(lines, 64 * 4 // STEP // _PREFETCHES)

        def step(k: Value, carried: Values) -> Values:
            ahead, *totals = carried
            weights = self.at(piece, self.mul(self.build.sub(k, begin), BLOCK_BYTES))
            inputs = self.at(rows, self.mul(k, TILE_ROWS * STEP))
            for quad in range(STEP // 4):
                for _ in range(_PREFETCHES):
                    self._prefetch_line(ahead)
                    ahead = self.at(ahead, apart)
                halves = [self.load(weights, 1024 * j + 64 * quad, _ALL_BYTES) for j in (0, 1)]
                for r in range(size):
                    four = self.load(inputs, STEP * r + 4 * quad, INT)
                    for j in (0, 1):
                        totals[2 * r + j] = self._dot(totals[2 * r + j], four, halves[j])
            return [ahead, *totals]

        _, (ahead, *totals) = self.loop(begin, end, [ahead, *totals], step)
        for n, total in enumerate(totals):
            self.store(total, sums, 64 * n)
        return ahead

    def _dot_vnni(self, total: Value, four: Value, weights: Value) -> Value:
        rows = self.build.bitcast(self.splat(four, _INTS), _ALL_BYTES)
        return self.call("llvm.x86.avx512.vpdpbusd.512", _INTS, [total, rows, weights])

    def _dot_sdot(self, total: Value, four: Value, weights: Value) -> Value:
        """ARM's instruction has signed rows: 128 is taken off by a change of the sign bit, and the
        end of a product knows it."""
        build, small = self.build, ir.VectorType(INT, 4)
        signed = build.xor(four, INT(-0x7F7F7F80))
        rows = build.bitcast(self.splat(signed, small), _BYTES)
        parts = []
        for i in range(4):
            lanes = ir.Constant(small, list(range(4 * i, 4 * i + 4)))
            bytes_ = ir.Constant(ir.VectorType(INT, 16), list(range(16 * i, 16 * i + 16)))
            part = build.shuffle_vector(total, total, lanes)
            quarter = build.shuffle_vector(weights, weights, bytes_)
            parts.append(
                self.call("llvm.aarch64.neon.sdot.v4i32.v16i8", small, [part, quarter, rows])
            )
        eight = ir.Constant(ir.VectorType(INT, 8), list(range(8)))
        pairs = [build.shuffle_vector(parts[i], parts[i + 1], eight) for i in (0, 2)]
        return build.shuffle_vector(*pairs, ir.Constant(_INTS, list(range(16))))

    def _dot_plain(self, total: Value, four: Value, weights: Value) -> Value:
        build = self.build
        for i in range(4):
            byte = build.and_(build.lshr(four, INT(8 * i)), INT(255))
            lanes = ir.Constant(_INTS, list(range(i, 64, 4)))
            wide = build.sext(build.shuffle_vector(weights, weights, lanes), _INTS)
            total = build.add(total, build.mul(wide, self.splat(byte, _INTS)))
        return total

    def _finish(self, c: Value, column: Value) -> None:
        """Scales a column's sums, and stores them or adds them to the output."""
        build, field = self.build, self._field
        sums = self.at(self._sums, self.mul(c, self._column_sums))
        offset = self.mul(column, 4 * COLUMN)
        scales = [self.load(self.at(field["scales"], offset), 64 * j, _FLOATS) for j in (0, 1)]
        biases = [
            build.mul(
                self.load(self.at(field["sums_of_weights"], offset), 64 * j, _INTS),
                ir.Constant(_INTS, [0 if self._dot == self._dot_sdot else 128] * 16),
            )
            for j in (0, 1)
        ]

        def row(r: Value, _: Values) -> None:
            unit = self.splat(self.load(field["row_scales"], self.mul(r, 4), FLOAT), _FLOATS)
            start = self.mul(self.mul(r, field["out_stride"]), 4)
            out = self.at(self.at(field["out"], start), offset)
            for j in (0, 1):
                total = self.load(self.at(sums, self.mul(r, 4 * COLUMN)), 64 * j, _INTS)
                exact = build.sitofp(build.sub(total, biases[j]), _FLOATS)
                product = build.fmul(build.fmul(exact, unit), scales[j])
                if self._adds:
                    product = build.fadd(self.load(out, 64 * j, _FLOATS), product)
                self.store(product, out, 64 * j)

        self.loop(0, field["n_rows"], [], row)


def _splat(number: float) -> Any:
    return ir.Constant(_FLOATS, [number] * 16)
