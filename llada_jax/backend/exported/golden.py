"""Golden inputs and outputs of every signature that a phone runs: golden-<graph>.tar.

signatures           a line each: number, name, and the largest error that its precision explains
<signature>/x.raw    an input in float32, as LiteRT's run_model and QNN's qnn-net-run read it
<signature>/outputs  what JAX makes of the inputs: number of the output, of the element, value

Of each output there are the elements that run_model prints: the first, middle and last `SHOWN`.
"""

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from llada_jax import atomic
from llada_jax.backend.exported import verify
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.qnn.context import read_tflite, signatures
from llada_jax.backend.steps import bucket_of, resized
from llada_jax.config import ModelConfig

SHOWN = 64
"""The script's `--sample_size`."""


class Golden(NamedTuple):
    """Arrays by name, float32; ids are not among the outputs."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def of_body(
    model: ModelConfig, layers: range, bucket: Bucket, stored: verify.StoredWeights
) -> Golden:
    """Returns noise in every row, and the layers' outputs; all canvases have the same."""
    alone = replace(bucket, canvases=1)
    inputs = verify.example(model, layers, alone)
    outputs = verify.reference(model, layers, alone, inputs, stored)
    tiled = {
        name: np.concatenate([each] * bucket.canvases, axis=int(name != "hidden"))
        for name, each in outputs.items()
    }
    return Golden(resized(inputs, bucket), tiled)


def of_head(
    model: ModelConfig, rows: int, chunk: int | None, stored: verify.StoredWeights
) -> Golden:
    """Returns noise, and the logits of one chunk of the vocabulary, or the confidences of all."""
    hidden = np.random.default_rng(0).standard_normal((rows, model.width), np.float32)
    inputs = {"hidden": hidden, "penalty": np.zeros(model.vocab_size, np.float32)}
    logits = verify.head_logits(model, hidden, stored, chunk)
    if chunk is None:
        return Golden(inputs, {"confidence": verify.confidence_of(logits)})
    return Golden(inputs, {"logits": logits})


def of_step(model: ModelConfig, step: Step, stored: verify.StoredWeights) -> Golden:
    """Returns those of layers from the first on, or of a single product."""
    if "bias" in step.inputs:
        layers = range(sum(name.startswith("keys_") for name in step.inputs))
        return of_body(model, layers, bucket_of(step), stored)
    inputs = noise(step)
    weights = {name: stored.array(name, shape) for name, shape in step.weights.items()}
    return Golden(inputs, jax.jit(step.function)(weights, inputs))


def noise(step: Step) -> dict[str, np.ndarray]:
    """Returns inputs of a single product."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in step.inputs.items()}


def write_golden(
    path: Path, graph: Path, allowed: float, cases: Mapping[str, Callable[[], Golden]]
) -> None:
    """Writes the file of a graph, numbered as in run_model: signatures, outputs of a subgraph."""
    model, _ = read_tflite(graph)
    lines = []
    with atomic.new_file(path) as part, tarfile.open(part, "w") as archive:
        for number, (signature, subgraph) in enumerate(signatures(model)):
            name = signature.signatureKey.decode()
            lines.append(f"{number} {name} {allowed}\n")
            golden = cases[name]()
            for each, array in golden.inputs.items():
                _add(archive, f"{name}/{each}.raw", np.asarray(array, np.float32).tobytes())
            names = {each.tensorIndex: each.name.decode() for each in signature.outputs}
            shown = _shown([names[index] for index in subgraph.outputs], golden.outputs)
            _add(archive, f"{name}/outputs", "".join(shown).encode())
        _add(archive, "signatures", "".join(lines).encode())


def _shown(order: Sequence[str], outputs: Mapping[str, np.ndarray]) -> Iterator[str]:
    for number, name in enumerate(order):
        if name in outputs:
            flat = np.asarray(outputs[name]).reshape(-1)
            places = np.arange(flat.size)
            if flat.size > 2 * SHOWN:
                middle = flat.size // 2 - SHOWN // 2
                places = np.r_[:SHOWN, middle : middle + SHOWN, flat.size - SHOWN : flat.size]
            for place in np.unique(places):
                yield f"{number} {place} {flat[place]:.9g}\n"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
