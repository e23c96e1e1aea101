"""Lowers a step to StableHLO, together with a record of its operations.

The module is the portable artifact of `jax.export`, which converters read. The record (`Lowered`)
is plain data, so that cost models can use it without JAX. Weights stay arguments of the module: a
layer of a large model is lowered and converted without its numbers, which the backend streams into
its file afterwards. `check` reports operations that a target does not support, by name, before the
target's converter starts.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, stablehlo

from llada_jax.backend.protocol import Step
from llada_jax.backend.weights import storage_spec
from llada_jax.config import Quant, require
from llada_jax.lowered import Lowered, Operation, TensorType

UNSUPPORTED: dict[str, dict[str, str]] = {
    "litert": {
        "sort": "has no kernel",
        "scatter": "has no kernel for its general form",
        "while": "does not convert; unroll the loop or run it on the host",
        "rng_bit_generator": "does not convert; make noise an input",
        "custom_call": "is opaque to the converter",
        **dict.fromkeys(("bf16", "f16", "f64"), "has no kernels of this type; lower in float32"),
    }
}
UNSUPPORTED["qnn"] = UNSUPPORTED["litert"] | {
    "dynamic_update_slice": "splits the graph; return new rows and let the host write them",
    "dynamic_slice": "splits the graph; slice at fixed positions",
}
"""By target: StableHLO operations and element types that it does not support, with advice."""

_BRANCHING = {"case", "if", "while"}  # their regions are walked as well as the operation itself
_NOT_COMPUTED = {"constant", "return", "call"}
_ELEMENTS = {"float32": "f32", "int32": "i32", "bool": "i1"}


def lower(step: Step, quant: Quant = "float32") -> Lowered:
    """Lowers a step to StableHLO, in float32 with static shapes.

    `quant` is the storage format of the weights, recorded in the result. The module computes in
    float32 for any format: a file stores integers, and the target's kernels convert them.
    """
    names, inputs = list(step.weights), list(step.inputs)

    def flat(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        weights = dict(zip(names, arrays, strict=False))
        outputs.update(step.function(weights, dict(zip(inputs, arrays[len(names) :], strict=True))))
        return tuple(outputs.values())

    outputs: dict[str, jax.Array] = {}
    shapes = [*step.weights.values(), *step.inputs.values()]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    # Locations hold only the scopes from `jax.named_scope`, which `_scope` reads. Tracebacks would
    # put paths of this machine into exported files, and make equal exports differ.
    with _without_tracebacks(), jax.enable_x64(False):
        # Without keep_unused, jit drops unused arguments, and arguments would not match names.
        flat_step = jax.jit(flat, keep_unused=True)
        exported = jax.export.export(flat_step, platforms=["cpu"])(*arguments)
    module = exported.mlir_module_serialized
    results = [
        TensorType(a.shape, _ELEMENTS.get(str(a.dtype), str(a.dtype))) for a in exported.out_avals
    ]
    return Lowered(
        name=step.name,
        module=module,
        weights={name: storage_spec(name, shape, quant) for name, shape in step.weights.items()},
        inputs={name: TensorType(shape, "f32") for name, shape in step.inputs.items()},
        outputs=dict(zip(outputs, results, strict=True)),
        operations=tuple(_operations(module, names)),
    )


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    limit = jax.config.values["jax_traceback_in_locations_limit"]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", limit)


def check(lowered: Lowered, target: str) -> None:
    """Raises ValueError that names the first operation that the target does not support."""
    unsupported = UNSUPPORTED[target]
    for operation in lowered.operations:
        types = {tensor.dtype for tensor in (*operation.inputs, *operation.outputs)}
        for word in (operation.name, *sorted(types)):
            require(
                word not in unsupported,
                f"{target} cannot take {operation.name} at {operation.scope or 'the top'} of "
                f"{lowered.name} ({operation.types}): {word} {unsupported.get(word)}",
            )


def _operations(module: bytes, weights: list[str]) -> Iterator[Operation]:
    """Yields the operations of a module. The artifact is parsed again, because that is what a
    converter sees: JAX's own intermediate forms contain operations that lowering replaces."""
    context = ir.Context()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    with context, ir.Location.unknown():
        parsed = stablehlo.deserialize_portable_artifact(context, module)
        functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.regions[0].blocks[0]
            for op in parsed.body.operations
        }
        main = functions["main"]
        argument_weights = dict(zip(main.arguments, weights, strict=False))
        yield from _walk(main, functions, argument_weights, "")


def _walk(
    block: ir.Block, functions: Mapping[str, ir.Block], weights: Mapping[Any, str], outer: str
) -> Iterator[Operation]:
    """Yields a block's operations in order, with calls inlined. `weights` maps values to the names
    of weights, so that a matrix product inside a called function still names its weight; without
    that a cost model would not know which bytes the product reads."""
    for op in block.operations:
        name = op.operation.name.split(".", 1)[1]
        scope = _scope(op.operation.location, outer)
        if name == "call":
            callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            callee_weights = {
                argument: weights[operand]
                for argument, operand in zip(callee.arguments, op.operands, strict=True)
                if operand in weights
            }
            yield from _walk(callee, functions, callee_weights, scope)
        elif name == "composite":  # a chlo operation, recorded instead of its decomposition
            chlo_name = ir.StringAttr(op.attributes["name"]).value.split(".")[-1]
            yield _record(op, chlo_name, scope, weights)
        elif name not in _NOT_COMPUTED:
            yield _record(op, name, scope, weights)
            if name in _BRANCHING:
                for region in op.regions:
                    yield from _walk(region.blocks[0], functions, weights, scope)


def _record(op: ir.OpView, name: str, scope: str, weights: Mapping[Any, str]) -> Operation:
    """Records an operation; `contraction` is the summed length of a matrix product, else 0."""
    inputs = tuple(_tensor_type(value.type) for value in op.operands)
    contraction = 0
    if name == "dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        contraction = math.prod(inputs[0].shape[i] for i in numbers.lhs_contracting_dimensions)
    outputs = tuple(_tensor_type(value.type) for value in op.results)
    weight = next((weights[value] for value in op.operands if value in weights), None)
    return Operation(name, scope, inputs, outputs, contraction, weight)


def _tensor_type(mlir_type: ir.Type) -> TensorType:
    ranked = ir.RankedTensorType(mlir_type)
    return TensorType(tuple(ranked.shape), str(ranked.element_type))


def _scope(location: ir.Location, outer: str) -> str:
    """Returns the scope of an operation: `loc("jit(flat)/layer_3/dot_general")` is `layer_3`, after
    the scope of its caller."""
    text = str(location)
    path = text.split('"')[1].split("/") if '"' in text else []
    inner = [part for part in path[:-1] if "(" not in part and "->" not in part]
    return "/".join(filter(None, [outer, *inner]))
