"""Decodes with a part of the layers in memory: the others are staged by a plan, for real.

    python -m experiments.stream
    python -m experiments.stream shares=[0,0.5] copy_mb_per_second=500
    python -m experiments.stream planner=paging
    python -m experiments.stream architecture=llada_8b sampler.gen_length=4 \
        sampler.block_length=4 sampler.steps=4

First all layers are in memory, and each is timed, as is a copy; a planner gets these times. Then,
for each share, the plan runs, and its tokens, memory and stalls are compared with what they should
be. A model of some architecture has random int8 weights, which are never in memory twice.

Each share runs in a process of its own, which compiles first. `memory` is the bytes that hold
layers, by count, beside what the plan says; `peak` is measured: the most that the process held in
its memory while it decoded, less what it held when all was compiled and no layer was there. What is
in `peak` and not in `memory` are the arrays of a forward, XLA's own included.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import llada_jax as lj
from experiments.harness.own_process import in_own_process
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.stream.streamed_share import ModelSource, ShareJob, StreamedModel, run_share
from llada_jax.backend.layer_file import ALIGNMENT, PAGE, LayerFile, StoredLayer, write_layers
from llada_jax.backend.streamed_program import StreamedProgram
from llada_jax.backend.streamed_weights import LayerStaging, StreamedWeights
from llada_jax.build.streaming import staging_of
from llada_jax.config import ModelConfig, SamplerConfig, require
from llada_jax.swap.address_budget import Budget
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.graph import Graph, Operator
from llada_jax.swap.planner_registry import planner
from llada_jax.swap.stall_times import stall_of

WARM_UP = 2
"""Forwards that compile, or start with empty slots; they do not count."""
PREDICTED = "the plan's own prediction, from the compute and the copies that were measured here"


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """What to decode, in how much memory. The comments are in conf/stream.yaml."""

    model: str = "tiny"
    architecture: ModelConfig | None = None
    dtype: str | None = None
    prompt: str
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0)
    planner: str = "steady"
    copy_mb_per_second: float | None = None
    sampler: SamplerConfig

    def __post_init__(self) -> None:
        require(bool(self.shares), "shares is empty; allowed: at least one")
        for share in self.shares:
            require(0 <= share <= 1, f"share is {share}; allowed: 0 to 1")
        speed = self.copy_mb_per_second
        require(
            speed is None or speed > 0,
            f"copy_mb_per_second is {speed}; allowed: above 0, or null",
        )
        planner(self.planner)

    @property
    def bytes_per_second(self) -> float | None:
        return None if self.copy_mb_per_second is None else self.copy_mb_per_second * 1e6

    @property
    def source(self) -> ModelSource:
        return ModelSource(
            model=self.model,
            dtype=self.dtype,
            prompt=self.prompt,
            architecture=self.architecture,
        )


class ForwardTimes(NamedTuple):
    """Seconds of a forward with everything in memory, and of a copy."""

    layers: list[float]
    between: float
    """Seconds from the last layer to the first one of the next forward."""
    copies: list[float]
    """Seconds of each layer's copy, from the file to a slot."""


class TimedWeights(StreamedWeights):
    """Says when each layer began and ended."""

    def __init__(self, *arguments: Any, **settings: Any):
        self.began: list[list[float]] = []
        self.ended: list[list[float]] = []
        super().__init__(*arguments, **settings)

    def acquire(self, layer: int) -> Mapping[str, Any]:
        weights = super().acquire(layer)
        if layer == 0:
            self.began.append([])
            self.ended.append([])
        self.began[-1].append(time.perf_counter())
        return weights

    def release(self, layer: int) -> None:
        self.ended[-1].append(time.perf_counter())
        super().release(layer)


def stream(config: StreamConfig, run: Run) -> None:
    """Runs all shares against the model with all layers in memory."""
    subject = config.source.subject()
    run.begin()
    with TemporaryDirectory(dir=run.folder) as folder:
        path = Path(folder) / "layers.bin"
        stored = write_layers(path, subject.model.config, subject.weights).layers
        tokens, times = _timed(subject, config, LayerFile(path, stored))
        wanted = tokens if config.architecture else _unstreamed(subject, config)
        rows = list(_times_as_rows(stored, times))
        for share in config.shares:
            for row in _one_share(config, stored, path, times, wanted, share):
                run.record(row.as_dict())
                rows.append(row)
    run.finish(rows)


def _unstreamed(subject: StreamedModel, config: StreamConfig) -> np.ndarray:
    """Returns the tokens of the model as it is."""
    return lj.generate(subject.model, subject.prompt, config.sampler, loop="host").tokens


def _times_as_rows(stored: tuple[StoredLayer, ...], times: ForwardTimes) -> Iterator[ResultRow]:
    speed = sum(layer.size for layer in stored) / sum(times.copies)
    yield ResultRow(name="stream/compute", value=1e3 * sum(times.layers), unit="ms a forward")
    yield ResultRow(name="stream/between", value=1e3 * times.between, unit="ms a forward")
    yield ResultRow(name="stream/copy", value=speed / 1e6, unit="MB/s")


def _timed(
    subject: StreamedModel, config: StreamConfig, file: LayerFile
) -> tuple[np.ndarray, ForwardTimes]:
    """Returns tokens with all layers in memory, and the times of the layers and of copies."""
    model, prompt = subject.model, subject.prompt
    copies = [_copy_seconds(file, index) for index in range(len(file.layers))]
    if config.bytes_per_second is not None:
        slow = [layer.size / config.bytes_per_second for layer in file.layers]
        copies = list(map(max, copies, slow))
    with TimedWeights(file, LayerStaging((), 0, ())) as weights:
        program = StreamedProgram(model.config, model.params, weights)
        for _ in range(2):  # the first one compiles
            weights.began.clear()
            weights.ended.clear()
            tokens = lj.generate(model, prompt, config.sampler, backend=program).tokens
        began, ended = np.array(weights.began), np.array(weights.ended)
    layers = np.median((ended - began)[WARM_UP:], axis=0).tolist()
    between = float(np.median(began[WARM_UP:, 0] - ended[WARM_UP - 1 : -1, -1]))
    return tokens, ForwardTimes(layers, between, copies)


def _copy_seconds(file: LayerFile, index: int) -> float:
    into = np.zeros(file.layers[index].size + ALIGNMENT, np.uint8)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        file.read(index, into)
        times.append(time.perf_counter() - began)
    return median(times)


def plan_for(
    config: StreamConfig, stored: tuple[StoredLayer, ...], times: ForwardTimes, share: float
) -> tuple[Graph, Plan]:
    """Returns a forward's graph, an operator for each layer and one for the host, and its plan."""
    layers = [
        Operator(
            f"layers.{index}",
            layer.size,
            round(1e9 * compute),
            round(1e9 * copy),
            depends=(index - 1,) if index else (),
        )
        for index, (layer, compute, copy) in enumerate(
            zip(stored, times.layers, times.copies, strict=True)
        )
    ]
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
    speed = config.bytes_per_second
    ran = in_own_process(
        run_share,
        ShareJob(config.source, config.sampler, path, stored, staging_of(plan), speed),
    )
    stalls = ran.stalls[WARM_UP:]
    name = f"stream/{share:g}"
    same = float((ran.tokens == wanted).mean())
    yield ResultRow(name=f"{name}/same_tokens", value=same, unit="of tokens")
    yield ResultRow(
        name=f"{name}/memory",
        value=ran.layer_bytes / 1e6,
        unit="MB of layers",
        reference=_expected_memory(graph, plan) / 1e6,
        source="the plan",
    )
    if ran.peak_bytes is not None:
        unit = "MB more" + (", compilation included" if ran.with_compilation else "")
        yield ResultRow(
            name=f"{name}/peak",
            value=ran.peak_bytes / 1e6,
            unit=unit,
            reference=ran.layer_bytes / 1e6,
            source="the layers alone, by count",
        )
    yield ResultRow(
        name=f"{name}/stall",
        value=1e3 * fmean(stalls),
        unit="ms a forward",
        reference=float(stall_of(graph, plan)) / 1e6,
        source=PREDICTED,
        n=len(stalls),
    )
    yield ResultRow(name=f"{name}/seconds", value=ran.seconds, unit="s for all tokens")


def _expected_memory(graph: Graph, plan: Plan) -> int:
    return plan.resident_bytes(graph) + staging_of(plan).area_bytes * bool(plan.transfers)


main = entry_point("stream", stream, StreamConfig)
