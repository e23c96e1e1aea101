"""What the device experiments share: profiles and model shapes of `conf/`, and calibrated tasks."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

from omegaconf import DictConfig, OmegaConf

from experiments.harness.run import ARCHITECTURES, REPOSITORY
from experiments.harness.schema import read_config
from llada_jax.config import ModelConfig, Quant, require
from llada_jax.phone.dynamics import Decoding, Dynamics, decode
from llada_jax.phone.fit import RUNS, fit_dynamics, fit_prompt, fit_reach
from llada_jax.phone.graphs import Graphs
from llada_jax.phone.profile import Profile, load_profile
from llada_jax.phone.published_figures import read_fit_figures, read_validation_figures
from llada_jax.phone.simulate import ForwardTimer, System
from llada_jax.phone.workload import Workload

PROFILES = REPOSITORY / "llada_jax" / "phone" / "profiles"
PUBLISHED = REPOSITORY / "llada_jax" / "phone" / "published"
FITTED_SOC = "SM8750"


@cache
def phone_profile(soc: str) -> Profile:
    """Reads a profile by the name of its SoC. Raises ValueError that lists them."""
    path = PROFILES / f"{soc.upper()}.yaml"
    known = sorted(each.stem for each in PROFILES.glob("*.yaml"))
    require(soc.upper() in known, f"phone is {soc!r}; allowed: {', '.join(known)}")
    return load_profile(path)


@cache
def model_shape(name: str) -> ModelConfig:
    """A file of `llada_jax/model/architecture` by name. Raises ValueError that lists them."""
    known = sorted(each.stem for each in ARCHITECTURES.glob("*.yaml"))
    require(name in known, f"shape is {name!r}; allowed: {', '.join(known)}")
    file = ARCHITECTURES / f"{name}.yaml"
    return read_config(ModelConfig, cast(DictConfig, OmegaConf.load(file)))


_GRAPHS: list[Graphs] = []


@cache
def graphs_of(name: str, quant: Quant = "int4_block32") -> Graphs:
    """Lowered steps of a shape."""
    graphs = Graphs(model_shape(name), quant)
    _GRAPHS.append(graphs)
    return graphs


def unknown_operations() -> list[str]:
    """Operations that were priced as something else, in all steps of all shapes so far."""
    return [str(operation) for graphs in _GRAPHS for operation in graphs.unknown]


@dataclass(frozen=True)
class Task:
    """A dataset, as far as time goes: how long its prompts are, and how fast it settles."""

    name: str
    prompt: int
    dynamics: Dynamics


class Calibrated:
    """The paper's tasks, fitted on first use: prompts and dynamics (`llada_jax.phone.fit`)."""

    def __init__(self, runs: int = RUNS) -> None:
        self.runs = runs
        self.graphs = graphs_of("llada_8b")
        self.figures = read_fit_figures(PUBLISHED)
        self.task = cache(self._task)
        self.workloads = cache(self._workloads)
        self.phone = cache(self._phone)

    @cached_property
    def published(self) -> dict:
        """Validation figures: for references of results, never for the fit."""
        return read_validation_figures(PUBLISHED)

    @cached_property
    def dynamics(self) -> Dynamics:
        return fit_dynamics(self.figures)

    def _task(self, name: str) -> Task:
        prompt = fit_prompt(self.figures, name, self.graphs, phone_profile(FITTED_SOC))
        phone = self.phone(FITTED_SOC, System())
        dynamics = fit_reach(self.figures, name, prompt, self.dynamics, phone, self.runs)
        return Task(name, prompt, dynamics)

    def _phone(self, soc: str, system: System) -> ForwardTimer:
        return ForwardTimer(self.graphs, phone_profile(soc), system, canvas=256)

    def _workloads(self, task: str, tokens: int, decoding: Decoding) -> tuple[Workload, ...]:
        found = self.task(task)
        return tuple(
            decode(found.dynamics, decoding, found.prompt, tokens, seed)
            for seed in range(self.runs)
        )

    def seconds(self, phone: ForwardTimer, workloads: Iterable[Workload]) -> list[float]:
        """Latency of each."""
        return [phone.latency(workload) for workload in workloads]
