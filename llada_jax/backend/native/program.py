"""A dense int8 model as a `Program`, with matrix products by `Multiplier`.

A layer is four products: queries, keys and values at once, the output, gate and up at once, and
down. Norms, SwiGLU and residual sums are part of them. XLA runs what is between the first two
(biases, norms of heads, RoPE, attention) and combines the head's logits.

The arithmetic is that of int8 in `model.quantize.linear`; only the order of float sums differs, so
hidden states differ in their last bits, and rarely an activation is rounded to its neighbour.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llada_jax.backend.canvases import OutputBuffers, pack_sizes
from llada_jax.backend.native.product import (
    Multiplier,
    PackedWeight,
    aligned_floats,
    pack,
    rounded,
)
from llada_jax.backend.program import CANVASES, ROW_BUCKETS, bucket_size
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.session import Shard
from llada_jax.backend.steps import attend_by_canvas, cache_names
from llada_jax.backend.weights import InMemory, pieces_of, quant_of, storage_spec, store
from llada_jax.config import ModelConfig, require
from llada_jax.model.head import first_maximum
from llada_jax.model.layers import CachedLayer, Rotation, mix_heads
from llada_jax.model.params import Attention, ModelParams
from llada_jax.model.quantize import is_quantized

_HEAD_CHUNK = 8192  # outputs, a multiple of 256


class _Layer(NamedTuple):
    attention_norm: Float[np.ndarray, " D"]
    projections: PackedWeight
    small: Attention
    """Biases and norms; None for matrices."""
    output: PackedWeight
    ffn_norm: Float[np.ndarray, " D"]
    gate_and_up: PackedWeight
    down: PackedWeight


class NativeProgram:
    """A `Program` of one shard; weights are copied once, in the order of the kernel."""

    largest_head = ROW_BUCKETS[-1]

    def __init__(self, config: ModelConfig, params: ModelParams):
        """Raises ValueError for models that are not dense or not int8, ImportError without
        llvmlite."""
        quant = quant_of(params)
        require(quant == "int8", f"backend is 'native', and the model is {quant}; allowed: int8")
        require(config.moe is None, "backend is 'native', and the model has experts; allowed: none")
        self.config = config
        self.embedding = np.asarray(params.embedding)
        self.output_buffers = OutputBuffers()
        self.multiply = Multiplier()
        self._weights = InMemory(params)
        self.final_norm = _padded_vector(params.final_norm)
        self.layers = [self._layer(i, layer) for i, layer in enumerate(params.layers)]
        self._head = self._pack(["embedding" if params.head is None else "head"])
        size = config.vocab_size
        self.head_chunks = [
            (start, min(start + _HEAD_CHUNK, size)) for start in range(0, size, _HEAD_CHUNK)
        ]

    def _layer(self, index: int, layer: Any) -> _Layer:
        def packed(part: str, *names: str, pad_each: bool = False) -> PackedWeight:
            return self._pack([f"layers.{index}.{part}.{name}" for name in names], pad_each)

        small: Any = [None if is_quantized(x) else x for x in layer.attention]
        return _Layer(
            _padded_vector(layer.attention_norm),
            packed("attention", "query", "key", "value"),
            jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), Attention(*small)),
            packed("attention", "output"),
            _padded_vector(layer.ffn_norm),
            packed("ffn", "gate", "up", pad_each=True),
            packed("ffn", "down"),
        )

    def _pack(self, names: Sequence[str], pad_each: bool = False) -> PackedWeight:
        shapes = [self._weights.shape(name) for name in names]
        pieces = [
            store(pieces_of(self._weights, name), storage_spec(name, shape, "int8"))
            for name, shape in zip(names, shapes, strict=True)
        ]
        return pack(pieces, shapes, pad_each)

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        bucket = bucket_size(rows, ROW_BUCKETS)
        return bucket, pack_sizes(CANVASES, bucket, ROW_BUCKETS[-1])

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        bucket = Bucket(bucket_size(rows, ROW_BUCKETS), bucket_size(cache, ()), canvases)
        return bucket, [Shard(range(self.config.n_layers), _Body(self, bucket))]

    def head(self, rows: int) -> tuple[int, Mapping[str, "_Head"]]:
        rounded_rows = bucket_size(rows, ROW_BUCKETS)
        names = {f"rows{rounded_rows}": None} | {
            f"rows{rounded_rows}_chunk{i}": i for i in range(len(self.head_chunks))
        }
        return rounded_rows, {name: _Head(self, chunk) for name, chunk in names.items()}

    def logits(self, hidden: Float[np.ndarray, "R D"], chunk: int) -> Float[np.ndarray, "R n"]:
        start, stop = self.head_chunks[chunk]
        weight = self._head.columns(start, min(start + _HEAD_CHUNK, self._head.outputs))
        out = aligned_floats(len(hidden), weight.outputs)
        self.multiply(_padded_rows(hidden), weight, out)
        return out[:, : stop - start]


class _Body:
    """All layers, as an `Executable`."""

    def __init__(self, program: NativeProgram, bucket: Bucket):
        self._program, self._bucket = program, bucket

    def allocate(self, name: str) -> np.ndarray:
        config = self._program.config
        return aligned_floats(config.n_kv_heads, self._bucket.cache, config.head_dim)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        program, bucket = self._program, self._bucket
        multiply, config = program.multiply, program.config
        rows, width = arrays["hidden"].shape
        hidden = _padded_rows(arrays["hidden"], copy=True)
        first, eps = program.layers[0], config.norm_eps
        projected = aligned_floats(rows, first.projections.outputs)
        gate_and_up = aligned_floats(rows, first.gate_and_up.outputs)
        gate, up = np.split(gate_and_up, 2, axis=1)
        outputs = {}
        for index, layer in enumerate(program.layers):
            multiply(hidden, layer.projections, projected, "norm", layer.attention_norm, eps=eps)
            caches = [
                [arrays[name] for name in cache_names(index, canvas)]
                for canvas in range(bucket.canvases if bucket.cache else 0)
            ]
            mixed, keys, values = _mix(
                config, bucket, projected, layer.small,
                *(arrays[name] for name in ("cos", "sin", "bias")), caches,
            )  # fmt: skip
            multiply(np.asarray(mixed), layer.output, hidden, adds=True)
            multiply(hidden, layer.gate_and_up, gate_and_up, "norm", layer.ffn_norm, eps=eps)
            multiply(gate, layer.down, hidden, "swiglu", up, adds=True)
            outputs[f"new_keys_{index}"] = np.asarray(keys)
            outputs[f"new_values_{index}"] = np.asarray(values)
        hidden = hidden[:, :width]
        mean = np.mean(hidden * hidden, axis=1, keepdims=True) + np.float32(eps)
        outputs["hidden"] = hidden * (1 / np.sqrt(mean)) * program.final_norm[:width]
        return outputs


class _Head:
    """The head as an `Executable`: greedy, or the logits of a chunk."""

    def __init__(self, program: NativeProgram, chunk: int | None):
        self._program, self._chunk = program, chunk

    def allocate(self, name: str) -> np.ndarray:
        """Only caches are allocated, which are inputs of a body."""
        raise KeyError(name)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        program, hidden = self._program, arrays["hidden"]
        if self._chunk is not None:
            return {"logits": program.logits(hidden, self._chunk)}
        rows = len(hidden)
        lowest = np.full(rows, np.finfo(np.float32).min, np.float32)
        running: Any = (np.zeros(rows, np.int32), lowest, np.zeros(rows, np.float32))
        for chunk, (start, stop) in enumerate(program.head_chunks):
            penalty = arrays["penalty"][start:stop]
            running = _absorb(running, program.logits(hidden, chunk), penalty, np.int32(start))
        token, _, total = map(np.array, running)
        return {"token": token, "confidence": 1 / total}


@partial(jax.jit, static_argnums=(0, 1))
def _mix(config, bucket, projected, small, cos, sin, bias, caches):
    """Returns the heads' outputs [R, HDh], padded, and new keys and values [K, R, Dh]."""
    sizes = [config.n_heads * config.head_dim, *[config.n_kv_heads * config.head_dim] * 2]
    ends = np.cumsum(sizes).tolist()
    parts = [projected[None, :, end - size : end] for end, size in zip(ends, sizes, strict=True)]
    nothing = [jnp.zeros((config.n_kv_heads, 0, config.head_dim))] * 2
    cached = [
        CachedLayer(keys, values, 0) for keys, values in caches or [nothing] * bucket.canvases
    ]
    angles = Rotation(cos[None, :, None], sin[None, :, None])
    mixed, fresh = mix_heads(config, attend_by_canvas, parts, small, angles, bias[None], cached)
    padding = rounded(sizes[0]) - sizes[0]
    return jnp.pad(mixed[0], ((0, 0), (0, padding))), *(x[0].swapaxes(0, 1) for x in fresh)


@jax.jit
def _absorb(
    running: tuple[Array, Array, Array], logits: Array, penalty: Array, start: Array
) -> tuple[Array, Array, Array]:
    """Returns token, highest logit and sum of exponentials after another chunk of logits."""
    token, first, total = running
    logits = logits + penalty[None]
    top, index = first_maximum(logits)
    highest = jnp.maximum(first, top)
    share = jnp.exp(logits - highest[:, None]).sum(axis=-1)
    total = total * jnp.exp(first - highest) + share
    return jnp.where(top > first, index + start, token), highest, total


def _padded_vector(values: Any) -> Float[np.ndarray, " n"]:
    return _padded_rows(np.asarray(values, np.float32)[None])[0]


def _padded_rows(values: Float[np.ndarray, "R n"], copy: bool = False) -> Float[np.ndarray, "R N"]:
    """Returns rows with zeros up to a multiple of 64."""
    width = rounded(values.shape[1])
    if width == values.shape[1] and not copy and values.flags.c_contiguous:
        return values
    out = aligned_floats(len(values), width)
    out[:, : values.shape[1]] = values
    return out
