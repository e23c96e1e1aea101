"""What published figures are of, as far as time goes: datasets, as they were fitted, and steps."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.config import ModelConfig
from llada_jax.lowered import Lowered, LoweredWeight, product_step
from llada_jax.phones.cost import price_on_npu
from llada_jax.phones.dynamics import Dynamics, Techniques, decode
from llada_jax.phones.profile import Profile
from llada_jax.phones.simulate import ForwardTimer, GraphsLike
from llada_jax.phones.workload import Forward, Workload

PUBLISHED = Path(__file__).parent / "published"
"""`fit.json`: figures that the calibration may know. `validation.json`: others, to judge it by.
`tasks.json`: what tests/phones/fitting makes of the first; a test holds that it still does."""
RUNS = 24
"""Decodings that a mean latency is taken over."""
CANVAS = 256


def read_figures(name: str) -> dict[str, Any]:
    """Reads a file of published figures by its name."""
    return json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))


def whole_figure(name: str) -> dict[str, list[float]]:
    """Returns a figure that the fit knows in parts: its lists, all points in order of the first."""
    parts = [read_figures(each)[name] for each in ("fit", "validation")]
    lists = [key for key, value in parts[0].items() if isinstance(value, list)]
    points = sorted(point for part in parts for point in zip(*map(part.get, lists), strict=True))
    return dict(zip(lists, map(list, zip(*points, strict=True)), strict=True))


def ffn_down(model: ModelConfig, rows: int) -> Lowered:
    """Returns the product of Figure 3, in Q4_0."""
    weight = LoweredWeight((model.width, model.ffn_width), 4, 32)
    return product_step(rows, model.ffn_width, model.width, weight, "layers.0.ffn.down")


def one_pass(
    graphs: GraphsLike,
    profile: Profile,
    rows: int,
    *,
    kernels: str = "vendor",
    context: int = 4096,
    head_rows: int = 1,
) -> float:
    """Returns seconds of a pass with a static context, all computed, and the head of some rows."""
    chosen = profile.npu[kernels]
    layer = price_on_npu(graphs.layer(rows, context - rows), chosen, profile.memory)
    head = price_on_npu(graphs.head(head_rows), chosen, profile.memory)
    call = chosen.step_overhead_us * 1e-6
    return layer.seconds * graphs.model.n_layers + head.seconds * graphs.head_chunks + call


def table2_seconds(figures: Mapping[str, Any], phone: ForwardTimer) -> list[float]:
    """Returns seconds of the steps of Table 2."""
    return [phone.step(Forward(n, 0, n)).seconds for n in figures["table2_step_ms"]["rows"]]


class PublishedTask(NamedTuple):
    """A dataset of the paper: how long its prompts are, and how fast it settles."""

    prompt: int
    dynamics: Dynamics


class PublishedTasks:
    """Reads the paper's figures, which are of LLaDA-8B, and the datasets that were fitted to some
    of them; a mean latency is over so many runs."""

    def __init__(self, graphs: GraphsLike, runs: int = RUNS) -> None:
        self.graphs, self.runs = graphs, runs
        self.figures = read_figures("fit")
        self.fitted = read_figures("tasks")
        self.dynamics = Dynamics(**self.fitted["dynamics"])
        """The process of LLaDA-8B, whatever the dataset."""
        self.spread: float = self.fitted["spread"]
        """What the process leaves of llada.cpp's cells: a standard deviation of logarithms."""
        self.prompt_spread: float = self.fitted["prompt_spread"]
        """Tokens that the prompts' lengths are known to: a standard deviation."""
        self.workloads = cache(self._workloads)

    @cached_property
    def published(self) -> dict[str, Any]:
        """Validation figures: for references of results, never for the fit."""
        return read_figures("validation")

    def task(self, name: str) -> PublishedTask:
        """Returns a dataset by its name."""
        own = self.fitted["tasks"][name]
        dynamics = replace(self.dynamics, reach=own["reach"], answer=own["answer"])
        return PublishedTask(own["prompt"], dynamics)

    def _workloads(self, task: str, tokens: int, techniques: Techniques) -> tuple[Workload, ...]:
        prompt, dynamics = self.task(task)
        runs = range(self.runs)
        return tuple(decode(dynamics, techniques, prompt, tokens, seed) for seed in runs)
