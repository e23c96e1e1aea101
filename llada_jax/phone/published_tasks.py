"""The paper's datasets, as far as time goes: fitted prompts and dynamics, on first use."""

import json
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.phone.dynamics import Decoding, Dynamics, decode
from llada_jax.phone.fit import fit_dynamics, fit_prompt, fit_reach
from llada_jax.phone.forward_timer import ForwardTimer, GraphsLike
from llada_jax.phone.profile import load_profile
from llada_jax.phone.system import System
from llada_jax.phone.workload import Workload

PUBLISHED = Path(__file__).parent / "published"
"""`fit.json`: figures that the calibration may know. `validation.json`: others, to judge it by."""
RUNS = 24
"""Decodings that a mean latency is taken over."""
FITTED_SOC = "SM8750"
CANVAS = 256


class PublishedTask(NamedTuple):
    """A dataset of the paper: how long its prompts are, and how fast it settles."""

    prompt: int
    dynamics: Dynamics


class PublishedTasks:
    """Fits the paper's datasets to the figures of `fit.json` (`llada_jax.phone.fit`).

    Args:
      graphs: lowered steps of LLaDA-8B, which the figures are of.
      runs: decodings that a mean latency is taken over.
      folder: where `fit.json` and `validation.json` lie.
    """

    def __init__(self, graphs: GraphsLike, runs: int = RUNS, folder: Path = PUBLISHED) -> None:
        self.graphs, self.runs, self._folder = graphs, runs, folder
        self.task = cache(self._task)
        self.workloads = cache(self._workloads)
        self.phone = cache(self._phone)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Figures that the fit may know."""
        return json.loads((self._folder / "fit.json").read_text(encoding="utf-8"))

    @cached_property
    def published(self) -> dict[str, Any]:
        """Validation figures: for references of results, never for the fit."""
        return json.loads((self._folder / "validation.json").read_text(encoding="utf-8"))

    @cached_property
    def dynamics(self) -> Dynamics:
        """The process of LLaDA-8B, whatever the dataset."""
        return fit_dynamics(self.figures)

    def _task(self, name: str) -> PublishedTask:
        prompt = fit_prompt(self.figures, name, self.graphs, load_profile(FITTED_SOC))
        phone = self.phone(FITTED_SOC, System())
        dynamics = fit_reach(self.figures, name, prompt, self.dynamics, phone, self.runs)
        return PublishedTask(prompt, dynamics)

    def _phone(self, soc: str, system: System) -> ForwardTimer:
        return ForwardTimer(self.graphs, load_profile(soc), system, CANVAS)

    def _workloads(self, task: str, tokens: int, decoding: Decoding) -> tuple[Workload, ...]:
        found = self.task(task)
        return tuple(
            decode(found.dynamics, decoding, found.prompt, tokens, seed)
            for seed in range(self.runs)
        )

    def seconds(self, soc: str, system: System, workloads: Iterable[Workload]) -> list[float]:
        """Returns the latency of each run on a phone."""
        return [*map(self.phone(soc, system).latency, workloads)]
