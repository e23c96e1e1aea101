"""The cycle model against the published table, and against itself counted by hand."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.sampling_engine import paper_results
from llada_jax.sampling_engine.cycles import (
    Hbm,
    published_program,
    row_bytes,
    time_program,
)
from llada_jax.sampling_engine.instructions import INSTRUCTION_SET, Instruction, loops
from llada_jax.sampling_engine.sampler_program import compile_sampler
from llada_jax.sampling_engine.sampling import MODES, EngineConfig, Sampling

LOGITS = paper_results.BATCH * paper_results.ROWS * paper_results.VOCAB


@pytest.mark.parametrize(("vlen", "ms"), paper_results.LATENCY_MS.items())
def test_the_published_latencies(vlen, ms):
    """VLEN = 512 was fitted; 1024 is a prediction."""
    found = time_program(published_program(vlen)).cycles.ms
    assert found == pytest.approx(ms, rel=0.01)


def test_the_published_breakdown():
    """Memory was fitted; vector and scalar cycles follow from the program and its latencies."""
    cycles = time_program(published_program(2048)).cycles
    published = paper_results.CYCLES_AT_2048
    assert cycles.vector == published["vector"]
    assert cycles.scalar == pytest.approx(published["scalar"], rel=0.01)
    assert cycles.memory == pytest.approx(published["memory"], rel=1e-9)
    assert cycles.total == pytest.approx(sum(published.values()), rel=0.01)


def test_the_published_bandwidth_and_shares():
    timing = time_program(published_program(2048))
    assert timing.hbm_bytes / timing.cycles.total == pytest.approx(67.7, rel=0.01)  # GB/s at 1 GHz
    shares = {"V_RED_SUM": 0.257, "V_RED_MAX_IDX": 0.1285, "V_EXP_V": 0.0321}
    for name, share in shares.items():
        cycles = timing.instructions[name] * INSTRUCTION_SET[name].calibrated
        assert cycles / timing.cycles.total == pytest.approx(share, rel=0.01)


def unrolled(instructions) -> Iterator[Instruction]:
    """All that run, one after another; a loop begins and ends once."""
    starts, place = loops(instructions), 0
    left = {start: instructions[start].operand("count") for start in starts.values()}
    while place < len(instructions):
        start = starts.get(place)
        if start is not None and left[start] > 1:
            left[start] -= 1
            place = start
        else:
            yield instructions[place]
            if start is not None:
                left[start] = instructions[start].operand("count")
        place += 1


@pytest.mark.parametrize(
    ("mode", "column"),
    [
        *((mode, "calibrated") for mode in MODES),
        ("performance", "pipelined"),
        ("edge", "pipelined"),
    ],
)
def test_counting_loops_matches_executing_them(mode, column):
    sampling = Sampling(batch=2, rows=6, vocab=500, mode=mode, chunk_rows=5)
    program, hbm = compile_sampler(sampling, EngineConfig(vlen=32)), Hbm(20.0, 30.0)
    now, names = 0.0, Counter()
    for instruction in unrolled(program.instructions):
        names[instruction.name] += 1
        spec = INSTRUCTION_SET[instruction.name]
        now += spec.cycles(column, 32, instruction.operand("length"))
        if instruction.name == "H_PREFETCH_V":
            now += hbm.load(instruction.operands[-1] * row_bytes(32))
    timing = time_program(program, hbm, column)
    assert timing.cycles.total == pytest.approx(now)
    assert timing.instructions == names


def test_edge_mode_reads_logits_twice_and_one_pass_once():
    traffic = {mode: time_program(published_program(2048, mode)) for mode in MODES}
    once = traffic["performance"].hbm_bytes
    assert traffic["edge"].hbm_bytes == 2 * once
    assert traffic["one_pass"].hbm_bytes == once
    assert traffic["one_pass"].cycles.total < traffic["edge"].cycles.total


@given(st.sampled_from(MODES), st.integers(4, 9), st.floats(0, 50), st.floats(0, 50))
def test_time_is_at_least_compute_and_memory_time(mode, log_vlen, latency, per_kib):
    vlen = 2**log_vlen
    sampling = Sampling(batch=1, rows=4, vocab=300, mode=mode)
    program = compile_sampler(sampling, EngineConfig(vlen=vlen))
    timing = time_program(program, Hbm(latency, per_kib))
    computed = time_program(program, Hbm(0, 0)).cycles.total
    assert timing.cycles.total >= max(computed, per_kib * 4 * 300 / 1024) * (1 - 1e-9)


def test_unfused_sampling_on_a_gpu_is_slow():
    """The published 2.51 ms is the unfused sampler's traffic; a fused one is 15 times faster."""
    unfused, fused = (
        paper_results.roofline_ms("a6000", sampler, LOGITS)
        for sampler in ("unfused_float64", "fused_bfloat16")
    )
    assert unfused == pytest.approx(2.51, rel=0.01)
    assert unfused / fused == pytest.approx(15)


def test_bad_input():
    program = published_program(512)
    with pytest.raises(ValueError, match="column is 'fast'; allowed: 'calibrated', 'pipelined'"):
        time_program(program, column="fast")
    with pytest.raises(ValueError, match="S_EXP_FP is not in hardware"):
        time_program(published_program(512, "one_pass"), column="pipelined")
    with pytest.raises(ValueError, match="hbm is Hbm"):
        time_program(program, Hbm(-1, 0))
