"""Lowered steps of a model's shape, without weights, for the device model to price."""

from functools import lru_cache
from os import PathLike
from pathlib import Path

from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.steps import HEAD_CHUNK, body_step, head_step
from llada_jax.config import ModelConfig, Quant
from llada_jax.lowered import Lowered
from llada_jax.model.architecture import architecture
from llada_jax.phone.cost import unknown_operations


class Graphs:
    """Lowers each shape once.

    One dense layer stands for all, also of a mixture, whose experts
    `llada_jax.phone.routed_layers` puts in the place of its feed-forward; so does one chunk of the
    head.
    """

    def __init__(self, model: ModelConfig, quant: Quant = "int4_block32") -> None:
        self.model: ModelConfig = model
        self.quant: Quant = quant
        self.head_chunks = max(1.0, model.vocab_size / HEAD_CHUNK)
        self.layer = lru_cache(None)(self._layer)
        self.head = lru_cache(None)(self._head)
        self.unknown: dict[str, None] = {}
        """Operations that the cost model does not know, in all that was lowered, in words."""

    def _lowered(self, step: Step) -> Lowered:
        lowered = lower(step, self.quant)
        self.unknown.update(dict.fromkeys(unknown_operations(lowered)))
        return lowered

    def _layer(self, rows: int, cache: int) -> Lowered:
        """Lowers the first layer alone, with the dense feed-forward."""
        # Not the last layer of the model, so that no final norm comes with it.
        model = self.model.replace(n_layers=2, moe=None)
        return self._lowered(body_step(model, range(1), Bucket(rows, cache)))

    def _head(self, rows: int) -> Lowered:
        """Lowers one chunk of the vocabulary."""
        ids = dict.fromkeys(("mask_id", "eos_id", "eot_id", "pad_id"))
        size = min(HEAD_CHUNK, self.model.vocab_size)
        return self._lowered(head_step(self.model.replace(vocab_size=size, **ids), rows))

    def body(self, rows: int, cache: int) -> Lowered:
        """Lowers all layers, and the final norm."""
        layers = range(self.model.n_layers)
        return self._lowered(body_step(self.model, layers, Bucket(rows, cache)))


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
