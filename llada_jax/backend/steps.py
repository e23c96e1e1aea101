"""The functions that backends compile: layers of the body, and the head.

They are the model's own functions with static shapes, one canvas (B = 1), and named arrays, which
`llada_jax.api.contract` describes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llada_jax.backend.protocol import Bucket, Step
from llada_jax.config import ModelConfig
from llada_jax.model.forward import LayerOut, run_layer, run_layers
from llada_jax.model.head import score_greedily
from llada_jax.model.layers import (
    HIDDEN_SCORE,
    CachedLayer,
    KeysValues,
    Rotation,
    attend_at_once,
    rms_norm,
)
from llada_jax.model.params import abstract_params, named_specs
from llada_jax.model.quantize import linear

HEAD_CHUNK = 8192
"""Vocabulary entries per chunk: the most logits of a row that exist at one time."""


def body_step(config: ModelConfig, layers: range, bucket: Bucket, taps: Sequence[int] = ()) -> Step:
    """Returns the step of consecutive layers; the last layer's step includes the final norm. Of
    layers in `taps` it returns the output, too."""
    specs = named_specs(config)
    prefixes = tuple(f"layers.{layer}." for layer in layers)
    names = [name for name in specs if name.startswith(prefixes)]
    tree = jax.tree.structure(abstract_params(config).layers[layers.start : layers.stop])
    last = layers.stop == config.n_layers

    def function(weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        def cached(layer: int, canvas: int) -> CachedLayer:
            nothing = jnp.zeros((config.n_kv_heads, 0, config.head_dim))
            keys, values = (inputs.get(name, nothing) for name in cache_names(layer, canvas))
            return CachedLayer(keys, values, layer)

        outputs: dict[str, Array] = {}

        def run(*arguments: Any) -> LayerOut:
            out = run_layer(*arguments, attend_with=attend_by_canvas)
            index = arguments[-1][0].index
            if index in taps:
                outputs[tap_name(index)] = out[0][0]
            return out

        angles = Rotation(inputs["cos"][None, :, None], inputs["sin"][None, :, None])
        hidden, keys, values = run_layers(
            jax.tree.unflatten(tree, [weights[name] for name in names]),
            config,
            inputs["hidden"][None],
            angles,
            inputs["bias"][None],
            [[cached(i, canvas) for canvas in range(bucket.canvases)] for i in layers],
            run,
            layers.start,
        )
        if last:
            hidden = rms_norm(hidden, weights["final_norm"], config.norm_eps)
        outputs["hidden"] = hidden[0]
        for i, key, value in zip(layers, keys, values, strict=True):
            outputs[f"new_keys_{i}"] = key[0].swapaxes(0, 1)
            outputs[f"new_values_{i}"] = value[0].swapaxes(0, 1)
        return outputs

    used = [*names, "final_norm"] if last else names
    shapes = {name: specs[name].shape for name in used}
    return Step(bucket.name, function, shapes, _body_inputs(config, layers, bucket))


def tap_name(layer: int) -> str:
    """Returns the output name of a layer's output."""
    return f"tap_{layer}"


def cache_names(layer: int, canvas: int = 0) -> list[str]:
    """Returns the input names of a canvas's cache of a layer: keys, then values."""
    prefix = f"canvas{canvas}_" if canvas else ""
    return [f"{prefix}{kind}_{layer}" for kind in ("keys", "values")]


def _body_inputs(config: ModelConfig, layers: range, bucket: Bucket) -> dict[str, tuple[int, ...]]:
    half, rows = config.rotary_dims // 2, bucket.all_rows
    inputs: dict[str, tuple[int, ...]] = {
        "hidden": (rows, config.width),
        "cos": (rows, half),
        "sin": (rows, half),
        "bias": (rows, bucket.cache + bucket.rows),
    }
    if bucket.cache:
        shape = (config.n_kv_heads, bucket.cache, config.head_dim)
        for canvas in range(bucket.canvases):
            inputs |= {name: shape for i in layers for name in cache_names(i, canvas)}
    return inputs


def bucket_of(step: Step) -> Bucket:
    """Returns the bucket of a body step of one canvas."""
    rows, width = step.inputs["bias"]
    return Bucket(rows, width - rows)


def resized(inputs: Mapping[str, np.ndarray], bucket: Bucket) -> dict[str, np.ndarray]:
    """Cuts or pads the inputs of one canvas to another bucket: its first rows and cached positions,
    repeated for each canvas."""
    old_rows, width = inputs["bias"].shape
    old_cache = width - old_rows
    rows, cache = min(old_rows, bucket.rows), min(old_cache, bucket.cache)
    bias = np.full((bucket.rows, bucket.cache + bucket.rows), HIDDEN_SCORE, np.float32)
    bias[:rows, :cache] = inputs["bias"][:rows, :cache]
    bias[:rows, bucket.cache : bucket.cache + rows] = inputs["bias"][:rows, old_cache:][:, :rows]
    wide = {name: padded(inputs[name][:rows], bucket.rows) for name in ("hidden", "cos", "sin")}
    out = {
        name: np.tile(array, (bucket.canvases, 1))
        for name, array in (wide | {"bias": bias}).items()
    }
    for name, array in inputs.items():
        if name.startswith(("keys_", "values_")):
            cut = np.zeros((array.shape[0], bucket.cache, array.shape[2]), np.float32)
            cut[:, :cache] = array[:, :cache]
            out[name] = cut
            out |= {f"canvas{canvas}_{name}": cut for canvas in range(1, bucket.canvases)}
    return out


def padded(values: Float[np.ndarray, "r n"], rows: int) -> Float[np.ndarray, "R n"]:
    """Pads with rows of zeros to `rows`; float32."""
    out = np.zeros((rows, values.shape[1]), np.float32)
    out[: len(values)] = values
    return out


def head_chunks(config: ModelConfig, chunk: int | None = None) -> list[tuple[int, int]]:
    """Returns begin and end id of each chunk of the vocabulary (default: `HEAD_CHUNK` ids)."""
    chunk, size = chunk or HEAD_CHUNK, config.vocab_size
    return [(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def _head_weights(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns the chunks of the head's matrix as weights, with their shapes."""
    source = "embedding" if config.tied_embeddings else "head"
    chunks = head_chunks(config)
    return {f"{source}[{start}:{stop}]": (stop - start, config.width) for start, stop in chunks}


def head_step(config: ModelConfig, rows: int) -> Step:
    """Returns the step to token and confidence by LLaDA's greedy rule: the most probable id."""
    parts = _head_weights(config)

    def function(weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        matrix = [weights[name] for name in parts]
        token, confidence = score_greedily(matrix, inputs["hidden"], inputs["penalty"])
        return {"token": token, "confidence": confidence}

    inputs = {"hidden": (rows, config.width), "penalty": (config.vocab_size,)}
    return Step(f"rows{rows}", function, parts, inputs)


def logits_step(config: ModelConfig, rows: int, chunk: int) -> Step:
    """Returns the step to the logits of one chunk of the vocabulary."""
    name, shape = list(_head_weights(config).items())[chunk]

    def function(weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"logits": linear(inputs["hidden"], weights[name])}

    inputs = {"hidden": (rows, config.width)}
    return Step(f"rows{rows}_chunk{chunk}", function, {name: shape}, inputs)


def head_steps(config: ModelConfig, rows: Sequence[int]) -> list[Step]:
    """Returns all steps of the head that the host needs, for each number of rows."""
    steps = [head_step(config, n) for n in rows]
    chunks = range(len(head_chunks(config)))
    return steps + [logits_step(config, n, chunk) for n in rows for chunk in chunks]


def attend_by_canvas(
    query: Float[Array, "1 R H Dh"],
    fresh: KeysValues,
    bias: Float[Array, "1 R T"],
    cached: Sequence[CachedLayer],
) -> Float[Array, "1 R HDh"]:
    """Attends the rows of each canvas to its cache and its rows; shapes are as for one canvas.

    `cached` has no batch axis, as the inputs of a step: LiteRT copies an input that is reshaped.
    """

    def split(array: Array) -> list[Array]:
        return jnp.split(array[0], len(cached))

    pairs = zip(*map(split, fresh), strict=True)
    parts = zip(split(query), pairs, split(bias), cached, strict=True)
    return jnp.concatenate([attend_at_once(*part) for part in parts])[None]
