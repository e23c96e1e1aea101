"""Fits the decoding process, the datasets and the sessions of phones to published figures.

Like `tests.phones.fitting.fit`, the functions get the content of `fit.json` as an argument. The
results are stored in `published/tasks.json` and in the profiles, and tests compare them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
from scipy import optimize

from llada_jax.phones.dynamics import (
    BLOCK,
    STABLE,
    VISIBLE,
    Dynamics,
    Techniques,
    decode,
    statistics,
)
from llada_jax.phones.profile import Profile
from llada_jax.phones.simulate import ForwardTimer, GraphsLike
from llada_jax.phones.system import Processor, System
from llada_jax.phones.workload import Forward, vanilla
from tests.phones.fitting.fit import Figures

TASK_TOKENS = 128


def fit_dynamics(figures: Figures) -> Dynamics:
    """Fits the decoding process of LLaDA-8B to Figures 5a, 5b, 5c and 8."""
    first, tail = figures["fig8_first_commit_step"], figures["fig5a_tail_steps_pct"]
    positions = np.array(first["position"]) - 1
    masks = np.array(tail["masks_left"]) - 1
    thresholds = figures["fig5b"]["commit_threshold"]

    def at(threshold: float, name: str) -> float:
        return float(np.interp(threshold, thresholds, figures["fig5b"][name]))

    def misfit(candidate: tuple[float, float]) -> float:
        blocks = statistics(Dynamics(reach=candidate[0], decay=candidate[1]), runs=200)
        by_position = np.mean((blocks.first_commit[positions] / np.array(first["values"]) - 1) ** 2)
        return float(
            by_position + np.mean((blocks.tail_share[masks] - np.array(tail["pct"]) / 100) ** 2)
        )

    grid = [(r / 100, d / 100) for r in range(40, 81, 5) for d in range(86, 97)]
    reach, decay = min(grid, key=misfit)
    higher = STABLE - VISIBLE
    tokens = [at(threshold, "tokens_per_step") for threshold in (VISIBLE, STABLE)]
    return Dynamics(
        reach=reach,
        decay=decay,
        skipped=float(np.mean(figures["fig5c_skippable_decision_pct"]["cases"])) / 100,
        strictness=math.log(tokens[0] / tokens[1]) / higher,
        wavering=-math.log(1 - at(VISIBLE, "pct_conf_below_0.9") / 100) / higher,
        tokens_per_forward=BLOCK / statistics(Dynamics(reach=reach, decay=decay)).forwards,
    )


def fit_prompt(figures: Figures, task: str, graphs: GraphsLike, profile: Profile) -> int:
    """Fits the unpublished length of a task's prompts to its two CPU cells of Figure 11."""
    cells = figures["fig11_s"][profile.soc][task]
    published = {int(n): cell["cpu"] / int(n) for n, cell in cells.items() if "cpu" in cell}
    phone = ForwardTimer(graphs, profile, System(body="cpu"))

    def misfit(prompt: int) -> float:
        modelled = {n: phone.step(Forward(prompt + n, 0, prompt + n)).seconds for n in published}
        return sum(math.log(modelled[n] / published[n]) ** 2 for n in published)

    return min(range(8, 256, 2), key=misfit)


def fit_answer(
    figures: Figures, task: str, prompt: int, dynamics: Dynamics, phone: ForwardTimer, runs: int
) -> tuple[Dynamics, list[float]]:
    """Fits a task's `reach` and `answer` to its three llada.cpp cells of Figure 11.

    Returns them in the dynamics, and the residuals: logarithms of published over modelled times.
    """
    cells = figures["fig11_s"][phone.profile.soc][task]
    published = {int(tokens): cell["llada_cpp"] for tokens, cell in cells.items()}

    def residuals(candidate: Dynamics) -> list[float]:
        return [
            math.log(s / mean_latency(candidate, prompt, n, phone, runs))
            for n, s in published.items()
        ]

    def misfit(reach: float, answer: int | None) -> float:
        return float(np.sum(np.square(residuals(replace(dynamics, reach=reach, answer=answer)))))

    misfits = {}
    for answer in (*range(16, TASK_TOKENS, 16), None):
        best: Any = optimize.minimize_scalar(misfit, (0.1, 0.9), (0.05, 1.0), answer, "bounded",
                                        options={"xatol": 0.005})  # fmt: skip
        misfits[replace(dynamics, reach=float(best.x), answer=answer)] = best.fun
    best_dynamics = min(misfits, key=lambda candidate: misfits[candidate])
    return best_dynamics, residuals(best_dynamics)


def fit_rates(
    figures: Figures,
    graphs: GraphsLike,
    profile: Profile,
    other: Profile,
    prompts: Mapping[str, int],
) -> dict[str, float]:
    """Fits the factor between the NPU rates of two phones to the 128-token NPU cells of Figure 11.

    Returns the rates of `profile`, which are the rates of `other` times the factor.
    """
    paths = [f"npu.llada_cpp.{name}" for name in ("dequant_gweights", "fast_dequant_gweights")]
    overhead = "npu.llada_cpp.layer_overhead_us"

    def values(factor: float) -> dict[str, float]:
        rates = {path: other.numbers[path].value * factor for path in paths}
        return rates | {overhead: other.numbers[overhead].value / factor}

    def misfit(factor: float) -> float:
        logs = session_logs(figures, graphs, profile.with_values(values(factor)), "npu", prompts)
        return float(np.mean(logs)) ** 2

    best: Any = optimize.minimize_scalar(misfit, (0.5, 1.5))
    return values(float(best.x))


def fit_spread(
    figures: Figures, graphs: GraphsLike, profile: Profile, prompts: Mapping[str, int]
) -> tuple[float, float]:
    """Estimates the spread of CPU runs from the residuals of the fitted prompts.

    Returns the standard deviation of the logarithm, and the resulting standard deviation of the
    prompts' lengths in tokens.
    """
    phone = ForwardTimer(graphs, profile, System(body="cpu"))
    residuals, rows = [], []
    for task, cells in figures["fig11_s"][profile.soc].items():
        for tokens, cell in cells.items():
            if "cpu" in cell:
                workload = vanilla(prompts[task], int(tokens))
                residuals.append(math.log(cell["cpu"] / phone.latency(workload)))
                rows.append(workload.canvas)
    spread = math.sqrt(sum(r**2 for r in residuals) / (len(residuals) - len(prompts)))
    information = sum(1 / n**2 for n in rows) / len(prompts)
    return spread, spread / math.sqrt(information)


def session_logs(
    figures: Figures,
    graphs: GraphsLike,
    profile: Profile,
    column: Processor,
    prompts: Mapping[str, int],
) -> list[float]:
    """Returns ln(published / modelled) of a processor's 128-token baselines, by task."""
    system = System(body="cpu") if column == "cpu" else System(runtime="remap")
    phone = ForwardTimer(graphs, profile, system, TASK_TOKENS + max(prompts.values()))
    cells = figures["fig11_s"][profile.soc]
    return [
        math.log(cells[task][str(TASK_TOKENS)][column]
                 / phone.latency(vanilla(prompt, TASK_TOKENS)))
        for task, prompt in prompts.items()
    ]  # fmt: skip


def fit_sessions(
    figures: Figures, graphs: GraphsLike, profile: Profile, prompts: Mapping[str, int]
) -> dict[str, float]:
    """Fits the slowdown of a phone's sessions, and its spread, to the same cells."""
    numbers = {}
    for column in get_args(Processor):
        logs = session_logs(figures, graphs, profile, column, prompts)
        numbers[f"session.{column}_slowdown"] = math.exp(np.mean(logs))
        numbers[f"session.{column}_spread"] = float(np.std(logs, ddof=1))
    return numbers


def mean_latency(
    dynamics: Dynamics, prompt: int, tokens: int, phone: ForwardTimer, runs: int
) -> float:
    """Returns the mean seconds of llada.cpp's decoding over `runs` runs of the process."""
    workloads = (decode(dynamics, Techniques(), prompt, tokens, seed) for seed in range(runs))
    return float(np.mean([phone.latency(workload) for workload in workloads]))
