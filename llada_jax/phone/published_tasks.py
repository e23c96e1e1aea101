"""The paper's datasets, as far as time goes: their prompts and dynamics, as they were fitted."""

import json
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.phone.dynamics import Decoding, Dynamics, decode
from llada_jax.phone.forward_timer import GraphsLike
from llada_jax.phone.workload import Workload

PUBLISHED = Path(__file__).parent / "published"
"""`fit.json`: figures that the calibration may know. `validation.json`: others, to judge it by.
`tasks.json`: what tests/phone/fitting makes of the first; a test holds that it still does."""
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


class PublishedTask(NamedTuple):
    """A dataset of the paper: how long its prompts are, and how fast it settles."""

    prompt: int
    dynamics: Dynamics


class PublishedTasks:
    """Reads the paper's figures and the datasets that were fitted to some of them.

    Args:
      graphs: lowered steps of LLaDA-8B, which the figures are of.
      runs: decodings that a mean latency is taken over.
    """

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

    def _workloads(self, task: str, tokens: int, decoding: Decoding) -> tuple[Workload, ...]:
        prompt, dynamics = self.task(task)
        runs = range(self.runs)
        return tuple(decode(dynamics, decoding, prompt, tokens, seed) for seed in runs)
