"""The cycle model against the published table, and against itself counted by hand."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.sampling_engine import paper_results
from llada_jax.sampling_engine.cycles import (
    Hbm,
    TimingConfig,
    fitted_hbm,
    published_program,
    time_program,
)
from llada_jax.sampling_engine.instructions import INSTRUCTION_SET, Instruction, Loop, nested
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import Sampling
from tests.sampling_engine.cases import MODES

LOGITS = paper_results.BATCH * paper_results.ROWS * paper_results.VOCAB


def fitted(**settings) -> TimingConfig:
    return TimingConfig(hbm=fitted_hbm(), **settings)


@pytest.mark.parametrize(("vlen", "ms"), paper_results.LATENCY_MS.items())
def test_the_published_latencies(vlen, ms):
    """VLEN = 512 was fitted; 1024 is a prediction."""
    found = time_program(published_program(vlen), fitted()).cycles.ms
    assert found == pytest.approx(ms, rel=0.01)


def test_the_published_breakdown():
    """Memory was fitted; vector and scalar cycles follow from the program and its latencies."""
    cycles = time_program(published_program(2048), fitted()).cycles
    published = paper_results.CYCLES_AT_2048
    assert cycles.vector == published["vector"]
    assert cycles.scalar == pytest.approx(published["scalar"], rel=0.01)
    assert cycles.memory == pytest.approx(published["memory"], rel=1e-9)
    assert cycles.total == pytest.approx(sum(published.values()), rel=0.01)


def test_the_published_bandwidth_and_shares():
    timing = time_program(published_program(2048), fitted())
    assert timing.hbm_bytes / timing.cycles.total == pytest.approx(67.7, rel=0.01)  # GB/s at 1 GHz
    shares = {"V_RED_SUM": 0.257, "V_RED_MAX_IDX": 0.1285, "V_EXP_V": 0.0321}
    for name, share in shares.items():
        cycles = timing.instructions[name] * INSTRUCTION_SET[name].calibrated
        assert cycles / timing.cycles.total == pytest.approx(share, rel=0.01)


def unrolled(nodes) -> Iterator[Instruction]:
    for node in nodes:
        if isinstance(node, Loop):
            yield Instruction("C_LOOP_START", (node.counter, node.count))
            for _ in range(node.count):
                yield from unrolled(node.body)
            yield Instruction("C_LOOP_END", (node.counter,))
        else:
            yield node


def walked(program: SamplerProgram, config: TimingConfig) -> tuple[float, Counter[str]]:
    """The time, instruction by instruction."""
    now, free, arrivals, names = 0.0, 0.0, [], Counter()
    vlen = program.engine.vlen
    for instruction in unrolled(nested(program.instructions)):
        spec = INSTRUCTION_SET[instruction.name]
        names[instruction.name] += 1
        now += spec.cycles(config.column, vlen, instruction.operand("length"))
        if spec.unit != "memory":
            continue
        size = instruction.operands[-1] * config.row_bytes(vlen)
        if instruction.name == "H_PREFETCH_V":
            now += config.hbm.latency + config.hbm.transfer(size)
        elif instruction.name == "H_START_V":
            free = max(now, free) + config.hbm.transfer(size)
            arrivals.append(free + config.hbm.latency)
        else:
            assert instruction.operands == (0,)
            now = max([now, *arrivals])
            arrivals = []
    return now, names


@pytest.mark.parametrize("column", ["calibrated", "behavioural", "tree"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("per_kib", [0.1, 30])
def test_summing_up_loops_changes_nothing(mode, column, per_kib):
    sampling = Sampling(batch=2, rows=6, vocab=500, steps=2, mode=mode, chunk_rows=5, threshold=0.5)
    program = compile_sampler(sampling, EngineConfig(vlen=32))
    config = TimingConfig(hbm=Hbm(20.0, per_kib), column=column)
    timing = time_program(program, config)
    now, names = walked(program, config)
    assert timing.cycles.total == pytest.approx(now)
    assert timing.instructions == names


def test_edge_mode_reads_twice_and_one_pass_once():
    traffic = {mode: time_program(published_program(2048, mode), fitted()) for mode in MODES}
    once = traffic["performance"].hbm_bytes
    assert traffic["edge"].hbm_bytes == 2 * once
    assert traffic["one_pass"].hbm_bytes == once
    assert traffic["one_pass"].cycles.total < traffic["edge"].cycles.total
    assert traffic["one_pass_overlapped"].cycles.total < traffic["performance"].cycles.total


@given(st.sampled_from(MODES), st.integers(4, 9), st.floats(0, 50), st.floats(0, 50))
def test_time_is_never_below_what_compute_and_memory_need(mode, log_vlen, latency, per_kib):
    vlen = 2**log_vlen
    sampling = Sampling(batch=1, rows=4, vocab=300, mode=mode)
    program = compile_sampler(sampling, EngineConfig(vlen=vlen))
    config = TimingConfig(hbm=Hbm(latency, per_kib))
    timing = time_program(program, config)
    computed = time_program(program, TimingConfig(hbm=Hbm(0, 0))).cycles.total
    assert timing.cycles.total >= max(computed, config.hbm.transfer(4 * 300)) * (1 - 1e-9)


def test_scales_of_mx_are_counted_as_published_or_in_full():
    assert fitted().row_bytes(2048) == 2048 + 64
    assert fitted(scale_traffic="full").row_bytes(2048) == 2048 + 256
    assert fitted(scale_traffic="full").row_bytes(64) == fitted().row_bytes(64) == 128
    assert fitted(logits="bfloat16").row_bytes(512) == 1024


def test_the_gpu_is_slow_where_it_is_not_fused():
    """The published 2.51 ms is the unfused sampler's traffic; a fused one is 15 times faster."""
    unfused, fused = (
        paper_results.roofline_ms("a6000", sampler, LOGITS)
        for sampler in ("unfused_float64", "fused_bfloat16")
    )
    assert unfused == pytest.approx(paper_results.A6000_MS, rel=0.01)
    assert unfused / fused == pytest.approx(15)


@pytest.mark.parametrize("vlen", [512, 1024, 2048])
def test_area_and_power_are_those_of_the_table(vlen):
    power = paper_results.power_mw(vlen)
    assert paper_results.area_mm2(vlen) == pytest.approx(paper_results.AREA_MM2[vlen], rel=0.003)
    assert power == pytest.approx(paper_results.POWER_MW[vlen], rel=0.003)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(column="fast"), "column is 'fast'; allowed: 'calibrated', 'behavioural', 'tree'"),
        (dict(logits="fp8"), "logits is 'fp8'; allowed: 'float32'"),
        (dict(scale_traffic="none"), "scale_traffic is 'none'; allowed: 'published', 'full'"),
        (dict(hbm=Hbm(-1, 0)), "hbm is Hbm"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ValueError, match=message):
        TimingConfig(**{"hbm": Hbm(0, 0), **settings})
