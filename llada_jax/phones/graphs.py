"""Lowered steps of a model in any size, for the cost model. No weights are needed.

Lowering a step takes far longer than pricing it, and a sweep needs hundreds of sizes. So each kind
of step is lowered once for placeholder sizes, which are then replaced in the shapes of its
operations.
"""

from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path

from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.steps import HEAD_CHUNK, body_step, head_step
from llada_jax.config import ModelConfig, Quant
from llada_jax.lowered import Lowered, TensorType
from llada_jax.model.architecture import architecture
from llada_jax.phones.cost import unknown_operations

ROWS, CACHED = 7919, 104729
"""Placeholder numbers of rows and of cached positions. No dimension of a model is a multiple of
these primes or of their sum, so every axis that depends on them is recognized."""


def _resize(lowered: Lowered, rows: int, cache: int) -> Lowered:
    """Returns a step that was lowered for `ROWS` and `CACHED` with the shapes of other sizes."""

    def resize_axis(old: int) -> int:
        for placeholder, new in ((ROWS, rows), (CACHED, cache), (ROWS + CACHED, rows + cache)):
            if old and old % placeholder == 0:
                return old // placeholder * new
        return old

    def resize_all(tensors: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return tuple(TensorType(tuple(map(resize_axis, t.shape)), t.dtype) for t in tensors)

    operations = tuple(
        replace(op, inputs=resize_all(op.inputs), outputs=resize_all(op.outputs),
                contraction=resize_axis(op.contraction))
        for op in lowered.operations
    )  # fmt: skip
    return replace(lowered, module=b"", inputs={}, outputs={}, operations=operations)


class Graphs:
    """The lowered steps of one model with one quantization.

    One dense layer represents all layers. In a mixture, `routed_layers` replaces its feed-forward
    by experts. One chunk of the head represents the `head_chunks` of the vocabulary.
    """

    def __init__(self, model: ModelConfig, quant: Quant = "int4_block32") -> None:
        self.model: ModelConfig = model
        self.quant: Quant = quant
        self.head_chunks = max(1.0, model.vocab_size / HEAD_CHUNK)
        self.layer, self.head = cache(self._layer), cache(self._head)
        self._any_layer, self._any_head = cache(self._layer_of), cache(self._head_of)
        self.unknown: dict[str, None] = {}
        """Operations that the cost model does not know, described in words (an ordered set)."""

    def _lower(self, step: Step) -> Lowered:
        lowered = lower(step, self.quant)
        self.unknown.update(dict.fromkeys(unknown_operations(lowered)))
        return lowered

    def _layer(self, rows: int, cache: int) -> Lowered:
        """Returns the lowered first layer, with a dense feed-forward."""
        if rows == 1:  # lowered separately: JAX leaves out broadcasts of a single row
            return self._layer_of(1, cache)
        return _resize(self._any_layer(ROWS, CACHED if cache else 0), rows, cache)

    def _layer_of(self, rows: int, cache: int) -> Lowered:
        # The model has a second layer because the last layer includes the final norm.
        model = self.model.replace(n_layers=2, moe=None)
        return self._lower(body_step(model, range(1), Bucket(rows, cache)))

    def _head(self, rows: int) -> Lowered:
        """Returns the lowered head for one chunk of the vocabulary."""
        return self._head_of(1) if rows == 1 else _resize(self._any_head(ROWS), rows, 0)

    def _head_of(self, rows: int) -> Lowered:
        ids = dict.fromkeys(("mask_id", "eos_id", "eot_id", "pad_id"))
        size = min(HEAD_CHUNK, self.model.vocab_size)
        return self._lower(head_step(self.model.replace(vocab_size=size, **ids), rows))


Shape = str | PathLike[str] | ModelConfig
"""A shape of the package by name, a YAML file by path, or a configuration."""

_GRAPHS: dict[tuple[ModelConfig, Quant], Graphs] = {}


def graphs_of(shape: Shape, quant: Quant = "int4_block32") -> Graphs:
    """Returns the lowered steps of a shape. Equal shapes share one object."""
    model = shape if isinstance(shape, ModelConfig) else architecture(shape)
    if (model, quant) not in _GRAPHS:
        _GRAPHS[model, quant] = Graphs(model, quant)
    return _GRAPHS[model, quant]


def shape_name(shape: Shape) -> str:
    if isinstance(shape, ModelConfig):
        return f"{shape.family}, {shape.n_layers} layers of width {shape.width}"
    return Path(shape).stem


def unknown_so_far() -> list[str]:
    """Returns descriptions of the operations that the cost model did not know in this process."""
    return [description for graphs in _GRAPHS.values() for description in graphs.unknown]
