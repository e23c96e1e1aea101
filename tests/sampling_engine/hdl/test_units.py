"""Units as gates match the interpreter's instructions bit for bit."""

import ml_dtypes
import numpy as np
import pytest

from llada_jax.sampling_engine.hdl.floats import add, exponential, order, reciprocal, to_bfloat16
from llada_jax.sampling_engine.hdl.gates import Netlist
from llada_jax.sampling_engine.hdl.reductions import max_index, sum_tree, top_k
from llada_jax.sampling_engine.hdl.wires import Circuit, cat, const, source
from llada_jax.sampling_engine.machine import first_maximum, top_k_mask, tree_sum
from tests.sampling_engine.hdl.cases import bfloat16_rows, bits16, numbers, through
from tests.sampling_engine.hdl.gate_simulation import GateSimulation
from tests.sampling_engine.hdl.simulation import Simulation


def floats(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def pairs(count: int) -> list[np.ndarray]:
    """Numbers to add, with some that cancel out; not with infinities of both signs."""
    a, b = numbers(count), numbers(count + 1)[1:]
    b[::7] = a[::7] ^ 1 << 31
    return [a, np.where(np.isinf(floats(a)), 0, b)]


def test_the_adder_follows_ieee_754():
    a, b = pairs(30_000)
    with np.errstate(over="ignore"):
        wanted = (floats(a) + floats(b)).view(np.uint32)
    np.testing.assert_array_equal(through(add, 32, a, b), wanted)


def test_rounding_to_bfloat16():
    a = numbers(5_000, range(255))
    wanted = floats(a).astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(through(to_bfloat16, 32, a, cycles=0), wanted)


def test_keys_are_in_the_order_of_numbers():
    a, b = numbers(3_000, range(255)), numbers(3_001, range(255))[1:]
    b[::9] = a[::9]
    found = through(lambda x, y: order(x) > order(y), 32, a, b, cycles=0)
    np.testing.assert_array_equal(found, floats(a) > floats(b))


def test_all_exponentials_of_bfloat16_are_right():
    """Of wires all 65,536, and of gates every eighth."""
    with np.errstate(all="ignore"):
        values = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
        wanted = np.exp(values).astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    some = ~np.isnan(values)
    simulation = Simulation(Circuit({"out": exponential(source("x", 16))}))
    found = [simulation.step(x=min(x, 0xFFFF))["out"] for x in range((1 << 16) + 3)][3:]
    np.testing.assert_array_equal(np.array(found)[some], wanted[some])
    eighth = np.flatnonzero(some)[::8]
    found = through(exponential, 16, eighth, cycles=3)
    np.testing.assert_array_equal(found, wanted[eighth])


def test_reciprocals_follow_ieee_754():
    a = np.concatenate([numbers(2_000, range(255)), np.arange(255) << 23, np.arange(40)])
    a = a[~np.isinf(floats(a))]
    result, done = reciprocal(source("x", 32), source("start", 1))
    netlist = Netlist(Circuit({"out": result, "done": done}))
    simulation = GateSimulation(netlist, streams=len(a))
    simulation.step(x=a, start=np.ones_like(a))
    for _ in range(14):
        out = simulation.step(x=a, start=np.zeros_like(a))
    assert np.all(out["done"])
    with np.errstate(all="ignore"):
        wanted = np.where(floats(a) == 0, 0, 1 / floats(a).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(out["out"], wanted.view(np.uint32))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("used", [8, 5])
def test_reductions_of_rows(lanes, used):
    rows = bfloat16_rows(300, lanes)
    rows[::20] = -np.inf
    rows[5::20, 2] = -np.inf
    mask = const((1 << used) - 1, lanes)
    columns = [bits16(rows[:, i]) for i in range(lanes)]
    levels = lanes.bit_length() - 1

    def largest(*ports):
        return cat(*max_index(ports, mask, const(1, 1)))

    found = through(largest, 16, *columns, cycles=levels + 1)
    tops = [first_maximum(row[:used]) for row in rows]
    np.testing.assert_array_equal(found & 0xFFFF, bits16(np.array([top for _, top in tops])))
    np.testing.assert_array_equal(found >> 16 & lanes - 1, [lane for lane, _ in tops])
    assert (found >> 16 + levels == 1).all()

    finite = np.where(np.isinf(rows), np.float32(-2), rows)
    columns = [bits16(finite[:, i]) for i in range(lanes)]
    found = through(
        lambda *ports: cat(*sum_tree(ports, mask, const(1, 1))), 16, *columns, cycles=2 * levels
    )
    wanted = [np.float32(tree_sum(row[:used], lanes)) for row in finite]
    np.testing.assert_array_equal(found & 0xFFFFFFFF, np.array(wanted).view(np.uint32))
    assert (found >> 32 == 1).all()


@pytest.mark.parametrize("slots", [3, 8])
def test_the_largest_keys(slots):
    """Masks of blocks of eight keys, some not admitted, for every k that the slots hold."""
    blocks, length = 400, 8
    rng = np.random.default_rng(slots)
    keys = np.abs(bfloat16_rows(blocks, length)) * rng.choice([1, 1, 1, -1], (blocks, length))
    admitted, k = rng.random(keys.shape) < 0.8, rng.integers(0, slots + 1, blocks)
    ports = {"key": 16, "place": 3, "admitted": 1, "start": 1, "k": 4}
    wires = [source(name, width) for name, width in ports.items()]
    netlist = Netlist(Circuit({"mask": top_k(*wires, length, slots)}))
    simulation = GateSimulation(netlist, streams=blocks)
    none = np.zeros(blocks, np.int64)
    simulation.step(start=none + 1, k=k)
    for i in range(length):
        now = {"key": bits16(keys[:, i]), "place": none + i, "admitted": admitted[:, i] * 1}
        simulation.step(**now, start=none, k=k)
    found = simulation.step(admitted=none)["mask"]
    for row, allowed, count, mask in zip(keys, admitted, k, found, strict=True):
        chosen = top_k_mask(np.where(allowed, row, np.float32(0)), count)
        assert mask == chosen @ (1 << np.arange(length))


UNITS = {
    "add": (add, 32, pairs(4_000)),
    "to_bfloat16": (to_bfloat16, 32, [numbers(4_000)]),
    "exponential": (exponential, 16, [numbers(4_000, range(112, 136)) >> 16 & 0xFFFF]),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_changed_gate_is_detected(name):
    """Of gates drawn at random, inverted one at a time, most change a result."""
    unit, width, columns = UNITS[name]
    wires = [source(f"x{i}", width) for i in range(len(columns))]
    netlist = Netlist(Circuit({"out": unit(*wires)}))
    inputs = {f"x{i}": column for i, column in enumerate(columns)}

    def results(broken: int | None = None) -> np.ndarray:
        simulation = GateSimulation(netlist, 4_000, broken)
        return np.asarray([simulation.step(**inputs)["out"] for _ in range(4)][-1])

    wanted = results()
    gates = [i for i, gate in netlist.lines.items() if gate.inputs]
    drawn = np.random.default_rng(1).choice(gates, 20, replace=False).tolist()
    assert sum((results(gate) != wanted).any() for gate in drawn) >= 15
