"""Lowered steps of a model's shape, without weights, for the device model to price."""

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
"""Primes that stand for rows and cached positions: no product or sum of them is a model's size."""


def _resized(lowered: Lowered, rows: int, cache: int) -> Lowered:
    """Returns a step that was lowered for `ROWS` and `CACHED` as it would be for other numbers."""

    def length(old: int) -> int:
        for unit, new in ((ROWS, rows), (CACHED, cache), (ROWS + CACHED, rows + cache)):
            if old and old % unit == 0:
                return old // unit * new
        return old

    def sized(tensors: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        return tuple(TensorType(tuple(map(length, each.shape)), each.dtype) for each in tensors)

    operations = tuple(
        replace(each, inputs=sized(each.inputs), outputs=sized(each.outputs),
                contraction=length(each.contraction))
        for each in lowered.operations
    )  # fmt: skip
    return replace(lowered, module=b"", inputs={}, outputs={}, operations=operations)


class Graphs:
    """Lowers each kind of step once, and gives it in any size.

    One dense layer stands for all, also of a mixture, whose experts
    `llada_jax.phones.routed_layers` puts in the place of its feed-forward; so does one chunk of the
    head.
    """

    def __init__(self, model: ModelConfig, quant: Quant = "int4_block32") -> None:
        self.model: ModelConfig = model
        self.quant: Quant = quant
        self.head_chunks = max(1.0, model.vocab_size / HEAD_CHUNK)
        self.layer, self.head = cache(self._layer), cache(self._head)
        self._any_layer, self._any_head = cache(self._layer_of), cache(self._head_of)
        self.unknown: dict[str, None] = {}
        """Operations that the cost model does not know, in all that was lowered, in words."""

    def _lowered(self, step: Step) -> Lowered:
        lowered = lower(step, self.quant)
        self.unknown.update(dict.fromkeys(unknown_operations(lowered)))
        return lowered

    def _layer(self, rows: int, cache: int) -> Lowered:
        """Gives the first layer alone, with the dense feed-forward."""
        if rows == 1:  # broadcasts of a single row are left out
            return self._layer_of(1, cache)
        return _resized(self._any_layer(ROWS, CACHED if cache else 0), rows, cache)

    def _layer_of(self, rows: int, cache: int) -> Lowered:
        # Not the last layer of the model, so that no final norm comes with it.
        model = self.model.replace(n_layers=2, moe=None)
        return self._lowered(body_step(model, range(1), Bucket(rows, cache)))

    def _head(self, rows: int) -> Lowered:
        """Gives one chunk of the vocabulary."""
        return self._head_of(1) if rows == 1 else _resized(self._any_head(ROWS), rows, 0)

    def _head_of(self, rows: int) -> Lowered:
        ids = dict.fromkeys(("mask_id", "eos_id", "eot_id", "pad_id"))
        size = min(HEAD_CHUNK, self.model.vocab_size)
        return self._lowered(head_step(self.model.replace(vocab_size=size, **ids), rows))


Shape = str | PathLike[str] | ModelConfig
"""A shape that comes with the package by its name, a YAML file's path, or the configuration."""

_GRAPHS: dict[tuple[ModelConfig, Quant], Graphs] = {}


def graphs_of(shape: Shape, quant: Quant = "int4_block32") -> Graphs:
    """Returns the lowered steps of a shape, the same object for the same shape."""
    model = shape if isinstance(shape, ModelConfig) else architecture(shape)
    if (model, quant) not in _GRAPHS:
        _GRAPHS[model, quant] = Graphs(model, quant)
    return _GRAPHS[model, quant]


def shape_name(shape: Shape) -> str:
    """Returns a shape's name for reports."""
    if isinstance(shape, ModelConfig):
        return f"{shape.family}, {shape.n_layers} layers of width {shape.width}"
    return Path(shape).stem


def unknown_so_far() -> list[str]:
    """Names operations that were priced as something else, in all steps of `graphs_of` so far."""
    return [operation for graphs in _GRAPHS.values() for operation in graphs.unknown]
