"""Passes of the vendor's and of native kernels: Genie, and a ledger of three other models."""

from typing import Any

from experiments.reproduce.chapter import Chapter, chapter, modelled
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.single_steps import one_pass


def genie(world: PublishedTasks) -> Chapter:
    """Predicts Llama-3-8B in Genie on SM8850; the vendor class was fitted to the others."""
    rows = []
    for label, shape in (("3b", "llama32_3b"), ("8b", "llama3_8b")):
        graphs, name = graphs_of(shape, "int4"), f"genie_llama_{label}"
        fit = world.figures[name]
        for soc in ("SM8750", "SM8850"):
            fitted = soc in fit
            cell = fit[soc] if fitted else world.published[name][soc]
            wanted = {128: _mean(cell["rows128_ms"]), 1: 1e3 / _mean(cell["tokens_per_second"])}
            for count, milliseconds in wanted.items():
                seconds = one_pass(graphs, load_profile(soc), count)
                rows.append(
                    modelled(f"genie/{soc}/{label}/rows{count}", seconds * 1e3, "ms",
                              reference=milliseconds, source=fit["source"], fitted=fitted)
                )  # fmt: skip
    return chapter("genie", rows)


def _mean(value: Any) -> float:
    return sum(value) / len(value) if isinstance(value, list) else float(value)


LEDGER_CLASSES = {
    "w16a16": ("float32", "native_fp16"),
    "w4a16": ("int4_block32", "native_fp16"),
    "w4a8": ("int4", "native_int8"),
}


def ledger3b(world: PublishedTasks) -> Chapter:
    """Passes of native kernels that llada.cpp's figures know nothing of."""
    ledger, profile = world.published["ledger"], load_profile("SM8750")
    # Attention and norms of the 3B's first column are platform constants.
    known = {("llama32_3b", "w16a16"): world.figures["platform_ledger_3b_w16a16"]}
    rows = []
    for shape, prefix in (("llama32_3b", "ledger3b"), ("llama32_1b", "ledger1b"),
                          ("qwen3_1_7b", "ledger_qwen")):  # fmt: skip
        for precision, (quant, kernels) in LEDGER_CLASSES.items():
            fitted = (shape, precision) in known
            # Overlap, rows of a pass and the calls' price are read off the 3B's other columns.
            kind: Any = "informed" if shape == "llama32_3b" and not fitted else "modelled"
            cells = known.get((shape, precision), ledger[shape].get(precision))
            if cells is None:
                continue
            graphs = graphs_of(shape, quant)  # pyright: ignore[reportArgumentType]
            for count in (64, 1):
                seconds = one_pass(
                    graphs, profile, count, kernels=kernels, context=128, head_rows=count
                )
                rows.append(
                    modelled(f"{prefix}/{precision}/rows{count}", seconds * 1e3, "ms",
                              reference=cells[f"rows{count}_ms"], source=ledger["source"],
                              fitted=fitted, kind=kind)
                )  # fmt: skip
    return chapter("ledger3b", rows)
