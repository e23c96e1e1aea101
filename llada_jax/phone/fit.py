"""Calibration: the few numbers of a profile that are fitted, each to figures named here.

It is handed the content of `fit.json` (`PublishedTasks.figures`) and cannot see the other file.
Every fitted number is written down in `profiles/`; a test holds that this module still gives it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize

from llada_jax.config import require
from llada_jax.lowered import Lowered, LoweredWeight, product_with
from llada_jax.phone.cost import price_on_cpu, price_on_npu
from llada_jax.phone.dynamics import Decoding, Dynamics, decode, statistics
from llada_jax.phone.forward_timer import ForwardTimer, GraphsLike
from llada_jax.phone.memory import buffers_mib, resident_mib, weights_mib
from llada_jax.phone.profile import Profile
from llada_jax.phone.system import System
from llada_jax.phone.transfers import WeightTransfers
from llada_jax.phone.workload import Forward
from llada_jax.swap.address_budget import MIB

Figures = Mapping[str, Any]
TASK_TOKENS = 128
ALL_MAPPED = WeightTransfers()
"""Of Table 2's step, which is taken to hold no mapping event, as no session can have it."""


def fitted(
    profile: Profile, start: Mapping[str, float], misfit: Callable[[Profile], np.ndarray]
) -> dict[str, float]:
    """Finds positive numbers of a profile, by their paths: those of the least squares."""

    def values(logs: np.ndarray) -> dict[str, float]:
        return dict(zip(start, np.exp(logs).tolist(), strict=True))

    def residuals(logs: np.ndarray) -> np.ndarray:
        return misfit(profile.with_values(values(logs)))

    return values(optimize.least_squares(residuals, np.log([*start.values()]), xtol=1e-10).x)


def product_step(rows: int, inputs: int, outputs: int, weight: LoweredWeight, name: str) -> Lowered:
    """Returns a step that is one product with weights, as it would be lowered."""
    operation = product_with(name, rows, inputs, outputs)
    return Lowered(name, b"", {name: weight}, {}, {}, (operation,))


def ffn_down(model: Any, rows: int) -> Lowered:
    """Returns the product of Figure 3, in Q4_0."""
    shape = (model.width, model.ffn_width)
    weight = LoweredWeight(shape, 4, 32)
    return product_step(rows, model.ffn_width, model.width, weight, "layers.0.ffn.down")


def fit_cpu(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `cpu.plain`: few rows on Figure 3b, the rest on Table 2 and Figure 3a together."""
    numbers = graphs.model.width * graphs.model.ffn_width
    groups = figures["fig3b_ffn_down_32_rows_ms"]["cpu"]
    gemv = {"cpu.plain.gemv_gweights": numbers * 32 / (float(np.mean(groups)) * 1e-3) / 1e9}
    table, single = figures["table2_step_ms"], figures["fig3a_ffn_down_ms"]

    def misfit(changed: Profile) -> np.ndarray:
        steps = _table2(figures, ForwardTimer(graphs, changed, System(body="cpu")))
        downs = [
            price_on_cpu(ffn_down(graphs.model, n), changed.cpu["plain"], profile.memory).seconds
            for n in single["rows"]
        ]
        return _joined(_relative(steps, table["cpu"]), _relative(downs, single["cpu"]))

    start = {"cpu.plain.gemm_tops": 0.13, "cpu.plain.unpack_gweights": 10.0}
    return gemv | fitted(profile.with_values(gemv), start, misfit)


def fit_npu(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `npu.llada_cpp`: FFN down's dequantization on Figures 3a and 3b, the rest on Table 2."""
    single, groups = figures["fig3a_ffn_down_ms"], figures["fig3b_ffn_down_32_rows_ms"]
    prefix = "npu.llada_cpp"

    def of_down(changed: Profile) -> np.ndarray:
        def down(rows: int) -> float:
            kernels = changed.npu["llada_cpp"]
            return price_on_npu(ffn_down(graphs.model, rows), kernels, changed.memory).seconds

        singles = [down(n) for n in single["rows"]]
        # A group of one row ran as a tile too, not in the kernel for single rows.
        grouped = [32 / n * down(max(n, 2)) for n in groups["group"]]
        return _joined(_relative(singles, single["npu"]), _relative(grouped, groups["npu"]))

    def of_steps(changed: Profile) -> np.ndarray:
        phone = ForwardTimer(graphs, changed, System(), transfers=ALL_MAPPED)
        return _relative(_table2(figures, phone), figures["table2_step_ms"]["npu"])

    fast = fitted(profile, {f"{prefix}.fast_dequant_gweights": 45.0}, of_down)
    start = {f"{prefix}.dequant_gweights": 22.0, f"{prefix}.layer_overhead_us": 4000.0}
    return fast | fitted(profile.with_values(fast), start, of_steps)


def fit_mapping(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `mapping`: an event on Figure 5d's spikes, copies on the two ends of Figure 13c."""
    spikes, ends = figures["fig5d_ffn_op_ms"], figures["fig13c_ends_ms"]
    weights = weights_mib(graphs.model, head=False)
    buffers = buffers_mib(weights, profile.memory.buffer_mib)
    small, large = (
        (weights - resident_mib(buffers, budget)) * MIB for budget in ends["resident_mib"]
    )
    short, long = (ms * 1e-3 for ms in ends["ms"])
    rate = (large - small) / (long - short)
    return {
        "mapping.event_ms": float(np.mean(spikes["spikes"])) - spikes["base"],
        "mapping.copy_gbps": rate / 1e9,
        "mapping.copy_ms": max(0.0, (short - small / rate) * 1e3),
    }


def fit_vendor(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `npu.vendor`: bandwidth and softmax on Genie's Llama-3.2-3B, one row and 128 rows."""
    genie = figures["genie_llama_3b"]
    known = ", ".join(name for name in genie if name.startswith("SM"))
    require(profile.soc in genie, f"soc is {profile.soc!r}; allowed: {known}")
    cell = genie[profile.soc]
    wanted = [1e3 / cell["tokens_per_second"], cell["rows128_ms"]]

    def misfit(changed: Profile) -> np.ndarray:
        return _relative([vendor_pass(graphs, changed, rows) for rows in (1, 128)], wanted)

    return fitted(profile, {"npu.vendor.dma_gbps": 50.0, "npu.vendor.score_ns": 0.1}, misfit)


def vendor_pass(graphs: GraphsLike, profile: Profile, rows: int, context: int = 4096) -> float:
    """Returns seconds of a Genie pass: a static context, all computed, and the head of one row."""
    kernels = profile.npu["vendor"]
    layer = price_on_npu(graphs.layer(rows, context - rows), kernels, profile.memory)
    head = price_on_npu(graphs.head(1), kernels, profile.memory)
    call = kernels.step_overhead_us * 1e-6
    return layer.seconds * graphs.model.n_layers + head.seconds * graphs.head_chunks + call


def fit_dynamics(figures: Figures) -> Dynamics:
    """Fits the process of LLaDA-8B to Figures 5a, 5b, 5c and 8."""
    first = np.array(figures["fig8_first_commit_step"]["values"])
    tail = np.array(figures["fig5a_tail_steps_pct"]["pct"]) / 100
    thresholds = figures["fig5b"]["commit_threshold"]

    def at(threshold: float, name: str) -> float:
        return float(np.interp(threshold, thresholds, figures["fig5b"][name]))

    def misfit(candidate: tuple[float, float]) -> float:
        found = statistics(Dynamics(reach=candidate[0], decay=candidate[1]), runs=200)
        by_position = np.mean((found.first_commit / first - 1) ** 2)
        return float(by_position + np.mean((found.tail_share - tail) ** 2))

    grid = [(r / 100, d / 100) for r in range(40, 81, 5) for d in range(86, 97)]
    reach, decay = min(grid, key=misfit)
    forwards = statistics(Dynamics(reach=reach, decay=decay)).forwards
    tokens_per_step = "tokens_per_step"
    return Dynamics(
        reach=reach,
        decay=decay,
        skipped=float(np.mean(figures["fig5c_skippable_decision_pct"]["cases"])) / 100,
        strict=at(0.9, tokens_per_step) / at(0.7, tokens_per_step),
        unstable=at(0.7, "pct_conf_below_0.9") / 100,
        tokens_per_forward=len(first) / forwards,
    )


def fit_prompt(figures: Figures, task: str, graphs: GraphsLike, profile: Profile) -> int:
    """Finds the unpublished length of a task's prompts by its 128-token CPU cell of Figure 11."""
    wanted = figures["fig11_cells_SM8750_128"][task]["cpu"] / TASK_TOKENS
    phone = ForwardTimer(graphs, profile, System(body="cpu"))

    def seconds(prompt: int) -> float:
        rows = prompt + TASK_TOKENS
        return phone.step(Forward(rows, 0, rows)).seconds

    high = bisect_left(range(512), wanted, lo=2, key=seconds)
    return min((high - 1, high), key=lambda prompt: abs(seconds(prompt) - wanted))


def fit_reach(
    figures: Figures, task: str, prompt: int, dynamics: Dynamics, phone: ForwardTimer, runs: int
) -> Dynamics:
    """Fits a task's own forwards per block to its 128-token llada.cpp cell of Figure 11."""
    wanted = figures["fig11_cells_SM8750_128"][task]["llada_cpp"]
    low, high = 0.02, 1.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        tried = replace(dynamics, reach=middle)
        found = mean_latency(tried, prompt, phone, runs)
        low, high = (middle, high) if found > wanted else (low, middle)
    return replace(dynamics, reach=(low * high) ** 0.5)


def mean_latency(dynamics: Dynamics, prompt: int, phone: ForwardTimer, runs: int) -> float:
    """Returns mean seconds of llada.cpp's decoding, over so many runs of the process."""
    found = (decode(dynamics, Decoding(), prompt, TASK_TOKENS, seed) for seed in range(runs))
    return float(np.mean([phone.latency(workload) for workload in found]))


def residuals_of(
    figures: Figures, graphs: GraphsLike, profile: Profile
) -> Iterator[tuple[str, float, float]]:
    """Yields the fitted points of Table 2: name, published and modelled milliseconds."""
    table = figures["table2_step_ms"]
    cpu = _table2(figures, ForwardTimer(graphs, profile, System(body="cpu")))
    npu = _table2(figures, ForwardTimer(graphs, profile, System(), transfers=ALL_MAPPED))
    for index, rows in enumerate(table["rows"]):
        for name, seconds in (("cpu", cpu), ("npu", npu)):
            yield f"table2/{name}/{rows}", table[name][index], seconds[index] * 1e3


def _table2(figures: Figures, phone: ForwardTimer) -> list[float]:
    return [phone.step(Forward(n, 0, n)).seconds for n in figures["table2_step_ms"]["rows"]]


def _relative(modelled: Sequence[float], published_ms: Sequence[float]) -> np.ndarray:
    return np.asarray(modelled) * 1e3 / np.asarray(published_ms) - 1


def _joined(*figures: np.ndarray) -> np.ndarray:
    """Residuals of several figures; each figure counts the same, however many points it has."""
    return np.concatenate([each / np.sqrt(len(each)) for each in figures])
