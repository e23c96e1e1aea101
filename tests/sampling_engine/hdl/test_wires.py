"""Operations on words match their definitions, as numbers and as gates."""

import numpy as np
import pytest

from llada_jax.sampling_engine.hdl.gates import Netlist
from llada_jax.sampling_engine.hdl.wires import (
    Circuit,
    Memory,
    Register,
    cat,
    choose,
    const,
    delay,
    mux,
    rom,
    source,
)
from tests.sampling_engine.hdl.gate_simulation import GateSimulation
from tests.sampling_engine.hdl.simulation import Simulation

WIDTH = 9
MASK = (1 << WIDTH) - 1
TABLE = [37 * i % 64 for i in range(8)]
OPERATIONS = {
    "not": (lambda a, b: ~a, lambda a, b: ~a & MASK),
    "and": (lambda a, b: a & b, lambda a, b: a & b),
    "or": (lambda a, b: a | b, lambda a, b: a | b),
    "xor": (lambda a, b: a ^ b, lambda a, b: a ^ b),
    "add": (lambda a, b: a + b, lambda a, b: a + b & MASK),
    "increment": (lambda a, b: a + 1, lambda a, b: a + 1 & MASK),
    "sub": (lambda a, b: a - b, lambda a, b: a - b & MASK),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "times_constant": (lambda a, b: a * const(11, 4), lambda a, b: a * 11),
    "less": (lambda a, b: a < b, lambda a, b: a < b),
    "less_than_constant": (lambda a, b: a < 300, lambda a, b: a < 300),
    "greater": (lambda a, b: a > b, lambda a, b: a > b),
    "equals": (lambda a, b: a.equals(b), lambda a, b: a == b),
    "any": (lambda a, b: a.any(), lambda a, b: a != 0),
    "all": (lambda a, b: a.all(), lambda a, b: a == MASK),
    "mux": (lambda a, b: mux(a[0], b, ~a), lambda a, b: np.where(a & 1, b, ~a & MASK)),
    "slice": (lambda a, b: a[2:-1], lambda a, b: a >> 2 & 63),
    "last": (lambda a, b: a[-1], lambda a, b: a >> WIDTH - 1),
    "cat": (lambda a, b: cat(a, b), lambda a, b: a | b << WIDTH),
    "signed": (lambda a, b: a.signed(WIDTH + 2), lambda a, b: a | (a >> WIDTH - 1) * 3 << WIDTH),
    "rom": (lambda a, b: rom(a[:3], TABLE, 6), lambda a, b: np.array(TABLE)[a & 7]),
    "choose": (
        lambda a, b: choose(a[:1], [b, a]),
        lambda a, b: np.where(a & 1, a, b),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_on_wires(name):
    build, wanted = OPERATIONS[name]
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 1 << WIDTH, (2, 400))
    b[::5] = a[::5]
    a[:2], b[2:4] = (0, MASK), (0, MASK)
    circuit = Circuit({"out": build(source("a", WIDTH), source("b", WIDTH))})
    gates = GateSimulation(Netlist(circuit), streams=len(a)).step(a=a, b=b)["out"]
    wires = Simulation(circuit)
    found = [wires.step(a=x, b=y)["out"] for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(gates, wanted(a, b))
    np.testing.assert_array_equal(found, wanted(a, b))


def test_registers_and_memories():
    """A delayed counter, written to a memory; the read gives the word before the clock edge."""
    count = Register(4, 3)
    count.set(count + 1)
    memory = Memory("words", 4, 8, lanes=2)
    memory.write(count[:2], const(1, 2), cat(count, count))
    circuit = Circuit({"late": delay(count, 9, cycles=2), "read": memory.read(const(1, 2))})
    for simulation in (Simulation(circuit), GateSimulation(Netlist(circuit))):
        seen = [(out["late"], out["read"]) for out in (simulation.step() for _ in range(6))]
        assert seen == [(9, 0), (9, 0), (3, 0x33), (4, 0x33), (5, 0x35), (6, 0x65)]
        assert simulation.memories["words"] == [0, 0x77, 0, 0]


def test_gates_are_folded_and_shared():
    a, b = source("a", 4), source("b", 4)
    netlist = Netlist(Circuit({"x": (a & b) | (b & a), "y": mux(a[0], b, b) ^ 0, "z": a & ~a}))
    assert netlist.cells() == {"": {"and": 4}}
    assert netlist.depths() == {"": 1}
    y, z = (netlist.bits[netlist.circuit.outputs[name]] for name in "yz")
    assert y == netlist.bits[b] and z == [0] * 4


def test_words_of_wrong_width_are_refused():
    with pytest.raises(ValueError, match="add of 3 and 4 bits"):
        _ = source("a", 3) + source("b", 4)
    with pytest.raises(ValueError, match="mux of 2, 3 and 3 bits"):
        mux(source("a", 2), source("b", 3), 0)
    with pytest.raises(ValueError, match="5 words at 2 bits"):
        rom(source("a", 2), [0] * 5, 1)
