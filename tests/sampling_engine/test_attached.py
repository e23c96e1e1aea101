"""An engine on a phone: bound by its own cycles or by the phone's memory, and refused by name."""

import pytest

from llada_jax.sampling_engine.attached import AttachedConfig, AttachedEngine
from llada_jax.sampling_engine.cycles import TimingConfig, fitted_hbm, time_program
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.sampling import Sampling

VOCAB, ROWS = 20_000, 16


def seconds(gbps: float = 50, rows: int = ROWS, **settings) -> float:
    return AttachedEngine(AttachedConfig(**settings), VOCAB).scores(rows, gbps)[0]


def test_with_the_papers_memory_it_is_the_cycle_model():
    sampling = Sampling(batch=1, rows=ROWS, vocab=VOCAB, mode="one_pass")
    timing = TimingConfig(hbm=fitted_hbm(), logits="bfloat16", scale_traffic="full")
    cycles = time_program(compile_sampler(sampling, EngineConfig()), timing).cycles
    gbps = 1024 / fitted_hbm().per_kib
    assert seconds(gbps) == pytest.approx(cycles.ms / 1e3)


def test_each_logit_is_written_and_read():
    engine = AttachedEngine(AttachedConfig(vlen=8, logits="float32"), VOCAB)
    assert engine.scores(4, 50)[1] == 2 * 4 * VOCAB * 4


def test_a_faster_clock_helps_until_memory_bounds():
    slow, fast, fastest = (seconds(clock_ghz=clock) for clock in (0.5, 1, 1e6))
    assert slow > fast > fastest
    bytes_read = ROWS * 10 * 2048 * 2  # 20,000 logits are 10 vector rows
    assert fastest > bytes_read / 50e9
    assert seconds(gbps=25, clock_ghz=1e6) - fastest == pytest.approx(bytes_read / 50e9, rel=1e-3)


def test_overlap_hides_what_memory_takes():
    assert seconds(mode="one_pass_overlapped") < seconds(mode="one_pass") < seconds(mode="edge")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(clock_ghz=0), "clock_ghz is 0; allowed: above 0"),
        (dict(vlen=100), "vlen is 100; allowed: a power of two from 8 on"),
        (dict(mode="cloud"), "mode is 'cloud'; allowed: 'performance', 'edge'"),
        (dict(chunk_rows=0), "chunk_rows is 0; allowed: 1 or more"),
        (dict(logits="fp8"), "logits is 'fp8'; allowed: 'float32'"),
        (dict(column="best"), "column is 'best'; allowed: 'calibrated'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        AttachedConfig(**settings)


def test_rows_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"rows is 65; allowed: up to vlen \(64\)"):
        seconds(rows=65, vlen=64)
