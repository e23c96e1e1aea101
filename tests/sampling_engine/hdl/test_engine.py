"""Compiled programs on the engine's wires and gates: the functional machine's results to the bit,
and the timing model's cycles."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from llada_jax.sampling_engine.cycles import Hbm, fitted_hbm, time_program
from llada_jax.sampling_engine.hdl import engine as engine_module
from llada_jax.sampling_engine.hdl.engine import engine
from llada_jax.sampling_engine.hdl.gates import Netlist
from llada_jax.sampling_engine.hdl.verilog import images, sizes_of
from llada_jax.sampling_engine.hdl.wires import Circuit, delay
from llada_jax.sampling_engine.instructions import INSTRUCTION_SET, Instruction
from llada_jax.sampling_engine.sampler_program import F_BEST, F_TOTAL
from llada_jax.sampling_engine.sampling import Sampling
from tests.sampling_engine.hdl.cases import prepared
from tests.sampling_engine.hdl.gate_simulation import GateSimulation
from tests.sampling_engine.hdl.running import Hardware, Ran, run
from tests.sampling_engine.hdl.simulation import Simulation

SMALL = Sampling(batch=1, rows=3, vocab=20)
FORMATS = {8: "bfloat16", 16: "mx_e4m3", 32: "mx_e4m3"}


def assert_runs(sampling: Sampling, vlen: int, build, more=()) -> Ran:
    """Runs a program, and `more` instructions behind it, on `build(circuit)`; a cycle may be lost
    to what HBM's time has of one."""
    program, machine = prepared(sampling, vlen, FORMATS[vlen])
    program = replace(program, instructions=(*program.instructions, *more))
    found = run(build(engine(sizes_of(program))), program, machine, fitted_hbm())
    machine.run(program.instructions)
    assert found.memories == images(program, machine)
    timing = time_program(program, fitted_hbm(), "pipelined")
    assert abs(found.total - timing.cycles.total) <= 1
    assert Counter(name for name, _ in found.cycles) == timing.instructions
    return found


slow = pytest.mark.slow


@pytest.mark.parametrize("mode", ["performance", pytest.param("edge", marks=slow)])
@pytest.mark.parametrize("vlen", [8, *(pytest.param(vlen, marks=slow) for vlen in (16, 32))])
def test_a_program_runs_on_the_wires(vlen, mode):
    sampling = Sampling(batch=2, rows=4, vocab=70, mode=mode)
    found = assert_runs(sampling, vlen, Simulation)
    each = defaultdict(set)
    for name, cycles in found.cycles:
        each[name].add(cycles)
    for name, seen in each.items():
        if name != "H_PREFETCH_V":
            assert seen == {INSTRUCTION_SET[name].cycles("pipelined", vlen, sampling.rows)}, name


def test_scalars_are_subtracted_on_the_wires():
    more = (
        Instruction("S_SUB_FP", (F_TOTAL, F_BEST, F_TOTAL)),
        Instruction("S_ST_FP", (F_TOTAL, 0, 0)),
    )
    assert_runs(Sampling(batch=1, rows=4, vocab=40), 8, Simulation, more)


@pytest.mark.parametrize("mode", [pytest.param("performance", marks=slow), "edge"])
def test_a_program_runs_on_the_gates(mode):
    sampling = Sampling(batch=1, rows=5, vocab=20, mode=mode)
    assert_runs(sampling, 8, lambda circuit: GateSimulation(Netlist(circuit)))


PROGRAM, _ = prepared(SMALL, 8)
UNITS = sorted({wire.unit for wire in engine(sizes_of(PROGRAM)).wires if wire.unit})


def is_caught(build) -> bool:
    """Whether hardware leaves other memories or takes other cycles than it should."""
    program, machine = prepared(SMALL, 8)
    hbm = Hbm(20, 0)
    try:
        found = run(build(engine(sizes_of(program))), program, machine, hbm, limit=2_000)
    except (ValueError, IndexError):  # it does not end, or asks for what HBM does not have
        return True
    machine.run(program.instructions)
    total = time_program(program, hbm, "pipelined").cycles.total
    return found.memories != images(program, machine) or found.total != total


def test_the_faultless_engine_passes_the_checks():
    assert not is_caught(Simulation)


@slow
@pytest.mark.parametrize("unit", UNITS)
def test_a_fault_in_a_unit_is_detected(unit):
    """Inverts the bits of a word. Some words, such as subnormals, do not affect a program."""

    def caught(number: int) -> bool:
        def broken(circuit: Circuit) -> Hardware:
            wires = [wire for wire in circuit.wires if wire.unit == unit and len(wire) > 1]
            drawn = np.random.default_rng(number).integers(len(wires))
            return Simulation(circuit, broken=wires[drawn])

        return is_caught(broken)

    assert any(map(caught, range(8)))


@pytest.mark.parametrize("unit", ["max_index", "sum_tree"])
def test_a_late_tree_is_detected(unit, monkeypatch):
    """Results are right, but eight cycles later."""
    built = getattr(engine_module, unit)

    def late(*inputs):
        return tuple(delay(wire, cycles=8) for wire in built(*inputs))

    monkeypatch.setattr(engine_module, unit, late)
    assert is_caught(Simulation)
