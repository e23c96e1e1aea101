"""The functions that backends compile: layers of the body, and the head.

They are the model's own functions with static shapes, one canvas (B = 1), and named arrays:

- `body`: `hidden` [R, D], RoPE's `cos` and `sin` [R, half], `bias` [R, C + R] (0, or `HIDDEN_SCORE`
  where a row may not look), and for each layer the cache `keys_<i>`, `values_<i>` [K, C, Dh], which
  is only read. Gives `hidden` and the rows' `new_keys_<i>`, `new_values_<i>` [K, R, Dh].
- `head`: `hidden` [R, D] and `penalty` [V], added to the logits; gives `token` and `confidence`.
- `logits`: `hidden` [R, D] to one chunk of the logits, for every other rule of scoring.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array

from llada_jax.backend.protocol import Bucket, Step
from llada_jax.config import ModelConfig
from llada_jax.model.forward import run_layers
from llada_jax.model.head import score_greedily
from llada_jax.model.layers import Rotation, rms_norm
from llada_jax.model.params import ParamSpec, abstract_params
from llada_jax.model.quantize import linear

HEAD_CHUNK = 8192
"""Vocabulary entries whose logits exist at one time."""


def weight_name(path: Sequence[Any]) -> str:
    """A leaf's path in the parameter tree as one name: `layers.3.attention.query`."""
    return ".".join(str(getattr(key, "name", getattr(key, "idx", None))) for key in path)


def weight_specs(config: ModelConfig) -> dict[str, ParamSpec]:
    """Every parameter by name, in the order of the tree."""
    leaves = jax.tree.leaves_with_path(abstract_params(config))
    return {weight_name(path): spec for path, spec in leaves}


def body_step(config: ModelConfig, layers: range, bucket: Bucket) -> Step:
    """Some consecutive layers; with the last one comes the final norm."""
    tree = abstract_params(config).layers[layers.start : layers.stop]
    names = [weight_name(path) for path, _ in jax.tree.leaves_with_path(tree)]
    names = [f"layers.{layers.start + int(n.split('.')[0])}.{n.split('.', 1)[1]}" for n in names]
    treedef = jax.tree.structure(tree)
    last = layers.stop == config.n_layers
    used = [*names, "final_norm"] if last else names

    def function(weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        def cached(kind: str) -> list[Array]:
            if not bucket.cache:
                return [jax.numpy.zeros((1, 0, config.n_kv_heads, config.head_dim))] * len(layers)
            return [inputs[f"{kind}_{i}"].swapaxes(0, 1)[None] for i in layers]

        angles = Rotation(inputs["cos"][None, :, None], inputs["sin"][None, :, None])
        hidden, keys, values = run_layers(
            jax.tree.unflatten(treedef, [weights[name] for name in names]),
            config,
            inputs["hidden"][None],
            angles,
            inputs["bias"][None],
            cached("keys"),
            cached("values"),
        )
        if last:
            hidden = rms_norm(hidden, weights["final_norm"], config.norm_eps)
        outputs = {"hidden": hidden[0]}
        for i, key, value in zip(layers, keys, values, strict=True):
            outputs[f"new_keys_{i}"] = key[0].swapaxes(0, 1)
            outputs[f"new_values_{i}"] = value[0].swapaxes(0, 1)
        return outputs

    specs = weight_specs(config)
    return Step(
        name=bucket.name,
        function=function,
        weights={name: specs[name].shape for name in used},
        inputs=_body_inputs(config, layers, bucket),
    )


def _body_inputs(config: ModelConfig, layers: range, bucket: Bucket) -> dict[str, tuple[int, ...]]:
    half = config.rotary_dims // 2
    inputs: dict[str, tuple[int, ...]] = {
        "hidden": (bucket.rows, config.width),
        "cos": (bucket.rows, half),
        "sin": (bucket.rows, half),
        "bias": (bucket.rows, bucket.cache + bucket.rows),
    }
    if bucket.cache:
        shape = (config.n_kv_heads, bucket.cache, config.head_dim)
        inputs |= {f"{kind}_{i}": shape for i in layers for kind in ("keys", "values")}
    return inputs


def head_chunks(config: ModelConfig) -> list[tuple[int, int]]:
    """First id and end of each chunk of the vocabulary."""
    size = config.vocab_size
    return [(start, min(start + HEAD_CHUNK, size)) for start in range(0, size, HEAD_CHUNK)]


def head_parts(config: ModelConfig) -> dict[str, tuple[str, int, int]]:
    """The head's weight as chunks: name -> (name in the parameter tree, first row, end)."""
    source = "embedding" if config.tied_embeddings else "head"
    return {f"head.{i}": (source, *rows) for i, rows in enumerate(head_chunks(config))}


def head_step(config: ModelConfig, rows: int) -> Step:
    """Token and confidence of rows, by LLaDA's plain rule: the most probable id."""
    chunks = head_chunks(config)

    def function(weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        parts = [weights[f"head.{i}"] for i in range(len(chunks))]
        token, confidence = score_greedily(parts, inputs["hidden"], inputs["penalty"])
        return {"token": token, "confidence": confidence}

    return Step(
        name=f"rows{rows}",
        function=function,
        weights={f"head.{i}": (b - a, config.width) for i, (a, b) in enumerate(chunks)},
        inputs={"hidden": (rows, config.width), "penalty": (config.vocab_size,)},
    )


def logits_step(config: ModelConfig, rows: int, chunk: int) -> Step:
    """The logits of one chunk of the vocabulary."""
    start, stop = head_chunks(config)[chunk]

    def function(weights: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"logits": linear(inputs["hidden"], weights[f"head.{chunk}"])}

    return Step(
        name=f"rows{rows}_chunk{chunk}",
        function=function,
        weights={f"head.{chunk}": (stop - start, config.width)},
        inputs={"hidden": (rows, config.width)},
    )


def head_steps(config: ModelConfig, rows: Sequence[int]) -> list[Step]:
    """All that the host needs of the head, for each number of rows."""
    steps = [head_step(config, n) for n in rows]
    chunks = range(len(head_chunks(config)))
    return steps + [logits_step(config, n, chunk) for n in rows for chunk in chunks]


def parameter_count(steps: Sequence[Step]) -> int:
    """Numbers in the weights that the steps share."""
    shared = {name: shape for step in steps for name, shape in step.weights.items()}
    return sum(math.prod(shape) for shape in shared.values())
