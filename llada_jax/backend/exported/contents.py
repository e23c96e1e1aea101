"""Describes an export: its source and settings, the buckets, and the division into files."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llada_jax.backend.canvases import pack_sizes
from llada_jax.backend.litert import tflite
from llada_jax.backend.protocol import Bucket, Inputs, Weights
from llada_jax.backend.weights import storage_spec
from llada_jax.config import ExportConfig, ModelConfig, require
from llada_jax.lowered import LoweredWeight
from llada_jax.model.params import named_specs
from llada_jax.text import Tokenizer


@dataclass(frozen=True)
class Export:
    """A model to export, and how."""

    model: ModelConfig
    weights: Weights
    settings: ExportConfig
    source: str
    """Name of the weights; an interrupted export can only be resumed with the same."""
    tokenizer: Tokenizer | None = None
    verify: bool = True
    """Whether to run every signature against JAX before the folder gets its final name."""
    samples: Sequence[Inputs] = ()
    """Recorded inputs of the whole body, for phones with static quantization."""
    fingerprint: Callable[[], str | None] = lambda: None
    """Returns the current hash of the weights' files, or None if there is none."""
    contract: Mapping[str, Any] = field(default_factory=dict)
    """What a host program does in each step: see `llada_jax.api.contract`."""

    @property
    def buckets(self) -> list[Bucket]:
        return buckets(self.settings)


def buckets(settings: ExportConfig) -> list[Bucket]:
    """Returns every shape of a forward pass that the folder can run."""
    return [
        Bucket(rows, cache, canvases)
        for rows in settings.rows
        for cache in settings.caches
        for canvases in pack_sizes(settings.canvases, rows, settings.rows[-1])
    ]


def shard_layers(model: ModelConfig, settings: ExportConfig) -> list[range]:
    """Divides the layers into the fewest files of at most `shard_bytes`, of about equal size.

    Raises ValueError if one layer is larger than that.
    """
    sizes = layer_bytes(model, settings)
    require(
        max(sizes) <= settings.shard_bytes,
        f"shard_bytes is {settings.shard_bytes}; allowed: at least one layer ({max(sizes)})",
    )

    def cut(count: int) -> list[range]:
        cuts = [model.n_layers * i // count for i in range(count + 1)]
        return list(itertools.starmap(range, itertools.pairwise(cuts)))

    def fits(layers: range) -> bool:
        return sum(sizes[layers.start : layers.stop]) <= settings.shard_bytes

    return next(cuts for cuts in map(cut, range(1, model.n_layers + 1)) if all(map(fits, cuts)))


def float32_shards(model: ModelConfig) -> list[range]:
    """Divides the layers into float32 files, from which contexts for phones are compiled."""
    limit = int(0.95 * tflite.MAX_FILE_BYTES)
    return shard_layers(model, ExportConfig(quant="float32", shard_bytes=limit))


def layer_bytes(model: ModelConfig, settings: ExportConfig) -> list[int]:
    """Estimates the bytes of each layer in a file."""
    stored: list[dict[str, LoweredWeight]] = [{} for _ in range(model.n_layers)]
    for name, spec in named_specs(model).items():
        if name.startswith("layers."):
            layer = int(name.split(".")[1])
            stored[layer][name] = storage_spec(name, spec.shape, settings.quant)
    return [tflite.file_bytes(layer, len(buckets(settings))) for layer in stored]


def outer_bytes(model: ModelConfig, settings: ExportConfig) -> int:
    """Estimates the bytes of head and embedding; the embedding has two bytes per number."""
    shape = (model.vocab_size, model.width)
    head = tflite.file_bytes({"head": storage_spec("head", shape, settings.quant)})
    return head + 2 * model.vocab_size * model.width
