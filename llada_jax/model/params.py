"""The tree of a dLLM's parameters, as `llada_jax.model.architecture.parameters` describes them.

A new family is therefore a row in a table, not new code.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Key

from llada_jax.config import ModelConfig
from llada_jax.model.architecture.parameters import ParamSpec, named_specs
from llada_jax.model.quantize import Weight

Leaf = Any
"""An array, a `QuantArray`, or a `ParamSpec`: the tree has one shape for all three."""


class Attention(NamedTuple):
    query: Weight  # [H * Dh, D]
    key: Weight  # [K * Dh, D]
    value: Weight  # [K * Dh, D]
    output: Weight  # [D, H * Dh]
    query_bias: Float[Array, " HDh"] | None
    key_bias: Float[Array, " KDh"] | None
    value_bias: Float[Array, " KDh"] | None
    query_norm: Float[Array, " Dh"] | None
    key_norm: Float[Array, " Dh"] | None


class FeedForward(NamedTuple):
    gate: Weight  # [F, D]
    up: Weight  # [F, D]
    down: Weight  # [D, F]


class Experts(NamedTuple):
    router: Float[Array, "E D"]
    selection_bias: Float[Array, " E"] | None
    gate: Weight  # [E, F, D]
    up: Weight  # [E, F, D]
    down: Weight  # [E, D, F]
    shared: FeedForward | None


class Layer(NamedTuple):
    attention_norm: Float[Array, " D"]
    attention: Attention
    ffn_norm: Float[Array, " D"]
    ffn: FeedForward | Experts


class ModelParams(NamedTuple):
    embedding: Float[Array, "V D"]
    layers: tuple[Layer, ...]
    final_norm: Float[Array, " D"]
    head: Weight | None  # [V, D]; None if the embedding is the head
    drafter: Any = None  # of a run whose sampler drafts with it (`sampler/drafters/own.py`)


def abstract_params(config: ModelConfig) -> ModelParams:
    """Returns the parameter tree of `config` with a `ParamSpec` at each leaf."""
    specs = named_specs(config)
    layers = tuple(_layer(specs, f"layers.{index}") for index in range(config.n_layers))
    return _record(ModelParams, specs, "", layers=layers)


def _layer(specs: Mapping[str, ParamSpec], prefix: str) -> Layer:
    ffn = _record(FeedForward, specs, f"{prefix}.ffn")
    if f"{prefix}.ffn.router" in specs:
        shared = f"{prefix}.ffn.shared"
        inner = _record(FeedForward, specs, shared) if f"{shared}.gate" in specs else None
        ffn = _record(Experts, specs, f"{prefix}.ffn", shared=inner)
    attention = _record(Attention, specs, f"{prefix}.attention")
    return _record(Layer, specs, prefix, attention=attention, ffn=ffn)


def _record(kind: Any, specs: Mapping[str, ParamSpec], prefix: str, **records: Leaf) -> Any:
    """Fills a record with the specifications under a name; parameters that do not exist are
    None."""
    # The records' annotations name arrays; here their leaves are specifications.
    leaves = {name: specs.get(f"{prefix}.{name}".lstrip(".")) for name in kind._fields}
    return kind(**(leaves | records))


def parameter_name(path: Sequence[Any]) -> str:
    """Returns a leaf's path in the tree as one name: `layers.3.attention.query`."""
    names = ("name", "idx", "key")
    parts = (next(getattr(key, name) for name in names if hasattr(key, name)) for key in path)
    return ".".join(map(str, parts))


def init_params(
    config: ModelConfig, key: Key[Array, ""], dtype: DTypeLike = jnp.float32
) -> ModelParams:
    """Draws parameters: normal by their specifications' deviations, norms at one, biases at zero.

    Projections back into the residual stream are scaled by 1 / sqrt(2 N), as in GPT-2.
    """
    specs, treedef = jax.tree.flatten_with_path(abstract_params(config))
    keys = jax.random.split(key, len(specs))

    def init(path: tuple[Any, ...], spec: ParamSpec, leaf_key: Key[Array, ""]) -> Array:
        if spec.init_std is None:
            return jnp.ones(spec.shape, dtype)
        to_residual = path[-1].name in ("output", "down")
        std = spec.init_std * ((2 * config.n_layers) ** -0.5 if to_residual else 1.0)
        return (std * jax.random.normal(leaf_key, spec.shape)).astype(dtype)

    leaves = [init(path, spec, k) for (path, spec), k in zip(specs, keys, strict=True)]
    return jax.tree.unflatten(treedef, leaves)


def param_count(config: ModelConfig) -> int:
    """Returns the number of scalars in the parameter tree."""
    return sum(spec.size for spec in named_specs(config).values())
