"""Decodes with a part of the layers in memory: the others are staged by a plan, for real.

    python -m experiments.stream
    python -m experiments.stream shares=[0,0.5]
    python -m experiments.stream planner=greedy
    python -m experiments.stream architecture=llada_8b sampler.gen_length=4 \
        sampler.block_length=4 sampler.steps=4

First all layers are in memory, and each is timed, as is a copy; a planner gets these times. Then
each share runs by its plan, in a process of its own, against what its tokens, memory and stalls
should be. Weights are random and in int8, and never in memory twice.

`memory` is the bytes that hold layers, by count. `peak` is measured: the most that the process held
while it decoded, less what it held when all was compiled and no layer was there; what it has beyond
`memory` are the arrays of a forward, XLA's own included.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import llada_jax as lj
from experiments.harness.own_process import FREED_AT_ONCE, in_own_process
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.harness.timers import best_of
from experiments.stream.streamed_share import PROMPT, StreamConfig, run_share
from llada_jax.backend.layer_file import PAGE, LayerFile, StoredLayer, write_layers
from llada_jax.backend.streamed_program import StreamedProgram
from llada_jax.backend.streamed_weights import LayerStaging, StreamedWeights
from llada_jax.build.streaming import staging_of
from llada_jax.swap.address_budget import Budget
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.graph import Graph, Operator
from llada_jax.swap.planner_registry import planner
from llada_jax.swap.stall_times import stall_of

WARM_UP = 2
"""Forwards that compile, or start with empty slots; they do not count."""
PREDICTED = "the plan's own prediction, from the compute and the copies that were measured here"


class ForwardTimes(NamedTuple):
    """Seconds of a forward with everything in memory, and of a copy."""

    layers: list[float]
    between: float
    """Seconds from the last layer to the first one of the next forward."""
    copies: list[float]
    """Seconds of each layer's copy, from the file to a slot."""


class TimedWeights(StreamedWeights):
    """Says when each layer began and ended."""

    def __init__(self, file: LayerFile, staging: LayerStaging):
        self.moments: list[float] = []
        super().__init__(file, staging)

    def acquire(self, layer: int) -> Mapping[str, Any]:
        weights = super().acquire(layer)
        self.moments.append(time.perf_counter())
        return weights

    def release(self, layer: int) -> None:
        self.moments.append(time.perf_counter())
        super().release(layer)


def stream(config: StreamConfig, run: Run) -> None:
    """Runs all shares against the model with all layers in memory."""
    model = config.model()
    run.begin()
    with TemporaryDirectory(dir=run.folder) as folder:
        path = Path(folder) / "layers.bin"
        stored = write_layers(path, config.architecture, config.weights).layers
        tokens, times = _timed(model, config, LayerFile(path, stored))
        speed = sum(layer.size for layer in stored) / sum(times.copies)
        rows = [
            ResultRow("stream/compute", 1e3 * sum(times.layers), "ms a forward"),
            ResultRow("stream/between", 1e3 * times.between, "ms a forward"),
            ResultRow("stream/copy", speed / 1e6, "MB/s"),
        ]
        for share in config.shares:
            rows += run.recorded(_one_share(config, stored, path, times, tokens, share))
    run.finish(rows)


def _timed(
    model: lj.Model, config: StreamConfig, file: LayerFile
) -> tuple[np.ndarray, ForwardTimes]:
    """Returns tokens with all layers in memory, and the times of the layers and of copies."""
    copies = [_copy_seconds(file, index) for index in range(len(file.layers))]
    with TimedWeights(file, LayerStaging((), 0, ())) as weights:
        program = StreamedProgram(model.config, model.params, weights)
        for _ in range(2):  # the first one compiles
            weights.moments.clear()
            tokens = lj.generate(model, PROMPT, config.sampler, backend=program).tokens
    moments = np.array(weights.moments).reshape(-1, len(copies), 2)
    began, ended = moments[..., 0], moments[..., 1]
    layers = np.median((ended - began)[WARM_UP:], axis=0).tolist()
    between = float(np.median(began[WARM_UP:, 0] - ended[WARM_UP - 1 : -1, -1]))
    return tokens, ForwardTimes(layers, between, copies)


def _copy_seconds(file: LayerFile, index: int) -> float:
    into = np.zeros(file.layers[index].size, np.uint8)
    return median(best_of(lambda: file.read(index, into))[1] for _ in range(3))


def plan_for(
    config: StreamConfig, stored: tuple[StoredLayer, ...], times: ForwardTimes, share: float
) -> tuple[Graph, Plan]:
    """Returns a forward's graph, an operator for each layer and one for the host, and its plan."""
    layers = []
    for index, layer in enumerate(stored):
        ns = round(1e9 * times.layers[index]), round(1e9 * times.copies[index])
        before = (index - 1,) if index else ()
        layers.append(Operator(f"layers.{index}", layer.size, *ns, depends=before))
    host = Operator("host", 0, round(1e9 * times.between), depends=(len(layers) - 1,))
    graph = Graph((*layers, host))
    largest = max(layer.size for layer in stored)
    session = int(share * graph.weight_bytes) + 2 * largest
    budget = Budget(session_bytes=session, max_buffer_bytes=session, alignment=PAGE)
    return graph, planner(config.planner)(graph, budget)


def _one_share(
    config: StreamConfig,
    stored: tuple[StoredLayer, ...],
    path: Path,
    times: ForwardTimes,
    wanted: np.ndarray,
    share: float,
) -> Iterator[ResultRow]:
    graph, plan = plan_for(config, stored, times, share)
    staging = staging_of(plan)
    ran = in_own_process(run_share, config, path, stored, staging, environment=FREED_AT_ONCE)
    stalls = ran.stalls[WARM_UP:]
    name, counted = f"stream/{share:g}", ran.layer_bytes / 1e6
    planned = plan.resident_bytes(graph) + staging.area_bytes * bool(plan.transfers)
    yield ResultRow(f"{name}/same_tokens", float((ran.tokens == wanted).mean()), "of tokens")
    beside: Any = {"reference": planned / 1e6, "source": "the plan"}
    yield ResultRow(f"{name}/memory", counted, "MB of layers", **beside)
    if ran.peak_bytes is not None:
        unit = "MB more" + (", compilation included" if ran.with_compilation else "")
        beside = {"reference": counted, "source": "the layers alone, by count"}
        yield ResultRow(f"{name}/peak", ran.peak_bytes / 1e6, unit, **beside)
    beside = {"reference": float(stall_of(graph, plan)) / 1e6, "source": PREDICTED}
    stall = 1e3 * fmean(stalls)
    yield ResultRow(f"{name}/stall", stall, "ms a forward", n=len(stalls), **beside)
    yield ResultRow(f"{name}/seconds", ran.seconds, "s for all tokens")


main = entry_point("stream", stream, StreamConfig)
