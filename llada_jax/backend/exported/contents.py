"""What an export holds: its settings, the shapes that it runs, and its layers cut into files."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llada_jax.backend.canvases import sizes_within
from llada_jax.backend.litert import tflite
from llada_jax.backend.protocol import Bucket, Inputs, Weights
from llada_jax.backend.weights import stored_as
from llada_jax.config import ExportConfig, ModelConfig, require
from llada_jax.lowered import LoweredWeight
from llada_jax.model.params import named_specs
from llada_jax.text import Tokenizer


@dataclass(frozen=True)
class Export:
    """What is exported, from where, and how."""

    model: ModelConfig
    weights: Weights
    settings: ExportConfig
    source: str
    """Name of the weights: an export that was interrupted goes on only with the same."""
    tokenizer: Tokenizer | None = None
    verify: bool = True
    """Whether every signature is run against JAX before the folder gets its name."""
    samples: Sequence[Inputs] = ()
    """Recorded inputs of the whole body, where phones need static quantization."""
    fingerprint: Callable[[], str | None] = lambda: None
    """Names the content of the weights as they are now, if anything does."""

    @property
    def buckets(self) -> list[Bucket]:
        return buckets(self.settings)


def buckets(settings: ExportConfig) -> list[Bucket]:
    """Returns every shape of a forward that the folder can run."""
    return [
        Bucket(rows, cache, canvases)
        for rows in settings.rows
        for cache in settings.caches
        for canvases in sizes_within(settings.canvases, rows, settings.rows[-1])
    ]


def shard_layers(model: ModelConfig, settings: ExportConfig) -> list[range]:
    """Cuts layers into the fewest files of `shard_bytes` at the most, as equal as can be.

    Raises ValueError where one layer is larger than that.
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

    return next(each for each in map(cut, range(1, model.n_layers + 1)) if all(map(fits, each)))


def float32_shards(model: ModelConfig) -> list[range]:
    """Cuts layers into files of float32, from which contexts for phones are compiled."""
    limit = int(0.95 * tflite.MAX_FILE_BYTES)
    return shard_layers(model, ExportConfig(quant="float32", shard_bytes=limit))


def layer_bytes(model: ModelConfig, settings: ExportConfig) -> list[int]:
    """Returns about how many bytes each layer takes in a file."""
    stored: list[dict[str, LoweredWeight]] = [{} for _ in range(model.n_layers)]
    for name, spec in named_specs(model).items():
        if name.startswith("layers."):
            layer = int(name.split(".")[1])
            stored[layer][name] = stored_as(name, spec.shape, settings.quant)
    return [tflite.file_bytes(layer, len(buckets(settings))) for layer in stored]


def outer_bytes(model: ModelConfig, settings: ExportConfig) -> int:
    """Returns the bytes of head and embedding, the latter at two bytes a number."""
    shape = (model.vocab_size, model.width)
    head = tflite.file_bytes({"head": stored_as("head", shape, settings.quant)})
    return head + 2 * model.vocab_size * model.width
