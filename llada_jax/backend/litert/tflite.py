"""Writes StableHLO as a `.tflite` file: conversion without weights, then the weights streamed in.

The converter sees each weight as an input of the graph, so a layer of LLaDA-8B is converted in a
tenth of a second. Then the graph is edited: these inputs become constants, float32 or integers with
scales, whose numbers are stored after the flatbuffer in the same file. They are written tensor by
tensor, so no copy of the model is ever in memory. Steps in the same file share their weights.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from llada_jax.backend.litert.install import litert_converter, litert_schema
from llada_jax.backend.protocol import Weights
from llada_jax.backend.silenced import silenced
from llada_jax.backend.weights import pieces_of, store
from llada_jax.config import require
from llada_jax.io import atomic
from llada_jax.lowered import Lowered, LoweredWeight

MAX_FILE_BYTES = 2**31 - 1
_ALIGNMENT = 64
_IDENTIFIER = b"TFL3"


def convert(steps: Sequence[Lowered]) -> bytes:
    """Converts steps to one flatbuffer with a signature for each; weights are inputs.

    Raises RuntimeError with the converter's message if it fails.
    """
    ir, passes, stablehlo, api = litert_converter()
    context = ir.Context()
    with silenced("litert-converter"):
        api.prepare_mlir_context(context)
        with context, ir.Location.unknown():
            modules = []
            for step in steps:
                module = stablehlo.deserialize_portable_artifact(context, step.module)
                names = [*step.weights, *step.inputs]
                api.set_signature(module.operation, step.name, names, list(step.outputs))
                _rename_functions(ir, module, step.name)
                modules.append(module)
            merged = modules[0] if len(modules) == 1 else api.merge_modules(modules)
            settings = api.ConvertToTFLConfig()
            settings.model_origin_framework = "JAX"
            settings.enable_x64 = False
            api.run_convert_to_tfl_passes(merged, passes.PassManager(), settings)
            return api.export_flatbuffer_to_bytes(merged.operation)


def _rename_functions(ir: Any, module: Any, prefix: str) -> None:
    """Makes the names of functions unique, because modules are merged."""

    def rename(op: Any) -> Any:
        for role in ("callee", "decomposition"):
            if role in op.attributes:
                callee = ir.FlatSymbolRefAttr(op.attributes[role]).value
                op.attributes[role] = ir.FlatSymbolRefAttr.get(f"{prefix}_{callee}")
        return ir.WalkResult.ADVANCE

    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    for function in functions:
        name = ir.StringAttr(function.attributes["sym_name"]).value
        function.attributes["sym_name"] = ir.StringAttr.get(f"{prefix}_{name}")
        function.operation.walk(rename)


def file_bytes(specs: Mapping[str, LoweredWeight], signatures: int = 1) -> int:
    """Estimates the size of a file with these weights, used by this number of signatures.

    Scales and zero points of rows (12 bytes) are stored in each graph, scales of blocks (2) once.
    """
    return sum(
        _stored_bytes(spec) + _n_scales(spec) * (12 * signatures if spec.group is None else 2)
        for spec in specs.values()
    )


def write(
    path: Path, steps: Sequence[Lowered], weights: Weights, progress: tqdm | None = None
) -> None:
    """Writes steps with their weights, each weight once; the file is written atomically.

    Raises ValueError if the file would reach 2 GiB.
    """
    specs = {name: spec for step in steps for name, spec in step.weights.items()}
    constants = _Constants(litert_schema().ModelT.InitFromPackedBuf(convert(steps), 0), specs)
    offsets, size = constants.lay_out()
    require(
        size <= MAX_FILE_BYTES,
        f"{path.name} would be {size} bytes; allowed: up to {MAX_FILE_BYTES} (use smaller shards)",
    )
    with atomic.new_file(path) as part, part.open("wb") as file:
        for name, offset in offsets.items():
            file.seek(offset)
            scales = []
            for numbers, scale in store(pieces_of(weights, name), specs[name]):
                numbers.tofile(file)
                scales.append(scale)
                if progress is not None:
                    progress.update(numbers.nbytes)
            n_bytes, expected = file.tell() - offset, _stored_bytes(specs[name])
            require(
                n_bytes == expected,
                f"{name} gave {n_bytes} bytes; expected: {expected} for {list(specs[name].shape)}",
            )
            constants.set_scales(name, scales)
        file.truncate()
        file.seek(0)
        file.write(constants.packed())


def _stored_bytes(spec: LoweredWeight) -> int:
    return math.prod(spec.shape) * spec.bits // 8


def _n_scales(spec: LoweredWeight) -> int:
    if spec.bits == 32:
        return 0
    return math.prod(spec.shape) // (spec.group or spec.shape[-1])


class _Constants:
    """Turns the weights of a graph from inputs into constants stored after the flatbuffer."""

    def __init__(self, model: Any, specs: Mapping[str, LoweredWeight]):
        self._schema = litert_schema()
        self._model, self._specs = model, specs
        self._buffers: dict[str, Any] = {}
        self._quantization: dict[str, list[Any]] = {name: [] for name in specs}
        self._block_scales: dict[str, Any] = {}
        self._reserve_buffers()
        for signature in model.signatureDefs:
            graph = model.subgraphs[signature.subgraphIndex]
            inputs = {tensor.name.decode(): tensor.tensorIndex for tensor in signature.inputs}
            filled = {inputs[name]: name for name in specs if name in inputs}
            for index, name in filled.items():
                self._to_constant(graph, graph.tensors[index], name)
            graph.inputs = [index for index in graph.inputs if index not in filled]
            signature.inputs = [t for t in signature.inputs if t.tensorIndex not in filled]

    def _reserve_buffers(self) -> None:
        """Makes the weights the first buffers after the empty one. LiteRT names packed weights by
        the index of their buffer, so files with the same weights can share them."""
        model, count = self._model, len(self._specs)
        for index, (name, spec) in enumerate(self._specs.items(), start=1):
            # The offset is set in `lay_out`. The placeholder has the final width, so that the
            # flatbuffer's length is final; 0 and 1 would mean that the buffer has no offset.
            buffer = self._schema.BufferT(offset=MAX_FILE_BYTES, size=_stored_bytes(spec))
            self._buffers[name] = index, buffer
        tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
        for record in [*tensors, *(model.metadata or [])]:
            record.buffer += count if record.buffer else 0
        new = [buffer for _, buffer in self._buffers.values()]
        model.buffers = [model.buffers[0], *new, *model.buffers[1:]]

    def _to_constant(self, graph: Any, tensor: Any, name: str) -> None:
        types, spec = self._schema.TensorType, self._specs[name]
        tensor.buffer = self._buffers[name][0]
        if spec.bits == 32:
            return
        tensor.type = types.INT8 if spec.bits == 8 else types.INT4
        tensor.quantization = self._schema.QuantizationParametersT()
        tensor.quantization.quantizedDimension = 0
        if spec.group is None:
            rows = spec.shape[0]
            tensor.quantization.scale = np.zeros(rows, np.float32)
            tensor.quantization.zeroPoint = np.zeros(rows, np.int64)
        else:
            self._add_block_scales(graph, tensor, name, spec)
        self._quantization[name].append(tensor.quantization)

    def _add_block_scales(self, graph: Any, tensor: Any, name: str, spec: LoweredWeight) -> None:
        assert spec.group is not None
        scales = self._schema.TensorT()
        scales.name = f"{name}.scale".encode()
        scales.shape = [spec.shape[0], spec.shape[1] // spec.group]
        scales.type = self._schema.TensorType.FLOAT16
        if name not in self._block_scales:
            data = np.zeros(2 * _n_scales(spec), np.uint8)
            self._block_scales[name] = self._new_buffer(data=data)
        scales.buffer = self._block_scales[name][0]
        graph.tensors.append(scales)
        blocks = self._schema.BlockwiseQuantizationT()
        blocks.scales, blocks.blockSize = len(graph.tensors) - 1, spec.group
        tensor.quantization.detailsType = self._schema.QuantizationDetails.BlockwiseQuantization
        tensor.quantization.details = blocks

    def _new_buffer(self, **fields: Any) -> tuple[int, Any]:
        buffer = self._schema.BufferT(**fields)
        self._model.buffers.append(buffer)
        return len(self._model.buffers) - 1, buffer

    def lay_out(self) -> tuple[dict[str, int], int]:
        """Assigns each weight an offset in the file; returns the offsets and the file's size."""
        end = len(self.packed())
        offsets = {}
        for name, (_, buffer) in self._buffers.items():
            offsets[name] = buffer.offset = end + -end % _ALIGNMENT
            end = buffer.offset + buffer.size
        return offsets, end + -end % _ALIGNMENT

    def set_scales(self, name: str, pieces: Sequence[Any]) -> None:
        if not self._quantization[name]:  # float32
            return
        scale = np.concatenate(pieces).reshape(-1)
        if name in self._block_scales:
            self._block_scales[name][1].data = scale.astype(np.float16).view(np.uint8)
        else:
            for quantization in self._quantization[name]:
                quantization.scale = scale

    def packed(self) -> bytes:
        """Serialises the flatbuffer; its length does not depend on scales and offsets."""
        import flatbuffers

        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(self._model.Pack(builder), _IDENTIFIER)
        return bytes(builder.Output())
