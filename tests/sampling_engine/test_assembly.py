"""Programs as text: nothing is lost, and what is no program is refused by line."""

import pytest

from llada_jax.sampling_engine.assembly import Loop, nested, parse, render
from llada_jax.sampling_engine.instructions import COLUMNS, SPECS, Instruction
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.sampling import Sampling

PROGRAM = """\
C_LOOP_START gp1, 3   ; rows
  V_SUB_VF gp3, gp3, f3, 0
  S_ADDI_INT gp3, gp3, -2
C_LOOP_END gp1
"""


def test_text_becomes_instructions_and_loops():
    subtract = Instruction("V_SUB_VF", (3, 3, 3, 0))
    back = Instruction("S_ADDI_INT", (3, 3, -2))
    assert nested(parse(PROGRAM)) == (Loop(1, 3, (subtract, back)),)


@pytest.mark.parametrize("mode", ["performance", "edge", "one_pass", "one_pass_overlapped"])
def test_a_program_survives_its_text(mode):
    sampling = Sampling(batch=2, rows=8, vocab=200, steps=2, mode=mode, threshold=0.9)
    program = compile_sampler(sampling, EngineConfig(vlen=16))
    assert parse(render(program.instructions)) == program.instructions


def test_every_instruction_has_every_latency_and_a_source():
    for spec in SPECS:
        assert set(spec.latency) == set(COLUMNS)
        assert spec.source and spec.meaning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("V_EXP_V gp1, gp1\nV_SOFTMAX gp1", r"line 2: instruction is 'V_SOFTMAX'; allowed: V_RED_"),
        ("V_EXP_V gp1", r"line 1: V_EXP_V has 1 operands; allowed: to:gp, row:gp"),
        ("V_EXP_V gp1, f1", r"line 1: operand is 'f1'; allowed: gp0, gp1"),
        ("V_EXP_V gp1, gp16", r"row of V_EXP_V is gp16; allowed: gp0 to gp15"),
        ("S_ADD_FP f8, f0, f0", r"to of S_ADD_FP is fp8; allowed: fp0 to fp7"),
        ("S_ADDI_INT gp1, gp0, 1.5", r"operand is '1.5'; allowed: a whole number"),
        ("C_LOOP_START gp1, 0\nC_LOOP_END gp1", r"count of C_LOOP_START is 0; allowed: 1 or more"),
        ("C_LOOP_START gp1, 2", r"C_LOOP_START gp1 has no C_LOOP_END"),
        ("C_LOOP_END gp1", r"C_LOOP_END without C_LOOP_START"),
        ("C_LOOP_START gp1, 2\nC_LOOP_END gp2", r"C_LOOP_START gp1 ends with C_LOOP_END gp2"),
    ],
)
def test_what_is_no_program(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)
