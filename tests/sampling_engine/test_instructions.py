"""The instruction set and its programs: text, loops, and invalid programs."""

from dataclasses import replace

import pytest

from llada_jax.sampling_engine.instructions import (
    INSTRUCTION_SET,
    Instruction,
    encode,
    loops,
    render,
)
from llada_jax.sampling_engine.sampler_program import compile_sampler
from llada_jax.sampling_engine.sampling import MODES, EngineConfig, Sampling
from tests.sampling_engine.cases import program

PROGRAM = """\
C_LOOP_START gp1, 3
  V_SUB_VF gp3, gp3, f3
  S_ADDI_INT gp3, gp3, -2
C_LOOP_END gp1
"""


def test_instructions_become_text_and_loops():
    subtract = Instruction("V_SUB_VF", (3, 3, 3))
    back = Instruction("S_ADDI_INT", (3, 3, -2))
    ends = Instruction("C_LOOP_START", (1, 3)), Instruction("C_LOOP_END", (1,))
    assert render([ends[0], subtract, back, ends[1]]) == PROGRAM
    assert program(PROGRAM) == [ends[0], subtract, back, ends[1]]
    assert loops(program(PROGRAM)) == {3: 0}


def test_every_instruction_has_a_meaning_and_a_source():
    for spec in INSTRUCTION_SET.values():
        assert spec.source and spec.meaning and set(spec.operands.values()) <= {"gp", "fp", "imm"}


def test_every_instruction_is_in_a_program():
    engine = EngineConfig(vlen=32, vector_bytes=1 << 20)
    samplings = [Sampling(batch=2, rows=3, vocab=200, mode=mode) for mode in MODES]
    noisy = replace(samplings[0], mode="one_pass", noisy=True)
    emitted = {
        each.name
        for sampling in (*samplings, noisy)
        for each in compile_sampler(sampling, engine).instructions
    }
    assert emitted == set(INSTRUCTION_SET)


def test_numbers_fill_the_word():
    """32 bits: six of the opcode, four a register, and the number has the rest."""
    for name, spec in INSTRUCTION_SET.items():
        kinds = list(spec.operands.values())
        assert kinds.count("imm") <= 1 and kinds.count("imm") + len(kinds) <= 6, name
        for operand, kind in spec.operands.items():
            if kind == "imm":
                assert spec.values(operand).stop <= 1 << 26 - 4 * (len(kinds) - 1)


def test_opcodes_are_unique():
    opcodes = [spec.opcode for spec in INSTRUCTION_SET.values()]
    assert len(set(opcodes)) == len(opcodes) and 0 < min(opcodes) <= max(opcodes) < 1 << 6


def test_words_have_fields_from_the_lowest_bit_on():
    """And the end of a loop has the place of its first word."""
    start, subtract, back, end = encode(program(PROGRAM))
    assert subtract == 0x10 | 3 << 6 | 3 << 10 | 3 << 14
    assert back == 0x23 | 3 << 6 | 3 << 10 | (2**18 - 2) << 14
    assert start == 0x2E | 1 << 6 | 3 << 10 and end == 0x2F | 1 << 6 | 1 << 10
    with pytest.raises(ValueError, match="value of S_ADDI_INT is 99999999999999; allowed: "):
        encode(program("S_ADDI_INT gp1, gp0, 99999999999999"))


def test_reductions_are_as_deep_as_their_tree():
    spec = INSTRUCTION_SET["V_RED_SUM"]
    assert [spec.cycles("pipelined", vlen) for vlen in (8, 512, 2048)] == [9, 21, 25]
    assert spec.cycles("calibrated", 8) == spec.cycles("calibrated", 2048) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("V_SOFTMAX gp1", r"instruction is 'V_SOFTMAX'; allowed: V_RED_"),
        ("V_EXP_V gp1", r"V_EXP_V has 1 operands; allowed: to:gp, row:gp"),
        ("V_EXP_V gp1, gp16", r"row of V_EXP_V is gp16; allowed: gp0 to gp15"),
        ("S_ADD_FP f8, f0, f0", r"to of S_ADD_FP is f8; allowed: f0 to f7"),
        (
            "C_LOOP_START gp1, 0\nC_LOOP_END gp1",
            r"count of C_LOOP_START is 0; allowed: 1 to 4194303",
        ),
        (
            "S_ADDI_INT gp1, gp0, 99999999999999",
            r"value of S_ADDI_INT is 99999999999999; allowed: -131072 to 131071$",
        ),
        ("S_LD_FP f1, gp0, -131073", r"offset of S_LD_FP is -131073; allowed: -131072 to 131071"),
        (
            "V_TOPK_MASK gp1, gp1, gp1, gp1, 1024",
            r"length of V_TOPK_MASK is 1024; allowed: 1 to 1023",
        ),
        ("C_LOOP_START gp1, 2", r"C_LOOP_START gp1 has no C_LOOP_END"),
        ("C_LOOP_END gp1", r"C_LOOP_END without C_LOOP_START"),
        ("C_LOOP_START gp1, 2\nC_LOOP_END gp2", r"C_LOOP_START gp1 ends with C_LOOP_END gp2"),
    ],
)
def test_invalid_programs_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        loops(program(text))
