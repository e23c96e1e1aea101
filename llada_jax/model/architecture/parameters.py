"""The parameters of a dLLM, described once, and without JAX.

`named_specs` and `body_matrices` are the source for the tree of `llada_jax.model.params`, for
loading, quantization and sharding, and for the memory, graphs and costs of phones. Matrices are
stored [out, in], as in PyTorch checkpoints: XLA's CPU products are fastest with this layout.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from llada_jax.config import ModelConfig, MoEConfig

# fmt: off
Axis = Literal["vocab", "width", "heads", "kv_heads", "ffn", "experts", "head_dim",
               "embedded", "choices", "expert_ffn"]
# fmt: on
"""The meaning of a dimension. Rows of the embedding are `embedded`, not `vocab`; outputs of a
router are `choices`, not `experts`; an expert's width is `expert_ffn`. So one axis of a mesh may
divide experts and dense widths."""

_READS: Mapping[str, tuple[str, ...]] = {
    "attention.output": ("attention.query", "attention.key", "attention.value"),
    "ffn.router": ("attention.output",),
    "ffn.gate": ("attention.output", "ffn.router"),
    "ffn.up": ("attention.output", "ffn.router"),
    "ffn.down": ("ffn.gate", "ffn.up"),
    "ffn.shared.gate": ("attention.output",),
    "ffn.shared.up": ("attention.output",),
    "ffn.shared.down": ("ffn.shared.gate", "ffn.shared.up"),
}
"""The matrices of a layer that provide the inputs of each one."""


@dataclass(frozen=True)
class ParamSpec:
    """Shape, logical axes and standard deviation of one parameter (0 for zeros, None for ones)."""

    shape: tuple[int, ...]
    axes: tuple[Axis, ...]
    init_std: float | None
    quantizable: bool = False

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)


class Matrix(NamedTuple):
    """A parameter of a layer that rows are multiplied with; all copies of routed experts
    together."""

    name: str  # as in `named_specs`: `layers.3.ffn.down`
    layer: int
    outputs: int
    inputs: int
    copies: int  # experts of a routed layer; 1 for every other matrix
    of_expert: bool  # each routed expert has a copy
    reads: tuple[str, ...]  # the layer's matrices before it; empty for the first

    @property
    def weights(self) -> int:
        """Numbers in all copies."""
        return self.copies * self.outputs * self.inputs

    @property
    def of_shared_expert(self) -> bool:
        """Whether it belongs to the expert that all rows take."""
        return ".shared." in self.name


def named_specs(config: ModelConfig) -> dict[str, ParamSpec]:
    """Describes every parameter by name, in the order of the tree's leaves."""
    specs = {"embedding": ParamSpec((config.vocab_size, config.width), ("embedded", "width"), 0.02)}
    for layer in range(config.n_layers):
        specs |= _under(f"layers.{layer}", _layer(config, layer))
    specs["final_norm"] = _ones(config.width, "width")
    if not config.tied_embeddings:
        specs["head"] = _matrix(config.vocab_size, config.width, "vocab", "width")
    return specs


@cache
def body_matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """Describes the matrices of all layers, in the order in which a step runs them."""
    matrices = []
    for layer in range(config.n_layers):
        prefix = f"layers.{layer}."
        specs = {name: spec for name, spec in _layer(config, layer).items() if len(spec.shape) > 1}
        for name, spec in specs.items():
            *copies, outputs, inputs = spec.shape
            reads = tuple(prefix + read for read in _READS.get(name, ()) if read in specs)
            copied = math.prod(copies), bool(copies)
            matrices.append(Matrix(prefix + name, layer, outputs, inputs, *copied, reads))
    return tuple(matrices)


def head_weights(config: ModelConfig) -> int:
    """Returns the numbers of the head's matrix, which may be the embedding's."""
    specs = named_specs(config)
    return specs.get("head", specs["embedding"]).size


def is_routed(config: ModelConfig, layer: int) -> bool:
    """Returns whether a layer has routed experts."""
    return config.moe is not None and layer >= config.moe.first_layer


def _under(prefix: str, specs: Mapping[str, ParamSpec]) -> dict[str, ParamSpec]:
    return {f"{prefix}.{name}": spec for name, spec in specs.items()}


def _matrix(rows: int, columns: int, row_axis: Axis, column_axis: Axis) -> ParamSpec:
    return ParamSpec((rows, columns), (row_axis, column_axis), columns**-0.5, quantizable=True)


def _ones(size: int, axis: Axis) -> ParamSpec:
    return ParamSpec((size,), (axis,), None)


def _zeros(size: int, axis: Axis) -> ParamSpec:
    return ParamSpec((size,), (axis,), 0.0)


def _layer(config: ModelConfig, layer: int) -> dict[str, ParamSpec]:
    if config.moe is not None and is_routed(config, layer):
        ffn = _experts(config.width, config.moe)
    else:
        ffn = _feed_forward(config.width, config.ffn_width)
    return {
        "attention_norm": _ones(config.width, "width"),
        **_under("attention", _attention(config)),
        "ffn_norm": _ones(config.width, "width"),
        **_under("ffn", ffn),
    }


def _attention(config: ModelConfig) -> dict[str, ParamSpec]:
    width = config.width
    query_width, key_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    specs = {
        "query": _matrix(query_width, width, "heads", "width"),
        "key": _matrix(key_width, width, "kv_heads", "width"),
        "value": _matrix(key_width, width, "kv_heads", "width"),
        "output": _matrix(width, query_width, "width", "heads"),
    }
    if config.qkv_bias:
        specs["query_bias"] = _zeros(query_width, "heads")
        specs |= {f"{name}_bias": _zeros(key_width, "kv_heads") for name in ("key", "value")}
    if config.qk_norm:
        specs |= {f"{name}_norm": _ones(config.head_dim, "head_dim") for name in ("query", "key")}
    return specs


def _feed_forward(width: int, inner: int) -> dict[str, ParamSpec]:
    return {
        "gate": _matrix(inner, width, "ffn", "width"),
        "up": _matrix(inner, width, "ffn", "width"),
        "down": _matrix(width, inner, "width", "ffn"),
    }


def _experts(width: int, moe: MoEConfig) -> dict[str, ParamSpec]:
    specs = {"router": ParamSpec((moe.n_experts, width), ("choices", "width"), width**-0.5)}
    if moe.selection_bias:
        specs["selection_bias"] = _zeros(moe.n_experts, "choices")
    for name, one in _feed_forward(width, moe.expert_width).items():
        shape = (moe.n_experts, *one.shape)
        axes: list[Axis] = ["expert_ffn" if axis == "ffn" else axis for axis in one.axes]
        specs[name] = ParamSpec(shape, ("experts", *axes), one.init_std, quantizable=True)
    if moe.shared_width:
        specs |= _under("shared", _feed_forward(width, moe.shared_width))
    return specs
