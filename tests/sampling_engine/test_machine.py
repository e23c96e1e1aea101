"""The results of each single instruction, from random rows and registers."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.sampling_engine.formats import store
from llada_jax.sampling_engine.instructions import INSTRUCTION_SET, Instruction
from llada_jax.sampling_engine.machine import Machine, top_k_mask, tree_sum
from llada_jax.sampling_engine.sampling import EngineConfig
from tests.sampling_engine.cases import program

LANES = 16
A, B, MASK, TO = range(4)


def bfloat16(values) -> np.ndarray:
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.fixture
def machine() -> Machine:
    """Rows a and b, a mask of zeros and ones, and a row to write; three words in each memory."""
    rng = np.random.default_rng(0)
    machine = Machine(
        EngineConfig(vlen=LANES, vector_bytes=8 * LANES * 2, fp_words=8, int_bytes=64),
        store(bfloat16(rng.standard_normal((4, LANES))), "bfloat16"),
    )
    machine.vector[:3] = bfloat16(rng.standard_normal((3, LANES)))
    machine.vector[MASK] = rng.integers(0, 2, LANES)
    machine.vector[A, 5] = 0
    machine.fp[:3] = [0.75, -2.0, 3.0]
    machine.int[:6] = [10, 20, 30, 40, 50, 60]
    return machine


REGISTERS = """
S_ADDI_INT gp1, gp0, 1
S_ADDI_INT gp2, gp0, 2
S_ADDI_INT gp3, gp0, 3
S_LD_FP f1, gp0, 0
S_LD_FP f2, gp0, 1
"""


def run(machine: Machine, text: str) -> Machine:
    machine.run(program(REGISTERS + text))
    return machine


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("V_ADD_VV gp3, gp0, gp1", lambda a, b: a + b),
        ("V_SUB_VF gp3, gp0, f1", lambda a, b: a - np.float32(0.75)),
        ("V_EXP_V gp3, gp0", lambda a, b: np.exp(a)),
    ],
)
@pytest.mark.parametrize("lanes", [LANES, 11])
def test_vectors(machine, text, expected, lanes):
    a, b = machine.vector[:2].copy()
    untouched = machine.vector[TO, lanes:].copy()
    found = run(machine, f"C_SET_V_MASK {lanes}\n{text}").vector[TO]
    np.testing.assert_array_equal(found[:lanes], bfloat16(expected(a, b))[:lanes])
    np.testing.assert_array_equal(found[lanes:], untouched)


def test_reductions(machine):
    a = machine.vector[A].copy()
    text = """
    V_RED_MAX f2, gp0
    S_ST_FP f2, gp0, 3
    V_RED_SUM f1, gp0
    S_ST_FP f1, gp0, 4
    S_ADDI_INT gp4, gp0, 100
    S_LD_FP f3, gp0, 1
    V_RED_MAX_IDX gp5, gp0, gp4, f3
    S_ST_INT gp5, gp0, 6
    V_RED_MAX_IDX gp5, gp0, gp0, f3
    S_ST_INT gp5, gp0, 7
    """
    run(machine, text)
    assert machine.fp[3] == a.max()
    assert machine.fp[4] == pytest.approx(0.75 + a.sum(dtype=np.float64), rel=1e-6)
    assert machine.int[6] == machine.int[7] == 100 + a.argmax()  # an equal one does not replace it


@pytest.mark.parametrize(("index", "lane"), [(103, 3), (100 + LANES - 1, LANES - 1)])
def test_a_lane_is_picked_by_its_index(machine, index, lane):
    registers = f"S_ADDI_INT gp4, gp0, {index}\nS_ADDI_INT gp5, gp0, 100\n"
    run(machine, registers + "V_PICK f2, gp0, gp4, gp5\nS_ST_FP f2, gp0, 3")
    assert machine.fp[3] == machine.vector[A, lane]


@pytest.mark.parametrize("index", [99, 100 + LANES])
def test_picking_a_lane_of_another_row_does_nothing(machine, index):
    registers = f"S_ADDI_INT gp4, gp0, {index}\nS_ADDI_INT gp5, gp0, 100\n"
    run(machine, registers + "V_PICK f2, gp0, gp4, gp5\nS_ST_FP f2, gp0, 3")
    assert machine.fp[3] == -2.0


def test_reductions_ignore_nan(machine):
    machine.vector[A, 3] = np.nan
    rest = np.delete(machine.vector[A], 3)
    run(machine, "V_RED_MAX f2, gp0\nS_ST_FP f2, gp0, 3\nV_RED_MAX_IDX gp5, gp0, gp0, f0\n"
        "S_ST_INT gp5, gp0, 6")  # fmt: skip
    assert machine.fp[3] == rest.max()
    assert machine.int[6] == np.nanargmax(machine.vector[A])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("S_ADD_FP f3, f1, f2", -1.25),
        ("S_SUB_FP f3, f1, f2", 2.75),
        ("S_MUL_FP f3, f1, f2", -1.5),
        ("S_RECI_FP f3, f2", -0.5),
        ("S_RECI_FP f3, f0", 0.0),
        ("S_EXP_FP f3, f2", float(np.float32(np.exp(-2)))),
    ],
)
def test_scalars(machine, text, expected):
    assert run(machine, f"{text}\nS_ST_FP f3, gp1, 2").fp[3] == expected


def test_integers_and_registers_that_are_zero(machine):
    text = """
    S_LD_INT gp4, gp1, 2
    S_ADDI_INT gp5, gp4, 3
    S_ST_INT gp5, gp0, 8
    S_ADDI_INT gp0, gp5, 1
    S_ST_INT gp0, gp0, 9
    S_ADD_FP f0, f1, f1
    S_ST_FP f0, gp0, 5
    """
    run(machine, text)
    assert machine.int[8] == 43 and machine.int[9] == 0 and machine.fp[5] == 0


def test_moves_between_memories(machine):
    mask = machine.vector[MASK, :3] != 0
    run(machine, "S_MAP_V_FP gp3, gp0, 3\nS_SELECT_INT gp0, gp0, gp3, gp2, 3")
    assert machine.vector[TO].tolist() == [0.75, -2, 3] + [0] * 13
    np.testing.assert_array_equal(machine.int[:3], np.where(mask, (10, 20, 30), (40, 50, 60)))


def test_loads(machine):
    rows = machine.hbm.read(0, 4)
    run(machine, "H_PREFETCH_V gp3, gp1, 2\n")
    np.testing.assert_array_equal(machine.vector[TO : TO + 2], rows[1:3])


def test_loops_count_down(machine):
    run(machine, "C_LOOP_START gp6, 3\nS_ST_INT gp6, gp6, 4\nC_LOOP_END gp6\nS_ST_INT gp6, gp0, 8")
    assert machine.int[5:9].tolist() == [1, 2, 3, 0]


def test_every_instruction_of_the_set_runs(machine):
    """Each one with the registers that are zero, and with ones for its numbers."""
    machine.run(
        [
            Instruction(name, tuple(int(kind == "imm") for kind in spec.operands.values()))
            for name, spec in INSTRUCTION_SET.items()
            if not name.startswith("C_LOOP")
        ]
    )


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        (
            [("S_ADDI_INT", 1, 0, 64), ("V_EXP_V", 1, 1)],
            "vector memory: words 64 to 64 are used; al",
        ),
        ([("S_ADDI_INT", 1, 0, -1), ("V_EXP_V", 1, 1)], "vector memory: words -1 to -1 are used"),
        ([("S_ADDI_INT", 1, 0, 62), ("H_PREFETCH_V", 1, 0, 4)], "vector memory: words 62 to 65"),
        ([("H_PREFETCH_V", 0, 0, 9)], "HBM memory: words 0 to 8 are used; allowed: 0 to 7"),
        ([("S_LD_FP", 1, 0, 16)], "fp memory: words 16 to 16 are used; allowed: 0 to 15"),
        ([("S_ST_INT", 1, 0, 16)], "int memory: words 16 to 16 are used; allowed: 0 to 15"),
        ([("S_SELECT_INT", 0, 0, 0, 0, 15), ("S_MAP_V_FP", 0, 0, 17)], "fp memory: words 0 to 16"),
        ([("C_SET_V_MASK", 17)], "vector lanes memory: words 0 to 16 are used; allowed: 0 to 15"),
        ([("C_SET_V_MASK", 4), ("S_MAP_V_FP", 0, 0, 5)], "vector lanes memory: words 0 to 4 are"),
        ([("C_SET_V_MASK", 4), ("S_SELECT_INT", 0, 0, 0, 0, 5)], "vector lanes memory: words 0 to"),
        (
            [("S_ADDI_INT", 1, 0, 9), ("V_TOPK_MASK", 0, 0, 0, 1, 8)],
            "V_TOPK_MASK has k 9; allowed: 0 to 8",
        ),
        (
            [("S_ADDI_INT", 1, 0, -3), ("V_TOPK_MASK", 0, 0, 0, 1, 8)],
            "V_TOPK_MASK has k -3; allowed: 0 to 8",
        ),
        ([("V_NOTHING",)], "instruction is 'V_NOTHING'; allowed: V_RED_MAX_IDX"),
    ],
)
def test_addresses_outside_memories_are_refused(instructions, message):
    engine = EngineConfig(vlen=16, vector_bytes=64 * 32, int_bytes=64)
    machine = Machine(engine, store(np.zeros((8, 16), np.float32), "bfloat16"))
    with pytest.raises(ValueError, match=message):
        machine.run([Instruction(name, tuple(operands)) for name, *operands in instructions])


@given(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=20), st.integers(0, 25))
def test_top_k_is_the_k_largest_positive_and_the_first_of_equals(keys, k):
    wanted = sorted((i for i, key in enumerate(keys) if key > 0), key=lambda i: (-keys[i], i))[:k]
    assert set(np.flatnonzero(top_k_mask(np.float32(keys), k))) == set(wanted)


def test_the_tree_adds_lane_i_to_lane_i_plus_half():
    big = np.float32(2**25)
    assert tree_sum(np.float32([big, 1, 1, -big]), 4) == 0  # (big + 1) + (1 - big)
    assert tree_sum(np.float32([big, 1, -big, 1]), 4) == 2  # (big - big) + (1 + 1)
    assert tree_sum(np.float32([1, 2, 3]), 8) == 6
