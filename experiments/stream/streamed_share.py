"""One share of `experiments.stream`: its tokens, its stalls, and the memory of its process."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import llada_jax as lj
from experiments.harness.random_weights import RandomWeights
from llada_jax.backend.layer_file import LayerFile, StoredLayer
from llada_jax.backend.resources import (
    peak_memory,
    require_disk,
    require_memory,
    resident_memory,
    restart_peak,
)
from llada_jax.backend.streamed_program import StreamedProgram
from llada_jax.backend.streamed_weights import LayerStaging, StreamedWeights
from llada_jax.backend.weights import whole
from llada_jax.config import ModelConfig, SamplerConfig, require
from llada_jax.model.params import abstract_params, param_count, parameter_name
from llada_jax.swap.planner_registry import planner

PROMPT = [list(range(16))]


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """What to decode, in how much memory. The comments are in conf/stream.yaml."""

    architecture: ModelConfig
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0)
    planner: str = "steady"
    sampler: SamplerConfig

    def __post_init__(self) -> None:
        require(bool(self.shares), "shares is empty; allowed: at least one")
        for share in self.shares:
            require(0 <= share <= 1, f"share is {share}; allowed: 0 to 1")
        planner(self.planner)

    @property
    def weights(self) -> RandomWeights:
        """The layers, which are made as they are written."""
        return RandomWeights(self.architecture, "int8")

    def model(self) -> lj.Model:
        """Returns what stays in memory. Raises ValueError where room is missing."""
        size = param_count(self.architecture)
        require_disk(Path(), size, "the layers")
        require_memory(int(1.4 * size), "all layers at once")  # the embedding is float32
        specs = abstract_params(self.architecture)._replace(layers=())
        weights = self.weights
        params = jax.tree.map_with_path(
            lambda path, _: whole(weights.rows(parameter_name(path))), specs
        )
        return lj.Model(self.architecture, params, None)


class ShareOutcome(NamedTuple):
    """What came of decoding with some layers in memory."""

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


def run_share(
    config: StreamConfig, path: Path, stored: tuple[StoredLayer, ...], staging: LayerStaging
) -> ShareOutcome:
    """Decodes twice: the first time compiles, the second one counts."""
    model = config.model()
    program = StreamedProgram(model.config, model.params)

    def decoded() -> tuple[lj.Result, StreamedWeights, int | None]:
        with StreamedWeights(LayerFile(path, stored), staging) as store:
            program.weights = store
            result = lj.generate(model, PROMPT, config.sampler, backend=program)
            program.weights = None
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
