"""Functions in LLVM's vector instructions, compiled for the CPU of this process. Needs llvmlite.

No C compiler is needed, and ctypes, which calls the functions, releases the GIL.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

BYTE, INT, LONG, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
POINTER, VOID = ir.PointerType(), ir.VoidType()

Value = Any
"""A value of the function that is generated; llvmlite has no types."""
Values = Sequence[Value]
LoopBody = Callable[[Value, Values], Values | None]
"""Maps a loop's index and carried values to the next carried values."""


class FunctionEmitter:
    """Generates a module with one function without a result."""

    def __init__(self, name: str, argument_types: Sequence[Any]):
        self.module = ir.Module(name)
        self.module.triple = llvm.get_default_triple()
        signature = ir.FunctionType(VOID, argument_types)
        self.function = ir.Function(self.module, signature, name)
        self.build: Any = ir.IRBuilder(self.function.append_basic_block())

    def compile(self) -> Callable[..., None]:
        """Returns the function, compiled; its arguments are addresses and integers of 64 bits."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(self.module)), machine)
        engine.finalize_object()
        kinds = [
            ctypes.c_void_p if argument.type == POINTER else ctypes.c_int64
            for argument in self.function.args
        ]
        address = engine.get_function_address(self.function.name)
        function: Any = ctypes.CFUNCTYPE(None, *kinds)(address)
        function.engine = engine  # keeps the code alive
        return function

    def call(self, name: str, kind: Any, arguments: Values) -> Value:
        """Calls an external function or an intrinsic, which is declared at its first call."""
        function = self.module.globals.get(name)
        if function is None:
            signature = ir.FunctionType(kind, [argument.type for argument in arguments])
            function = ir.Function(self.module, signature, name)
        return self.build.call(function, arguments)

    def at(self, base: Value, offset: Value | int) -> Value:
        """Returns a pointer `offset` bytes after `base`."""
        return self.build.gep(base, [_long(offset)], source_etype=BYTE)

    def load(self, base: Value, offset: Value | int, kind: Any) -> Value:
        return self.build.load(self.at(base, offset), align=1, typ=kind)

    def store(self, value: Value, base: Value, offset: Value | int) -> None:
        self.build.store(value, self.at(base, offset), align=1)

    def add(self, a: Value, b: Value | int) -> Value:
        return self.build.add(a, _long(b))

    def mul(self, a: Value, b: Value | int) -> Value:
        return self.build.mul(a, _long(b))

    def smaller(self, a: Value, b: Value) -> Value:
        return self.build.select(self.build.icmp_signed("<", a, b), a, b)

    def splat(self, value: Value, kind: Any) -> Value:
        """Returns a vector of this type with the value in all lanes."""
        undefined = ir.Constant(kind, ir.Undefined)
        one = self.build.insert_element(undefined, value, INT(0))
        lanes = ir.Constant(ir.VectorType(INT, kind.count), None)
        return self.build.shuffle_vector(one, undefined, lanes)

    def loop(
        self, start: Value | int, stop: Value | int, carried: Values, body: LoopBody, step: int = 1
    ) -> tuple[Value, Values]:
        """Returns the index and the carried values after a loop over [start, stop)."""
        build, start, stop = self.build, _long(start), _long(stop)
        before = build.block
        head, inside, done = (build.append_basic_block() for _ in range(3))
        build.branch(head)
        build.position_at_end(head)
        index = build.phi(LONG)
        phis = [build.phi(value.type) for value in carried]
        for phi, value in zip([index, *phis], [start, *carried], strict=True):
            phi.add_incoming(value, before)
        build.cbranch(build.icmp_signed("<", index, stop), inside, done)
        build.position_at_end(inside)
        results = body(index, phis) or []
        results = [self.add(index, step), *results]
        for phi, value in zip([index, *phis], results, strict=True):
            phi.add_incoming(value, build.block)
        build.branch(head)
        build.position_at_end(done)
        return index, phis


def _long(value: Value | int) -> Value:
    return LONG(value) if isinstance(value, int) else value
