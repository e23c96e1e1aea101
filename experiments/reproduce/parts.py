"""Measurements of single parts of a phone: forward passes, a layer, the memory.

The passes are Genie's two models, native kernels from a ledger of three other models, and AI Hub's
models, which were held out until the device model was finished.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.harness.results import ResultRow
from experiments.reproduce.chapter import TYPICAL, Chapter, band, chapter, modelled
from llada_jax.config import Quant
from llada_jax.lowered import LoweredWeight, product_step
from llada_jax.phones.cost import price_on_npu
from llada_jax.phones.graphs import Shape, graphs_of
from llada_jax.phones.phone import Phone
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import PublishedTasks, one_pass, read_figures, whole_graphs
from llada_jax.phones.timeline import LaneTask, run
from llada_jax.phones.uncertainty import RunTimer

LEDGER_CLASSES: Mapping[str, tuple[Quant, str]] = {
    "w16a16": ("float32", "native_fp16"),
    "w4a16": ("int4_block32", "native_fp16"),
    "w4a8": ("int4", "native_int8"),
}


def genie(world: PublishedTasks) -> Chapter:
    """Predicts Llama-3-8B in Genie on SM8850; the other rows were fitted."""
    rows = []
    for label, shape in (("3b", "llama32_3b"), ("8b", "llama3_8b")):
        name = f"genie_llama_{label}"
        fit = world.figures[name]
        for soc in ("SM8750", "SM8850"):
            fitted = soc in fit
            cell = fit[soc] if fitted else world.published[name][soc]
            wanted = {128: np.mean(cell["rows128_ms"]), 1: 1e3 / np.mean(cell["tokens_per_second"])}
            rows += [
                modelled(f"genie/{soc}/{label}/rows{count}",
                         passes(soc, shape, "int4").seconds(one_pass(count)) * 1e3, "ms",
                         reference=milliseconds, source=fit["source"], fitted=fitted)
                for count, milliseconds in wanted.items()
            ]  # fmt: skip
    return chapter("genie", rows)


def passes(
    soc: str, shape: Shape, quant: Quant, kernels: str = "vendor", *, cool: bool = False
) -> RunTimer:
    """Returns the timer of whole passes on the NPU, in a typical session or on a phone that is
    taken to be cool: then how much sessions differ is still part of the band."""
    timer = Phone(load_profile(soc), whole_graphs(kernels), quant).run_timer(shape)
    return timer.during(timer.session._replace(slowdown=1.0)) if cool else timer


def ledger3b(world: PublishedTasks) -> Chapter:
    """Predicts passes of native kernels, from a source independent of llada.cpp's figures."""
    ledger = world.published["ledger"]
    # Attention and norms of the 3B's first column are platform constants.
    known = {("llama32_3b", "w16a16"): world.figures["platform_ledger_3b_w16a16"]}
    rows = []
    for shape, prefix in (("llama32_3b", "ledger3b"), ("llama32_1b", "ledger1b"),
                          ("qwen3_1_7b", "ledger_qwen")):  # fmt: skip
        for precision, (quant, kernels) in LEDGER_CLASSES.items():
            fitted = (shape, precision) in known
            cells = known.get((shape, precision), ledger[shape].get(precision))
            timer = passes("SM8750", shape, quant, kernels)
            # Overlap, rows per pass and the price of calls were fitted to the 3B's other columns.
            rows += [
                modelled(f"{prefix}/{precision}/rows{n}",
                         1e3 * timer.seconds(one_pass(n, context=128, head_rows=n)), "ms",
                         reference=cells[f"rows{n}_ms"], source=ledger["source"], fitted=fitted,
                         kind="informed" if shape == "llama32_3b" and not fitted else "modelled")
                for n in (64, 1) if cells is not None
            ]  # fmt: skip
    return chapter("ledger3b", rows)


def held_out(world: PublishedTasks) -> Chapter:
    """Predicts AI Hub's models on four phones: a pass over a prompt, and one of a single row. Lists
    models that cannot be priced, with the reason."""
    figures, rows = read_figures("held_out"), []
    for entry in figures["models"]:
        model = graphs_of(entry["shape"]).model.replace(**entry["changes"])
        cool = passes(entry["soc"], model, "int4", cool=True)
        typical = passes(entry["soc"], model, "int4")
        wanted = {entry["rows"]: entry["pass_ms"], 1: 1e3 / entry["tokens_per_second"]}
        for count, milliseconds in wanted.items():
            run = one_pass(count, context=entry["context"])
            name = f"held_out/{entry['soc']}/{entry['name']}/rows{count}"
            row = partial(modelled, unit="ms", reference=milliseconds, source=figures["source"])
            # That products wait for spills was chosen with this row in view.
            kind = "informed" if (entry["soc"], count) == ("SM8750", 1024) else "modelled"
            ms, relative, _ = cool.uncertain(run)
            rows.append(row(name, 1e3 * ms, fitted=False, kind=kind, band=band(1e3 * ms, relative)))
            if typical.session != cool.session:
                ms = 1e3 * typical.seconds(run)
                rows.append(row(name + TYPICAL, ms, kind="repeated", band=band(ms, relative)))
    left_out = (
        f"Not scored, as {entry['why']}: {', '.join(map(_published, entry['models']))}."
        for entry in figures["not_scored"]
    )
    return chapter("held_out", rows, [*left_out])


def _published(model: Mapping[str, Any]) -> str:
    units = {"pass_ms": "ms", "tokens_per_second": "tokens/s"}
    shown = " and ".join(f"{model[key]:,} {unit}" for key, unit in units.items() if key in model)
    return f"`{model['name']}` on {model['soc']} ({shown})"


def platform(world: PublishedTasks) -> Chapter:
    """Compares one fully connected layer, shared bandwidth, and a sweep of mappings."""
    sweep, profile = world.published["fc_sweep"], load_profile("SM8750")
    weight = LoweredWeight((sweep["outputs"], sweep["inputs"]), 4)
    rows = []
    fitted = {64: world.figures["platform_fc_64_rows"]["us"]}
    measured = dict(zip(sweep["rows"], sweep["us"], strict=True)) | fitted
    for count, wanted in sorted(measured.items()):
        step = product_step(count, sweep["inputs"], sweep["outputs"], weight, "fc")
        seconds = price_on_npu(step, profile.npu["hexkl"], profile.memory).seconds
        # The number of rows that share a pass over the weights was fitted to this sweep.
        rows.append(
            modelled(f"fc/rows{count}", seconds * 1e6, "us", reference=wanted,
                     source=sweep["source"], fitted=count in fitted,
                     kind="informed" if count > max(fitted) else "modelled")
        )  # fmt: skip
    rows += _bandwidths(world)
    remap = world.figures["platform_remap_sweep"]
    moved = remap["buffers"] * remap["buffer_mib"] / 1024
    rows.append(
        modelled("remap/delayed", moved * profile.mapping.delayed_ms_per_gib, "ms",
                  reference=remap["ms"], source=remap["source"], fitted=True)
    )  # fmt: skip
    return chapter("platform", rows)


def _bandwidths(world: PublishedTasks) -> Iterator[ResultRow]:
    fitted, published = world.figures["platform_bandwidth_gbps"], world.published["bandwidth_gbps"]
    profile = load_profile("SM8650")
    cpu = profile.cpu["tuned"].gemv_gweights * 4.5 / 8
    npu = profile.npu["llada_cpp"].dma_gbps
    tasks = [LaneTask("npu", "npu", 1.0, npu * 1e9), LaneTask("cpu", "cpu", 1.0, cpu * 1e9)]
    events = run(tasks, profile.memory.dram_gbps).events
    overlap = min(event.end for event in events)
    read = sum(min(e.end, overlap) / e.end * e.task.dram_bytes for e in events)
    values = {"npu": npu, "cpu": cpu, "together": read / overlap / 1e9}
    for name, value in values.items():
        yield modelled(
            f"bandwidth/SM8650/{name}", value, "GB/s", reference=(fitted | published)[name],
            source=published["source"], fitted=name in fitted,
        )  # fmt: skip
