"""One share of `experiments.stream`: its tokens, its stalls, and the memory of its process."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import llada_jax as lj
from experiments.harness.random_weights import RandomWeights
from llada_jax.backend.layer_file import LayerFile, StoredLayer
from llada_jax.backend.protocol import Weights
from llada_jax.backend.resources import (
    peak_memory,
    require_disk,
    require_memory,
    resident_memory,
    restart_peak,
)
from llada_jax.backend.streamed_program import StreamedProgram
from llada_jax.backend.streamed_weights import LayerStaging, StreamedWeights
from llada_jax.backend.weights import InMemory
from llada_jax.config import ModelConfig, SamplerConfig, require
from llada_jax.model.params import abstract_params, param_count, parameter_name

PROMPT_LENGTH = 16
"""Length of the prompt in tokens, where there is no tokenizer."""


class StreamedModel(NamedTuple):
    """What is decoded: `model` has what stays in memory, `weights` has the layers."""

    model: lj.Model
    weights: Weights
    prompt: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where a subject is from: a model, or a shape for random weights."""

    model: str
    dtype: str | None
    prompt: str
    architecture: ModelConfig | None

    def subject(self) -> StreamedModel:
        """Raises ValueError for a model that cannot be streamed, and where room is missing."""
        if self.architecture is not None:
            return _random(self.architecture)
        model = lj.load(self.model, self.dtype)
        if model.tokenizer is None:
            raise ValueError(f"model {self.model!r} has no tokenizer.json; allowed: one that has")
        require(
            model.artifact is None, f"{self.model} is an export; allowed: a model with parameters"
        )
        prompt = [model.tokenizer.encode_chat([{"role": "user", "content": self.prompt}])]
        return StreamedModel(model, InMemory(model.params), prompt)


def _random(architecture: ModelConfig) -> StreamedModel:
    """Returns a model of this shape, whose layers are made as they are written."""
    weights = RandomWeights(architecture, "int8")
    size = param_count(architecture)
    require_disk(Path(), size, "the layers")
    require_memory(int(1.4 * size), "all layers at once")  # the embedding is float32
    specs = abstract_params(architecture)._replace(layers=())
    params = jax.tree.map_with_path(lambda path, _: _whole(weights, parameter_name(path)), specs)
    prompt = [list(range(PROMPT_LENGTH))]
    return StreamedModel(lj.Model(architecture, params, None), weights, prompt)


def _whole(weights: Weights, name: str) -> Any:
    pieces = list(weights.rows(name))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)


class ShareJob(NamedTuple):
    """What a process needs to decode with some layers in memory."""

    source: ModelSource
    sampler: SamplerConfig
    path: Path
    stored: tuple[StoredLayer, ...]
    staging: LayerStaging
    bytes_per_second: float | None


class ShareOutcome(NamedTuple):
    """What came of it."""

    tokens: np.ndarray
    seconds: float
    stalls: list[float]
    """Seconds that each forward waited."""
    layer_bytes: int
    """Bytes of memory that hold layers, by count."""
    peak_bytes: int | None
    """The most that the process held beyond what it held before, when all was compiled and no layer
    was in memory; None where the system does not tell."""
    with_compilation: bool
    """Whether the system could not restart the peak, so that compilation is in it."""


class ExchangedLayers:
    """Layers of one store after another, for a program that is compiled once."""

    def __init__(self) -> None:
        self.store: StreamedWeights | None = None

    def acquire(self, layer: int) -> Mapping[str, Any]:
        assert self.store is not None
        return self.store.acquire(layer)

    def release(self, layer: int) -> None:
        assert self.store is not None
        self.store.release(layer)


def run_share(share: ShareJob) -> ShareOutcome:
    """Decodes twice: the first time compiles, the second one counts."""
    model, prompt = _without_layers(share.source)
    layers = ExchangedLayers()
    program = StreamedProgram(model.config, model.params, layers)

    def decoded() -> tuple[lj.Result, StreamedWeights, int | None]:
        file = LayerFile(share.path, share.stored)
        with StreamedWeights(file, share.staging, share.bytes_per_second) as layers.store:
            result = lj.generate(model, prompt, share.sampler, backend=program)
            store, layers.store = layers.store, None
            return result, store, peak_memory()

    decoded()
    gc.collect()
    before, restarted = resident_memory(), restart_peak()
    result, store, peak = decoded()
    return ShareOutcome(
        result.tokens,
        result.seconds,
        store.stalls,
        store.memory_bytes,
        None if before is None or peak is None else peak - before,
        not restarted,
    )


def _without_layers(source: ModelSource) -> tuple[lj.Model, list[list[int]]]:
    model, _, prompt = source.subject()
    return model._replace(params=model.params._replace(layers=())), prompt
