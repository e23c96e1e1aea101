"""Figures of the llada.cpp paper (arXiv 2606.13740), and the datasets behind its latencies.

The paper does not publish the prompts' lengths or the decoding of a dataset, so these were fitted
to some of its figures (tests/phones/fitting). Other figures are used for validation only.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.config import ModelConfig
from llada_jax.lowered import Lowered, LoweredWeight, product_step
from llada_jax.phones.dynamics import Dynamics, Techniques, decode
from llada_jax.phones.simulate import ForwardTimer, GraphsLike
from llada_jax.phones.system import System
from llada_jax.phones.workload import Forward, Workload, blockwise, vanilla

PUBLISHED = Path(__file__).parent / "published"
"""`fit.json` has the figures that were fitted, `validation.json` the others. `tasks.json` has the
result of the fit, which a test compares with a new fit."""
RUNS = 24
"""Number of simulated runs of a mean latency."""
CANVAS = 256


def read_figures(name: str) -> dict[str, Any]:
    return json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))


def whole_figure(name: str) -> dict[str, list[float]]:
    """Returns a figure whose points are split between `fit.json` and `validation.json`.

    The points are sorted by the figure's first list.
    """
    parts = [read_figures(file)[name] for file in ("fit", "validation")]
    lists = [key for key, value in parts[0].items() if isinstance(value, list)]
    points = sorted(point for part in parts for point in zip(*map(part.get, lists), strict=True))
    return dict(zip(lists, map(list, zip(*points, strict=True)), strict=True))


def ffn_down(model: ModelConfig, rows: int) -> Lowered:
    """Returns the product of Figure 3: the down projection in Q4_0."""
    weight = LoweredWeight((model.width, model.ffn_width), 4, 32)
    return product_step(rows, model.ffn_width, model.width, weight, "layers.0.ffn.down")


def one_pass(rows: int, *, context: int = 4096, head_rows: int = 1) -> Workload:
    """Returns one pass of an autoregressive model, on the software of `whole_graphs`.

    Graphs of the vendor's tools have a static context: all of `context` is computed, whatever the
    length of the text.
    """
    forward = Forward(rows, context - rows, head_rows)
    return Workload((forward,), head_rows, context - head_rows, "one pass")


def whole_graphs(kernels: str = "vendor") -> System:
    """Returns software that runs a whole model on the NPU with all weights mapped."""
    return System(kernels=kernels, scores_on="npu", runtime="wide")


def table2_seconds(figures: Mapping[str, Any], phone: ForwardTimer) -> list[float]:
    return [phone.step(Forward(n, 0, n)).seconds for n in figures["table2_step_ms"]["rows"]]


class PublishedTask(NamedTuple):
    """A dataset of the paper, as fitted."""

    prompt: int
    """Length of its prompts in tokens."""
    dynamics: Dynamics


class PublishedTasks:
    """The paper's figures of LLaDA-8B, and the datasets that were fitted to them.

    Args:
      graphs: lowered steps of LLaDA-8B.
      runs: number of simulated runs of a mean latency.
    """

    def __init__(self, graphs: GraphsLike, runs: int = RUNS) -> None:
        self.graphs, self.runs = graphs, runs
        self.figures = read_figures("fit")
        self.fitted = read_figures("tasks")
        self.dynamics = Dynamics(**self.fitted["dynamics"])
        """The decoding process of LLaDA-8B without a dataset's pace and answer."""
        self.spread: float = self.fitted["spread"]
        """Standard deviation of the log of llada.cpp's latencies around the fitted process."""
        self.prompt_spread: float = self.fitted["prompt_spread"]
        """Standard deviation of the prompts' lengths in tokens."""
        self.workloads = cache(self._workloads)

    @cached_property
    def published(self) -> dict[str, Any]:
        """Validation figures. They are references of results; the fit does not use them."""
        return read_figures("validation")

    def task(self, name: str) -> PublishedTask:
        """Returns a dataset by its name."""
        fitted = self.fitted["tasks"][name]
        dynamics = replace(self.dynamics, reach=fitted["reach"], answer=fitted["answer"])
        return PublishedTask(fitted["prompt"], dynamics)

    def table6(self) -> dict[str, tuple[tuple[Workload, ...], System]]:
        """Returns the runs of the paper's cumulative ablation, 128 tokens of GSM8K: by the name of
        the row, the forwards, and the software that runs them."""
        prompt = self.task("GSM8K").prompt
        whole, cached = (vanilla(prompt, 128),), (blockwise(prompt, 128),)
        decoded = partial(self.workloads, "GSM8K", 128)
        on_cpu, remap, swap = System(body="cpu"), System(runtime="remap"), System(runtime="swap")
        without_sls = Techniques(skip_logits=False, refresh=0)
        return {
            "CPU": (whole, on_cpu),
            "CPU+prefixKV": (cached, on_cpu),
            "NPU": (whole, remap),
            "NPU+prefixKV": (cached, remap),
            "+SOMR": (cached, swap),
            "+MBSD": (decoded(replace(without_sls, commit="one")), swap),
            "+STS": (decoded(without_sls), swap),
            "+SLS": (decoded(Techniques(refresh=0)), swap),
            "+SCR": (decoded(Techniques()), swap),
        }

    def _workloads(self, task: str, tokens: int, techniques: Techniques) -> tuple[Workload, ...]:
        prompt, dynamics = self.task(task)
        runs = range(self.runs)
        return tuple(decode(dynamics, techniques, prompt, tokens, seed) for seed in runs)
