"""Calibration: the few numbers of a profile that are fitted, each to figures named here.

It is handed the content of `fit.json` (`PublishedTasks.figures`) and cannot see the other file.
Every fitted number is written down in `profiles/`; a test holds that this module still gives it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

from llada_jax.phones.cost import price_on_cpu, price_on_npu
from llada_jax.phones.memory import WeightTransfers, buffers_mib, resident_mib, weights_mib
from llada_jax.phones.profile import Profile
from llada_jax.phones.published_tasks import ffn_down, one_pass, table2_seconds
from llada_jax.phones.simulate import ForwardTimer, GraphsLike
from llada_jax.phones.system import System
from llada_jax.swap.address_space import MIB

Figures = Mapping[str, Any]


def fitted(
    profile: Profile, start: Mapping[str, float], misfit: Callable[[Profile], np.ndarray]
) -> dict[str, float]:
    """Finds positive numbers of a profile, by their paths: those of the least squares."""

    def values(logs: np.ndarray) -> dict[str, float]:
        return dict(zip(start, np.exp(logs).tolist(), strict=True))

    def residuals(logs: np.ndarray) -> np.ndarray:
        return misfit(profile.with_values(values(logs)))

    return values(optimize.least_squares(residuals, np.log([*start.values()]), xtol=1e-10).x)


def fit_cpu(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `cpu.plain`: few rows on Figure 3b, the rest on Table 2 and Figure 3a together."""
    numbers = graphs.model.width * graphs.model.ffn_width
    groups = figures["fig3b_ffn_down_32_rows_ms"]["cpu"]
    gemv = {"cpu.plain.gemv_gweights": numbers * 32 / (float(np.mean(groups)) * 1e-3) / 1e9}
    table, single = figures["table2_step_ms"], figures["fig3a_ffn_down_ms"]

    def misfit(changed: Profile) -> np.ndarray:
        steps = table2_seconds(figures, ForwardTimer(graphs, changed, System(body="cpu")))
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
        phone = ForwardTimer(graphs, changed, System(), transfers=WeightTransfers())
        return _relative(table2_seconds(figures, phone), figures["table2_step_ms"]["npu"])

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


def fit_vendor(
    figures: Figures, graphs_of: Callable[[str], GraphsLike], profiles: Sequence[Profile]
) -> dict[str, dict[str, float]]:
    """Fits `npu.vendor` of two phones to Genie's 3B on both and its 8B on the first, in one go.

    Bandwidth is shared, as their memory is of one speed; softmax, and what a layer costs whatever
    its rows, are each phone's own. So five numbers stand for six figures.
    """
    cells = [("llama32_3b", profile, "genie_llama_3b") for profile in profiles]
    cells.append(("llama3_8b", profiles[0], "genie_llama_8b"))
    paths = [f"npu.vendor.{name}" for name in ("score_ns", "layer_overhead_us")]
    socs = [profile.soc for profile in profiles]

    def values(logs: np.ndarray) -> dict[str, dict[str, float]]:
        gbps, *own = np.exp(logs).tolist()
        pairs = zip(socs, own[::2], own[1::2], strict=True)
        shared = {"npu.vendor.dma_gbps": gbps}
        return {soc: shared | dict(zip(paths, pair, strict=True)) for soc, *pair in pairs}

    def misfit(logs: np.ndarray) -> np.ndarray:
        changed = values(logs)
        found, wanted = [], []
        for shape, profile, name in cells:
            cell, moved = figures[name][profile.soc], profile.with_values(changed[profile.soc])
            found += [one_pass(graphs_of(shape), moved, rows) for rows in (1, 128)]
            wanted += [1e3 / np.mean(cell["tokens_per_second"]), np.mean(cell["rows128_ms"])]
        return _relative(found, wanted)

    start = np.log([50.0, *(0.1, 100.0) * len(profiles)])
    return values(optimize.least_squares(misfit, start, xtol=1e-10).x)


def _relative(modelled: Sequence[float], published_ms: Sequence[float]) -> np.ndarray:
    return np.asarray(modelled) * 1e3 / np.asarray(published_ms) - 1


def _joined(*figures: np.ndarray) -> np.ndarray:
    """Residuals of several figures; each figure counts the same, however many points it has."""
    return np.concatenate([each / np.sqrt(len(each)) for each in figures])
