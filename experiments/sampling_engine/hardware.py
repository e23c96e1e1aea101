"""The engine's units as gates: their number, their depth, and their area."""

from collections.abc import Iterator
from functools import lru_cache

from experiments.harness.results import ResultRow
from llada_jax.sampling_engine import paper_results as paper
from llada_jax.sampling_engine.hdl.engine import EngineSizes, engine
from llada_jax.sampling_engine.hdl.floats import load_element
from llada_jax.sampling_engine.hdl.gates import Netlist, gate_equivalents
from llada_jax.sampling_engine.hdl.wires import Circuit, source

LANES = (8, 16)
"""Vector lengths whose gates are counted; the number is linear in the vector length."""
DATAPATH = (
    "subtract", "exponential", "max_index", "sum_tree", "top_k", "elements", "vector_memory",
)  # fmt: skip
SCALAR = ("scalar", "reciprocal", "select")
SOURCE = f"{paper.PAPER}, Table IV"


@lru_cache
def netlist(lanes: int) -> Netlist:
    """Returns the netlist of an engine for the published case, without the memories' cells."""
    words = {"vector": 4096, "fp": 512, "int": 2048, "program": 256}
    return Netlist(engine(EngineSizes(lanes, paper.ROWS, words)))


def equivalents(lanes: int, units: tuple[str, ...]) -> float:
    """Returns the number of two-input NAND gates of some units, at any number of lanes."""
    few, more = (
        sum(gate_equivalents(netlist(size).cells()[unit]) for unit in units) for size in LANES
    )
    return few + (more - few) * (lanes - LANES[0]) / (LANES[1] - LANES[0])


def hardware_rows() -> Iterator[ResultRow]:
    """Yields gates and depth of each unit at the fewest lanes, and areas by one fitted factor."""
    counted = netlist(LANES[0])
    depths = counted.depths()
    for unit, cells in counted.cells().items():
        name, flip_flops = f"hdl/vlen{LANES[0]}/{unit}", cells["flip_flop"]
        yield ResultRow(f"{name}/gates", cells.total() - flip_flops, "gates")
        yield ResultRow(f"{name}/flip_flops", flip_flops, "flip-flops")
        yield ResultRow(f"{name}/gate_equivalents", gate_equivalents(cells), "NAND2")
        yield ResultRow(f"{name}/depth", depths[unit], "gates in a row")
    yield from _area_rows()


def _area_rows() -> Iterator[ResultRow]:
    """Yields areas. The first published one gives the area of a gate; the assignment of units to
    the paper's scalar part was chosen with knowledge of its area."""
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
    for unit in ("registers", "sequencer", "dma"):
        area = equivalents(first, (unit,)) * um2
        yield ResultRow(f"area/{unit}/vlen{first}", area, "um2", kind="modelled")
    decoder = Circuit({"out": load_element(source("element", 8), source("scale", 8))})
    area = first * gate_equivalents(Netlist(decoder).cells()[""]) * um2  # one decoder for each lane
    yield ResultRow(f"area/mx_e4m3/vlen{first}", area, "um2", kind="modelled")
