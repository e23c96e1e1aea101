"""Static and dynamic quantization of `.tflite` files, in the forms that the NPU supports.

`Precision` names how products with constant weights are computed; the NPU computes everything else
in float16. `int8` is int8 weights with float16 activations. `a16w8` is int16 activations, with
ranges taken from recorded inputs, and int8 weights; the other names have the same form. The NPU of
QNN 2.50 computes a16 wrongly for exactly 16 rows after a product of activations: use another
number.
"""

import os
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llada_jax.backend.litert import tflite as tflite_file
from llada_jax.backend.lower import check, lower
from llada_jax.backend.protocol import Inputs, Step, Weights
from llada_jax.backend.qnn.context import op_name, read_tflite, require_qnn, signatures
from llada_jax.backend.silenced import silenced
from llada_jax.backend.steps import bucket_of, padded, resized
from llada_jax.config import STATIC_PRECISIONS, Precision, require
from llada_jax.io import atomic

Samples = Mapping[str, Sequence[Mapping[str, np.ndarray]]]
"""Recorded values of all inputs, by signature and name."""


def quantize(tflite: Path, out: Path, precision: Precision, samples: Samples | None = None) -> None:
    """Quantizes the FULLY_CONNECTED ops with constant weights of a float32 .tflite file, with one
    scale per output. For fp16 the file is copied, because the compiler converts float32 itself.

    `samples` are real inputs of every signature, for a16w8, a8w8 and a16w4; an activation's range
    is the range of its values in all of them. Raises ImportError without the extra.
    """
    require_qnn()
    with atomic.new_file(out) as part:
        if precision == "fp16":
            shutil.copyfile(tflite, part)
            return
        with silenced("ai-edge-quantizer"):
            part.write_bytes(_quantized(tflite, precision, samples or {}))


def write_quantized(
    folder: Path,
    steps: Sequence[Step],
    weights: Weights,
    precision: Precision,
    samples: Sequence[Inputs],
) -> Path:
    """Writes steps as signatures of one quantized file, and returns its path.

    `samples` are recorded inputs of any shape, for the precisions that need them. Raises ValueError
    for samples with other inputs, and for an operation that the NPU does not support.
    """
    lowered = [lower(step) for step in steps]
    for step in lowered:
        check(step, "qnn")
    wide, narrow = folder / "wide.tflite", folder / "narrow.tflite"
    tflite_file.write(wide, lowered, weights)
    by_step = {}
    if precision in STATIC_PRECISIONS:
        needed = sorted(steps[0].inputs)
        for sample in samples:
            require(sorted(sample) == needed, f"a sample has {sorted(sample)}; needed: {needed}")
        by_step = {step.name: [_fit(sample, step) for sample in samples] for step in steps}
    quantize(wide, narrow, precision, by_step)
    wide.unlink()
    return narrow


def _fit(sample: Inputs, step: Step) -> Inputs:
    """Cuts or pads a sample to the rows of a step and, for a body, to its cached positions."""
    if "bias" in step.inputs:
        return resized(sample, bucket_of(step))
    rows = {name: shape[0] for name, shape in step.inputs.items()}
    return {name: padded(sample[name][:count], count) for name, count in rows.items()}


def _quantized(tflite: Path, precision: Precision, samples: Samples) -> bytearray:
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.quantizer import Quantizer
    from ai_edge_quantizer.recipe_manager import RecipeManager

    recipe, kind = RecipeManager(), TFLOperationName.FULLY_CONNECTED
    if precision == "int8":
        recipe.add_dynamic_config(".*", kind, num_bits=8)
    else:
        activations, weights = map(int, precision[1:].split("w"))
        recipe.add_static_config(".*", kind, activations, weights)
    for output in _products_of_activations(tflite):
        only_this = f"^{re.escape(output)};?$"
        recipe.add_quantization_config(only_this, kind, algorithm_key="no_quantize")
    ranges = _ranges(tflite, recipe, samples) if recipe.need_calibration() else None
    quantizer = Quantizer(str(tflite), recipe.get_quantization_recipe())
    quantized = bytearray(quantizer.quantize(ranges).quantized_model or b"")
    _repair_signatures(quantized, tflite)
    return quantized


def _ranges(tflite: Path, recipe: Any, samples: Any) -> dict[str, Any]:
    """Returns each tensor's lowest and highest value in all samples.

    The quantizer's default is a moving average in which the first sample has nearly all the weight,
    so that values of other samples are clipped.
    """
    from ai_edge_quantizer.calibrator import Calibrator
    from ai_edge_quantizer.utils.qsv_utils import min_max_update

    calibrator = Calibrator(str(tflite), os.cpu_count() or 1, qsv_update_func=min_max_update)
    calibrator.calibrate(samples, recipe)
    return calibrator.get_model_qsvs()


def _repair_signatures(quantized: bytearray, tflite: Path) -> None:
    """Makes signatures name the float32 outputs.

    If a quantized op has an output that other ops also use, the quantizer appends a dequantized
    output, but leaves the integer one in the signature.
    """
    from ai_edge_litert.schema_py_generated import Model

    before, _ = read_tflite(tflite)
    positions = {
        (signature.signatureKey, output.name): list(subgraph.outputs).index(output.tensorIndex)
        for signature, subgraph in signatures(before)
        for output in signature.outputs
    }
    model: Any = Model.GetRootAs(quantized)
    for signature in map(model.SignatureDefs, range(model.SignatureDefsLength())):
        outputs = model.Subgraphs(signature.SubgraphIndex()).OutputsAsNumpy()
        for output in map(signature.Outputs, range(signature.OutputsLength())):
            correct = outputs[positions[signature.SignatureKey(), output.Name()]]
            if output.TensorIndex() != correct:
                # The index is the second field of its table; its offset is at 6 in the vtable.
                field = output._tab.Pos + output._tab.Offset(6)
                struct.pack_into("<I", quantized, field, correct)


def _products_of_activations(tflite: Path) -> Iterator[str]:
    """Yields outputs of FULLY_CONNECTED ops without a constant, which unbatched products become."""
    model, _ = read_tflite(tflite)
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or ():
            if op_name(model, operator) == "FULLY_CONNECTED":
                weight = model.buffers[subgraph.tensors[operator.inputs[1]].buffer]
                if weight.data is None and not weight.offset:
                    yield subgraph.tensors[operator.outputs[0]].name.decode()
