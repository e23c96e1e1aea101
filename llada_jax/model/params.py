"""The parameters of a dLLM, described once.

`abstract_params` gives the tree with a `ParamSpec` at each leaf. Random initialisation, loading,
quantization and sharding all follow from it, so a new family is a row in a table, not new code.
Matrices are stored [out, in], as in PyTorch checkpoints: no transposes while loading, and the
layout that XLA's CPU matrix products are fastest with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, DTypeLike, Float, Key

from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.quantize import Weight

Axis = Literal["vocab", "width", "heads", "kv_heads", "ffn", "experts", "head_dim"]
Leaf = Any
"""An array, a `QuantArray`, or a `ParamSpec`: the tree has one shape for all three."""


@dataclass(frozen=True)
class ParamSpec:
    """Shape, logical axes and standard deviation of one parameter (0: zeros; None: ones)."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    init_std: float | None
    quantizable: bool = False


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
    head: Weight | None  # [V, D]; None: the embedding is the head


def abstract_params(config: ModelConfig) -> ModelParams:
    """The parameter tree of `config` with a `ParamSpec` at each leaf."""
    embedding = ParamSpec((config.vocab_size, config.width), ("vocab", "width"), 0.02)
    head = None
    if not config.tied_embeddings:
        head = _matrix(config.vocab_size, config.width, "vocab", "width")
    return _tree(
        ModelParams,
        embedding=embedding,
        layers=tuple(_layer(config, index) for index in range(config.n_layers)),
        final_norm=_ones(config.width, "width"),
        head=head,
    )


def parameter_name(path: Sequence[Any]) -> str:
    """A leaf's path in the tree as one name: `layers.3.attention.query`."""
    return ".".join(str(getattr(key, "name", getattr(key, "idx", None))) for key in path)


def named_specs(config: ModelConfig) -> dict[str, ParamSpec]:
    """Every parameter by name, in the order of the tree's leaves."""
    leaves = jax.tree.leaves_with_path(abstract_params(config))
    return {parameter_name(path): spec for path, spec in leaves}


def _tree(record: Any, **leaves: Leaf) -> Any:
    # The records' annotations name arrays; here their leaves are specifications.
    return record(**leaves)


def _matrix(rows: int, columns: int, row_axis: Axis, column_axis: Axis) -> ParamSpec:
    return ParamSpec((rows, columns), (row_axis, column_axis), columns**-0.5, quantizable=True)


def _ones(size: int, axis: Axis) -> ParamSpec:
    return ParamSpec((size,), (axis,), None)


def _zeros(size: int, axis: Axis) -> ParamSpec:
    return ParamSpec((size,), (axis,), 0.0)


def _layer(config: ModelConfig, index: int) -> Layer:
    moe = config.moe
    if moe is not None and index >= moe.first_layer:
        ffn = _experts(config.width, moe)
    else:
        ffn = _feed_forward(config.width, config.ffn_width)
    return _tree(
        Layer,
        attention_norm=_ones(config.width, "width"),
        attention=_attention(config),
        ffn_norm=_ones(config.width, "width"),
        ffn=ffn,
    )


def _attention(config: ModelConfig) -> Attention:
    width = config.width
    query_width = config.n_heads * config.head_dim
    key_width = config.n_kv_heads * config.head_dim
    bias = config.qkv_bias
    norm = _ones(config.head_dim, "head_dim") if config.qk_norm else None
    return _tree(
        Attention,
        query=_matrix(query_width, width, "heads", "width"),
        key=_matrix(key_width, width, "kv_heads", "width"),
        value=_matrix(key_width, width, "kv_heads", "width"),
        output=_matrix(width, query_width, "width", "heads"),
        query_bias=_zeros(query_width, "heads") if bias else None,
        key_bias=_zeros(key_width, "kv_heads") if bias else None,
        value_bias=_zeros(key_width, "kv_heads") if bias else None,
        query_norm=norm,
        key_norm=norm,
    )


def _feed_forward(width: int, ffn_width: int) -> FeedForward:
    return _tree(
        FeedForward,
        gate=_matrix(ffn_width, width, "ffn", "width"),
        up=_matrix(ffn_width, width, "ffn", "width"),
        down=_matrix(width, ffn_width, "width", "ffn"),
    )


def _experts(width: int, moe: MoEConfig) -> Experts:
    def stack(rows: int, columns: int, row_axis: Axis, column_axis: Axis) -> ParamSpec:
        return ParamSpec(
            (moe.n_experts, rows, columns),
            ("experts", row_axis, column_axis),
            columns**-0.5,
            quantizable=True,
        )

    return _tree(
        Experts,
        router=ParamSpec((moe.n_experts, width), ("experts", "width"), width**-0.5),
        selection_bias=_zeros(moe.n_experts, "experts") if moe.selection_bias else None,
        gate=stack(moe.expert_width, width, "ffn", "width"),
        up=stack(moe.expert_width, width, "ffn", "width"),
        down=stack(width, moe.expert_width, "width", "ffn"),
        shared=_feed_forward(width, moe.shared_width) if moe.shared_width else None,
    )


def init_params(
    config: ModelConfig, key: Key[Array, ""], dtype: DTypeLike = jnp.float32
) -> ModelParams:
    """Random parameters: normal with each specification's deviation, norms at one, biases at zero.

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


def partition_specs(config: ModelConfig, mesh_axes: dict[Axis, str]) -> ModelParams:
    """The tree with a `PartitionSpec` at each leaf: logical axes mapped to mesh axes."""

    def to_partition(spec: ParamSpec) -> PartitionSpec:
        return PartitionSpec(*(mesh_axes.get(axis) for axis in spec.axes))

    return jax.tree.map(to_partition, abstract_params(config))


def param_count(config: ModelConfig) -> int:
    """Number of scalars in the parameter tree."""
    count = 0
    for spec in jax.tree.leaves(abstract_params(config)):
        size = 1
        for length in spec.shape:
            size *= length
        count += size
    return count
