"""Compares the files of an export with JAX, which computes with the numbers that the files store.

On this machine, one reference serves every bucket: the rows and cached positions of the smallest,
which larger buckets run with padding. It is computed layer by layer, so that only one layer's
float32 weights are in memory. The inputs are states of the model itself, for random tokens. Noise
would not do: some models (SmolLM2) amplify the rounding of states that they never have to
differences as large as the states. A phone compares with golden-<graph>.tar instead:

signatures           one line each: number, name, and the largest error expected of its precision
<signature>/x.raw    an input in float32, as LiteRT's run_model and QNN's qnn-net-run read it
<signature>/outputs  JAX's outputs: number of the output, index of the element, value

Outputs list only the elements that run_model prints: the first, middle and last `SHOWN`.
"""

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.protocol import Bucket, Executable, Step, Weights
from llada_jax.backend.qnn.context import read_tflite, signatures
from llada_jax.backend.steps import (
    body_step,
    bucket_of,
    cache_names,
    head_chunks,
    head_step,
    padded,
    resized,
)
from llada_jax.backend.weights import pieces_of, restore, storage_spec, store
from llada_jax.config import ModelConfig, Quant
from llada_jax.io import atomic
from llada_jax.model.layers import HIDDEN_SCORE, rotation

_TOLERANCE = {"float32": 1e-3, "fp16": 0.03}
"""Largest relative root-mean-square error allowed, by format; `_QUANTIZED` for all others."""
_QUANTIZED = 0.15
"""Rounding activations to 8 bits adds an error of about 1 % per layer."""
SHOWN = 64
"""The `--sample_size` that the script passes to run_model."""


def example(model: ModelConfig, layers: range, bucket: Bucket) -> dict[str, np.ndarray]:
    """Returns inputs of a body step: noise with the scale of normalised hidden states, everything
    visible. Empty caches are included, so that `resized` can extend them."""
    inputs = noise(body_step(model, layers, replace(bucket, cache=max(1, bucket.cache))))
    caches = {
        name: array[:, : bucket.cache]
        for name, array in inputs.items()
        if name.startswith(("keys_", "values_"))
    }
    angles = _angles(model, bucket.cache, bucket.rows)
    bias = np.zeros((bucket.rows, bucket.cache + bucket.rows), np.float32)
    return {"hidden": inputs["hidden"], **angles, "bias": bias, **caches}


def _angles(model: ModelConfig, start: int, count: int) -> dict[str, np.ndarray]:
    """Returns cosines and sines of `count` positions from `start` on."""
    angles = rotation(model, jnp.arange(count, dtype=jnp.int32)[None] + start)
    cos, sin = (np.asarray(array, np.float32)[0, :, 0] for array in angles)
    return {"cos": cos, "sin": sin}


def reference(
    model: ModelConfig,
    layers: range,
    bucket: Bucket,
    inputs: Mapping[str, np.ndarray],
    stored: "StoredWeights",
) -> dict[str, np.ndarray]:
    """Returns the outputs of the layers' step, by JAX in float32."""
    outputs = {"hidden": inputs["hidden"]}
    for layer in layers:
        one = range(layer, layer + 1)
        step = body_step(model, one, bucket)
        weights = {name: stored.array(name, shape) for name, shape in step.weights.items()}
        step_inputs = {name: inputs[name] for name in step.inputs} | {"hidden": outputs["hidden"]}
        results = jax.jit(step.function)(weights, step_inputs)
        outputs |= {name: np.asarray(array) for name, array in results.items()}
    return outputs


def _head_logits(
    model: ModelConfig, hidden: np.ndarray, stored: "StoredWeights", chunk: int | None = None
) -> np.ndarray:
    """Returns logits [R, V], or of one chunk, holding one chunk's weights."""
    parts = list(head_step(model, len(hidden)).weights.items())
    some = parts if chunk is None else [parts[chunk]]
    return np.concatenate([hidden @ stored.array(*part).T for part in some], axis=1)


def _confidence_of(logits: np.ndarray) -> np.ndarray:
    """Returns each row's largest probability."""
    return 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)


class StoredWeights(NamedTuple):
    """Weights as floats, after the rounding of a storage format."""

    weights: Weights
    quant: Quant

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        spec = storage_spec(name, shape, self.quant)
        pieces = store(pieces_of(self.weights, name), spec)
        return np.concatenate([restore(piece, spec) for piece in pieces]).reshape(shape)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Returns the root-mean-square error divided by the root mean square of `expected`."""
    return float(np.sqrt(((actual - expected) ** 2).mean() / (expected**2).mean()))


def tolerance(quant: str) -> float:
    """Returns the largest error that a storage format or a precision explains."""
    return _TOLERANCE.get(quant, _QUANTIZED)


def require_close(error: float, quant: str, what: str) -> None:
    """Raises RuntimeError if the error of a file is larger than its format explains."""
    allowed = tolerance(quant)
    if not error <= allowed:
        raise RuntimeError(
            f"{what} differs from JAX by {error:.3g} (relative, root mean square); allowed: "
            f"{allowed}"
        )


class Golden(NamedTuple):
    """Inputs and outputs of a signature by name, float32; ids are not among the outputs."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def check_bodies(
    shards: Mapping[Path, range],
    model: ModelConfig,
    buckets: Sequence[Bucket],
    stored: StoredWeights,
) -> Iterator[dict[str, Any]]:
    """Yields each signature's error, for files with the model's layers in order. Raises
    RuntimeError if one is too large."""
    small = Bucket(min(b.rows for b in buckets), min(b.cache for b in buckets))
    cases = _own_states(model, list(shards.values()), small, stored)
    for path, golden in zip(shards, cases, strict=True):

        def error(name: str, executable: Executable, golden: Golden = golden) -> float:
            bucket = next(b for b in buckets if b.name == name)
            hidden = executable.run(resized(golden.inputs, bucket))["hidden"]
            actual = hidden.reshape(bucket.canvases, bucket.rows, -1)[:, : small.rows]
            return relative_error(actual, golden.outputs["hidden"])

        yield from _checked(path, stored, error)


def _own_states(
    model: ModelConfig, shards: Sequence[range], bucket: Bucket, stored: StoredWeights
) -> Iterator[Golden]:
    """Yields inputs and outputs of each shard's step, for random tokens that follow as many cached
    ones, or as many as the cache holds."""
    n_cached = min(bucket.rows, bucket.cache)
    ids = np.random.default_rng(0).integers(model.vocab_size, size=n_cached + bucket.rows)
    names = [f"embedding[{index}:{index + 1}]" for index in ids]
    hidden = np.concatenate([stored.array(name, (1, model.width)) for name in names])
    before, rows = np.split(hidden, [n_cached])
    for layers in shards:
        shape = (model.n_kv_heads, bucket.cache, model.head_dim)
        caches = {name: np.zeros(shape, np.float32) for i in layers for name in cache_names(i)}
        if n_cached:
            inputs = _row_inputs(model, before, 0, Bucket(n_cached, 0))
            outputs = reference(model, layers, Bucket(n_cached, 0), inputs, stored)
            before = outputs.pop("hidden")
            for name, new in outputs.items():
                caches[name.removeprefix("new_")][:, :n_cached] = new
        inputs = caches | _row_inputs(model, rows, n_cached, bucket)
        outputs = reference(model, layers, bucket, inputs, stored)
        yield Golden(inputs, outputs)
        rows = outputs["hidden"]


def _row_inputs(
    model: ModelConfig, hidden: np.ndarray, n_cached: int, bucket: Bucket
) -> dict[str, np.ndarray]:
    """Returns the inputs of rows that follow `n_cached` positions, without caches."""
    count = len(hidden)
    bias = np.zeros((count, bucket.cache + count), np.float32)
    bias[:, n_cached : bucket.cache] = HIDDEN_SCORE
    if model.causal:
        bias[:, bucket.cache :][np.triu_indices(count, 1)] = HIDDEN_SCORE
    return {"hidden": hidden, **_angles(model, n_cached, count), "bias": bias}


def check_head(
    path: Path, model: ModelConfig, rows: Sequence[int], stored: StoredWeights
) -> Iterator[dict[str, Any]]:
    """Yields the errors of logits and confidences. Raises RuntimeError as `check_body`."""
    count = min(rows)
    hidden = np.random.default_rng(0).standard_normal((count, model.width), np.float32)
    logits = _head_logits(model, hidden, stored)
    chunks = head_chunks(model)
    penalty = np.zeros(model.vocab_size, np.float32)

    def error(name: str, executable: Executable) -> float:
        size = int(name.split("_")[0].removeprefix("rows"))
        out = executable.run({"hidden": padded(hidden, size), "penalty": penalty})
        if "logits" not in out:
            return relative_error(out["confidence"][:count], _confidence_of(logits))
        start, stop = chunks[int(name.split("_chunk")[1])]
        return relative_error(out["logits"][:count], logits[:, start:stop])

    return _checked(path, stored, error)


def _checked(
    path: Path, stored: StoredWeights, error_of: Callable[[str, Executable], float]
) -> Iterator[dict[str, Any]]:
    signatures = LiteRT().open(path).items()
    for name, executable in tqdm(signatures, desc=f"check {path.name}", unit="signature"):
        error = error_of(name, executable)
        require_close(error, stored.quant, f"{path.name}, signature {name},")
        yield {"file": path.name, "signature": name, "error": error}


def golden_body(model: ModelConfig, layers: range, bucket: Bucket, stored: StoredWeights) -> Golden:
    """Returns noise in every row, equal for all canvases, and the layers' outputs."""
    alone = replace(bucket, canvases=1)
    inputs = example(model, layers, alone)
    outputs = reference(model, layers, alone, inputs, stored)
    tiled = {
        name: np.concatenate([array] * bucket.canvases, axis=int(name != "hidden"))
        for name, array in outputs.items()
    }
    return Golden(resized(inputs, bucket), tiled)


def golden_head(model: ModelConfig, rows: int, chunk: int | None, stored: StoredWeights) -> Golden:
    """Returns noise, and the logits of one chunk of the vocabulary or the confidence over all."""
    hidden = np.random.default_rng(0).standard_normal((rows, model.width), np.float32)
    inputs = {"hidden": hidden, "penalty": np.zeros(model.vocab_size, np.float32)}
    logits = _head_logits(model, hidden, stored, chunk)
    outputs = {"confidence": _confidence_of(logits)} if chunk is None else {"logits": logits}
    return Golden(inputs, outputs)


def golden_step(model: ModelConfig, step: Step, stored: StoredWeights) -> Golden:
    """Returns golden data of a step of layers from the first on, or of a single product."""
    if "bias" in step.inputs:
        layers = range(sum(name.startswith("keys_") for name in step.inputs))
        return golden_body(model, layers, bucket_of(step), stored)
    inputs = noise(step)
    weights = {name: stored.array(name, shape) for name, shape in step.weights.items()}
    return Golden(inputs, jax.jit(step.function)(weights, inputs))


def noise(step: Step) -> dict[str, np.ndarray]:
    """Returns random inputs of a step."""
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in step.inputs.items()}


def write_golden(
    path: Path, graph: Path, allowed: float, cases: Mapping[str, Callable[[], Golden]]
) -> None:
    """Writes the file of a graph. Signatures and outputs have run_model's numbers: the order of
    signatures, and of outputs in the subgraph."""
    model, _ = read_tflite(graph)
    lines = []
    with atomic.new_file(path) as part, tarfile.open(part, "w") as archive:
        for number, (signature, subgraph) in enumerate(signatures(model)):
            name = signature.signatureKey.decode()
            lines.append(f"{number} {name} {allowed}\n")
            golden = cases[name]()
            for input_name, array in golden.inputs.items():
                raw = np.asarray(array, np.float32).tobytes()
                _add(archive, f"{name}/{input_name}.raw", raw)
            names = {output.tensorIndex: output.name.decode() for output in signature.outputs}
            shown = _shown([names[index] for index in subgraph.outputs], golden.outputs)
            _add(archive, f"{name}/outputs", "".join(shown).encode())
        _add(archive, "signatures", "".join(lines).encode())


def _shown(order: Sequence[str], outputs: Mapping[str, np.ndarray]) -> Iterator[str]:
    for number, name in enumerate(order):
        # Ids are left out (see `Golden`).
        if name in outputs:
            flat = np.asarray(outputs[name]).reshape(-1)
            indices = np.arange(flat.size)
            if flat.size > 2 * SHOWN:
                middle = flat.size // 2 - SHOWN // 2
                indices = np.r_[:SHOWN, middle : middle + SHOWN, flat.size - SHOWN : flat.size]
            for index in np.unique(indices):
                yield f"{number} {index} {flat[index]:.9g}\n"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
