"""Calibration of what a phone is asked to run: how decoding goes, tasks, and sessions.

As `tests.phones.fitting.fit`, it is handed the content of `fit.json` and cannot see the other
file. What it gives is written down in `published/tasks.json` and in profiles; tests hold that.
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
    """Fits the process of LLaDA-8B to Figures 5a, 5b, 5c and 8."""
    first, tail = figures["fig8_first_commit_step"], figures["fig5a_tail_steps_pct"]
    places = np.array(first["position"]) - 1
    masks = np.array(tail["masks_left"]) - 1
    thresholds = figures["fig5b"]["commit_threshold"]

    def at(threshold: float, name: str) -> float:
        return float(np.interp(threshold, thresholds, figures["fig5b"][name]))

    def misfit(candidate: tuple[float, float]) -> float:
        found = statistics(Dynamics(reach=candidate[0], decay=candidate[1]), runs=200)
        by_position = np.mean((found.first_commit[places] / np.array(first["values"]) - 1) ** 2)
        return float(
            by_position + np.mean((found.tail_share[masks] - np.array(tail["pct"]) / 100) ** 2)
        )

    grid = [(r / 100, d / 100) for r in range(40, 81, 5) for d in range(86, 97)]
    reach, decay = min(grid, key=misfit)
    higher = STABLE - VISIBLE
    tokens = [at(each, "tokens_per_step") for each in (VISIBLE, STABLE)]
    return Dynamics(
        reach=reach,
        decay=decay,
        skipped=float(np.mean(figures["fig5c_skippable_decision_pct"]["cases"])) / 100,
        strictness=math.log(tokens[0] / tokens[1]) / higher,
        wavering=-math.log(1 - at(VISIBLE, "pct_conf_below_0.9") / 100) / higher,
        tokens_per_forward=BLOCK / statistics(Dynamics(reach=reach, decay=decay)).forwards,
    )


def fit_prompt(figures: Figures, task: str, graphs: GraphsLike, profile: Profile) -> int:
    """Finds the unpublished length of a task's prompts by its two fitted CPU cells of Figure 11."""
    cells = figures["fig11_s"][profile.soc][task]
    wanted = {int(n): cell["cpu"] / int(n) for n, cell in cells.items() if "cpu" in cell}
    phone = ForwardTimer(graphs, profile, System(body="cpu"))

    def misfit(prompt: int) -> float:
        found = {n: phone.step(Forward(prompt + n, 0, prompt + n)).seconds for n in wanted}
        return sum(math.log(found[n] / wanted[n]) ** 2 for n in wanted)

    return min(range(8, 256, 2), key=misfit)


def fit_answer(
    figures: Figures, task: str, prompt: int, dynamics: Dynamics, phone: ForwardTimer, runs: int
) -> tuple[Dynamics, list[float]]:
    """Fits how fast a task settles, and where its answers end, to its three llada.cpp cells.

    Returns what is left: the logarithms of published over modelled.
    """
    cells = figures["fig11_s"][phone.profile.soc][task]
    wanted = {int(tokens): cell["llada_cpp"] for tokens, cell in cells.items()}

    def left(tried: Dynamics) -> list[float]:
        return [
            math.log(s / mean_latency(tried, prompt, n, phone, runs)) for n, s in wanted.items()
        ]

    def misfit(reach: float, answer: int | None) -> float:
        return float(np.sum(np.square(left(replace(dynamics, reach=reach, answer=answer)))))

    found = {}
    for answer in (*range(16, TASK_TOKENS, 16), None):
        best: Any = optimize.minimize_scalar(misfit, (0.1, 0.9), (0.05, 1.0), answer, "bounded",
                                        options={"xatol": 0.005})  # fmt: skip
        found[replace(dynamics, reach=float(best.x), answer=answer)] = best.fun
    chosen = min(found, key=lambda each: found[each])
    return chosen, left(chosen)


def fit_rates(
    figures: Figures,
    graphs: GraphsLike,
    profile: Profile,
    like: Profile,
    prompts: Mapping[str, int],
) -> dict[str, float]:
    """Fits one factor between two phones' NPU rates to the 128-token NPU cells of Figure 11."""
    paths = [f"npu.llada_cpp.{name}" for name in ("dequant_gweights", "fast_dequant_gweights")]
    overhead = "npu.llada_cpp.layer_overhead_us"

    def values(factor: float) -> dict[str, float]:
        rates = {path: like.numbers[path].value * factor for path in paths}
        return rates | {overhead: like.numbers[overhead].value / factor}

    def misfit(factor: float) -> float:
        logs = session_logs(figures, graphs, profile.with_values(values(factor)), "npu", prompts)
        return float(np.mean(logs)) ** 2

    found: Any = optimize.minimize_scalar(misfit, (0.5, 1.5))
    return values(float(found.x))


def fit_spread(
    figures: Figures, graphs: GraphsLike, profile: Profile, prompts: Mapping[str, int]
) -> tuple[float, float]:
    """Fits how much runs of the CPU vary, by what prompts leave of the cells they are fitted to.

    Returns the standard deviation of logarithms, and the tokens that prompts are known to by it.
    """
    phone = ForwardTimer(graphs, profile, System(body="cpu"))
    left, rows = [], []
    for task, cells in figures["fig11_s"][profile.soc].items():
        for tokens, cell in cells.items():
            if "cpu" in cell:
                workload = vanilla(prompts[task], int(tokens))
                left.append(math.log(cell["cpu"] / phone.latency(workload)))
                rows.append(workload.canvas)
    spread = math.sqrt(sum(each**2 for each in left) / (len(left) - len(prompts)))
    information = sum(1 / each**2 for each in rows) / len(prompts)
    return spread, spread / math.sqrt(information)


def session_logs(
    figures: Figures,
    graphs: GraphsLike,
    profile: Profile,
    column: Processor,
    prompts: Mapping[str, int],
) -> list[float]:
    """Returns ln(published over modelled) of a processor's 128-token baselines, by task."""
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
    """Fits how slow a phone's sessions are, and how they spread, to the same cells."""
    found = {}
    for column in get_args(Processor):
        logs = session_logs(figures, graphs, profile, column, prompts)
        found[f"session.{column}_slowdown"] = math.exp(np.mean(logs))
        found[f"session.{column}_spread"] = float(np.std(logs, ddof=1))
    return found


def mean_latency(
    dynamics: Dynamics, prompt: int, tokens: int, phone: ForwardTimer, runs: int
) -> float:
    """Returns mean seconds of llada.cpp's decoding, over so many runs of the process."""
    found = (decode(dynamics, Techniques(), prompt, tokens, seed) for seed in range(runs))
    return float(np.mean([phone.latency(workload) for workload in found]))
