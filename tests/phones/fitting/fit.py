"""Fits the numbers of a profile that no source contains to published figures.

The functions get the content of `fit.json` (`PublishedTasks.figures`) as an argument, so that they
cannot use a validation figure. The fitted numbers are stored in `profiles/`, and tests compare them
with a new fit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

from llada_jax.phones.cost import price_on_cpu, price_on_npu
from llada_jax.phones.memory import WeightTransfers, buffers_mib, resident_mib, weights_mib
from llada_jax.phones.profile import Profile
from llada_jax.phones.published_tasks import ffn_down, one_pass, table2_seconds, whole_graphs
from llada_jax.phones.simulate import ForwardTimer, GraphsLike
from llada_jax.phones.system import System
from llada_jax.swap.address_space import MIB

Figures = Mapping[str, Any]


def fit_numbers(
    profile: Profile, start: Mapping[str, float], misfit: Callable[[Profile], np.ndarray]
) -> dict[str, float]:
    """Returns the numbers of a profile, by path, with the least sum of squared misfits.

    Args:
      start: paths of the numbers with their initial values.
    """

    def values(logs: np.ndarray) -> dict[str, float]:
        return dict(zip(start, np.exp(logs).tolist(), strict=True))

    def residuals(logs: np.ndarray) -> np.ndarray:
        return misfit(profile.with_values(values(logs)))

    return values(optimize.least_squares(residuals, np.log([*start.values()]), xtol=1e-10).x)


def fit_cpu(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `cpu.plain`: its matrix-vector rate to Figure 3b, the rest to Table 2 and Figure 3a."""
    n_weights = graphs.model.width * graphs.model.ffn_width
    groups = figures["fig3b_ffn_down_32_rows_ms"]["cpu"]
    gemv = {"cpu.plain.gemv_gweights": n_weights * 32 / (float(np.mean(groups)) * 1e-3) / 1e9}
    table, single = figures["table2_step_ms"], figures["fig3a_ffn_down_ms"]

    def misfit(changed: Profile) -> np.ndarray:
        steps = table2_seconds(figures, ForwardTimer(graphs, changed, System(body="cpu")))
        downs = [
            price_on_cpu(ffn_down(graphs.model, n), changed.cpu["plain"], profile.memory).seconds
            for n in single["rows"]
        ]
        return _concatenate(_relative(steps, table["cpu"]), _relative(downs, single["cpu"]))

    start = {"cpu.plain.gemm_tops": 0.13, "cpu.plain.unpack_gweights": 10.0}
    return gemv | fit_numbers(profile.with_values(gemv), start, misfit)


def fit_npu(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `npu.llada_cpp`: the fast dequantization to Figures 3a and 3b, the rest to Table 2."""
    single, groups = figures["fig3a_ffn_down_ms"], figures["fig3b_ffn_down_32_rows_ms"]
    prefix = "npu.llada_cpp"

    def down_misfit(changed: Profile) -> np.ndarray:
        def down(rows: int) -> float:
            kernels = changed.npu["llada_cpp"]
            return price_on_npu(ffn_down(graphs.model, rows), kernels, changed.memory).seconds

        singles = [down(n) for n in single["rows"]]
        # In the paper, a group of one row ran as a padded tile, not in the matrix-vector kernel.
        grouped = [32 / n * down(max(n, 2)) for n in groups["group"]]
        return _concatenate(_relative(singles, single["npu"]), _relative(grouped, groups["npu"]))

    def step_misfit(changed: Profile) -> np.ndarray:
        phone = ForwardTimer(graphs, changed, System(), transfers=WeightTransfers())
        return _relative(table2_seconds(figures, phone), figures["table2_step_ms"]["npu"])

    fast = fit_numbers(profile, {f"{prefix}.fast_dequant_gweights": 45.0}, down_misfit)
    start = {f"{prefix}.dequant_gweights": 22.0, f"{prefix}.layer_overhead_us": 4000.0}
    return fast | fit_numbers(profile.with_values(fast), start, step_misfit)


def fit_mapping(figures: Figures, graphs: GraphsLike, profile: Profile) -> dict[str, float]:
    """Fits `mapping`: an event to the spikes of Figure 5d, copies to the two ends of Figure 13c."""
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
    """Fits `npu.vendor` of two phones together: Genie's 3B on both, and its 8B on the first.

    The phones share the bandwidth, since their memory has the same speed. Each phone has its own
    time per score and per layer. So five numbers are fitted to six figures.
    """
    cells = [("llama32_3b", profile, "genie_llama_3b") for profile in profiles]
    cells.append(("llama3_8b", profiles[0], "genie_llama_8b"))
    paths = [f"npu.vendor.{name}" for name in ("score_ns", "layer_overhead_us")]
    socs = [profile.soc for profile in profiles]

    def values(logs: np.ndarray) -> dict[str, dict[str, float]]:
        gbps, *per_phone = np.exp(logs).tolist()
        pairs = zip(socs, per_phone[::2], per_phone[1::2], strict=True)
        shared = {"npu.vendor.dma_gbps": gbps}
        return {soc: shared | dict(zip(paths, pair, strict=True)) for soc, *pair in pairs}

    def misfit(logs: np.ndarray) -> np.ndarray:
        changed = values(logs)
        modelled, published_ms = [], []
        for shape, profile, name in cells:
            cell = figures[name][profile.soc]
            candidate = profile.with_values(changed[profile.soc])
            timer = ForwardTimer(graphs_of(shape), candidate, whole_graphs())
            modelled += [timer.latency(one_pass(rows)) for rows in (1, 128)]
            published_ms += [1e3 / np.mean(cell["tokens_per_second"]), np.mean(cell["rows128_ms"])]
        return _relative(modelled, published_ms)

    start = np.log([50.0, *(0.1, 100.0) * len(profiles)])
    return values(optimize.least_squares(misfit, start, xtol=1e-10).x)


def _relative(modelled: Sequence[float], published_ms: Sequence[float]) -> np.ndarray:
    return np.asarray(modelled) * 1e3 / np.asarray(published_ms) - 1


def _concatenate(*figures: np.ndarray) -> np.ndarray:
    """Concatenates the residuals of several figures with equal weights, whatever their points."""
    return np.concatenate([residuals / np.sqrt(len(residuals)) for residuals in figures])
