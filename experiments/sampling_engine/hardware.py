"""The engine's units as gates: how many, how many in a row, and the area that they make."""

from collections.abc import Iterator
from functools import lru_cache

from experiments.harness.results import ResultRow
from llada_jax.sampling_engine import paper_results as paper
from llada_jax.sampling_engine.hdl.engine import EngineSizes, engine
from llada_jax.sampling_engine.hdl.floats import load_element
from llada_jax.sampling_engine.hdl.gates import Netlist, gate_equivalents
from llada_jax.sampling_engine.hdl.wires import Circuit, source

LANES = (8, 16)
"""Engines whose gates are counted. Those of a longer VLEN follow in a straight line."""
DATAPATH = (
    "subtract", "exponential", "max_index", "sum_tree", "top_k", "elements", "vector_memory",
)  # fmt: skip
SCALAR = ("scalar", "reciprocal", "select")
SOURCE = f"{paper.PAPER}, Table IV"


@lru_cache
def netlist(lanes: int) -> Netlist:
    """Builds an engine for blocks of the published case; what memories hold is not counted."""
    words = {"vector": 4096, "fp": 512, "int": 2048, "program": 256}
    return Netlist(engine(EngineSizes(lanes, paper.ROWS, words)))


def equivalents(lanes: int, units: tuple[str, ...]) -> float:
    """Returns NAND gates of two inputs of some units, at any number of lanes."""
    few, more = (
        sum(gate_equivalents(netlist(size).cells()[each]) for each in units) for size in LANES
    )
    return few + (more - few) * (lanes - LANES[0]) / (LANES[1] - LANES[0])


def hardware_rows() -> Iterator[ResultRow]:
    """Yields gates and depth of each unit at the fewest lanes, and areas by one fitted factor."""
    found = netlist(LANES[0])
    depths = found.depths()
    for each, cells in found.cells().items():
        name, flip_flops = f"hdl/vlen{LANES[0]}/{each}", cells["flip_flop"]
        yield ResultRow(f"{name}/gates", cells.total() - flip_flops, "gates")
        yield ResultRow(f"{name}/flip_flops", flip_flops, "flip-flops")
        yield ResultRow(f"{name}/gate_equivalents", gate_equivalents(cells), "NAND2")
        yield ResultRow(f"{name}/depth", depths[each], "gates in a row")
    yield from area_rows()


def area_rows() -> Iterator[ResultRow]:
    """Yields areas, of which the first sets the area of a gate. Which units are the paper's scalar
    part was decided with its area in view."""
    first = min(paper.AREA_MM2)
    um2 = paper.AREA_MM2[first] * 1e6 / equivalents(first, DATAPATH)
    yield ResultRow("fit/um2_a_nand2", um2, "um2", kind="fitted", source=f"{SOURCE}: VLEN {first}")
    for vlen, area in paper.AREA_MM2.items():
        yield ResultRow(
            f"area/datapath/vlen{vlen}", equivalents(vlen, DATAPATH) * um2 / 1e6, "mm2",
            kind="fitted" if vlen == first else "modelled", reference=area, source=SOURCE,
        )  # fmt: skip
    yield ResultRow(
        "area/scalar", equivalents(first, SCALAR) * um2, "um2",
        kind="informed", reference=paper.SCALAR_UM2, source=SOURCE,
    )  # fmt: skip
    for each in ("registers", "sequencer", "dma"):
        area = equivalents(first, (each,)) * um2
        yield ResultRow(f"area/{each}/vlen{first}", area, "um2", kind="modelled")
    decoder = Circuit({"out": load_element(source("element", 8), source("scale", 8))})
    area = first * gate_equivalents(Netlist(decoder).cells()[""]) * um2  # one for each lane
    yield ResultRow(f"area/mx_e4m3/vlen{first}", area, "um2", kind="modelled")
