"""Footprints are the published table's, and what does not fit is refused with numbers."""

import pytest

from llada_jax.sampling_engine.sampler_program import compile_sampler, memory_map_of
from llada_jax.sampling_engine.sampling import EngineConfig, Sampling

PAPER = dict(batch=16, rows=32, vocab=126464)


@pytest.mark.parametrize("vlen", [512, 1024, 2048])
def test_the_published_case_fits_the_published_memories(vlen):
    engine = EngineConfig(vlen=vlen)
    memory_map = memory_map_of(Sampling(**PAPER), engine)
    logits = 32 * -(-126464 // vlen) * vlen * 2
    assert memory_map.logits_rows * vlen * 2 == logits
    assert memory_map.words["vector"] * vlen * 2 == logits + 3 * 16 * vlen * 2 <= 8 << 20
    assert memory_map.words["int"] * 4 <= 8 << 10
    assert memory_map.words["fp"] <= engine.words("fp") == vlen


def test_streaming_needs_memory_for_a_chunk_only():
    engine = EngineConfig(vlen=512, vector_bytes=64 << 10)
    for mode in ("edge", "one_pass"):
        assert memory_map_of(Sampling(**PAPER, mode=mode), engine).logits_rows == 4
    with pytest.raises(ValueError, match=r"a performance program needs 7,952 words of vector"):
        memory_map_of(Sampling(**PAPER), engine)


@pytest.mark.parametrize(
    ("sampling", "engine", "message"),
    [
        (dict(rows=33), dict(vlen=32), r"rows is 33; allowed: up to vlen \(32\)"),
        (dict(rows=32), dict(vlen=32), r"needs 33 words of fp memory \(132 bytes\); allowed: up"),
        (dict(batch=40, rows=30), dict(vlen=64, int_bytes=4096), r"needs 2,440 words of int"),
        (dict(vocab=0), {}, "vocab is 0; allowed: 1 or more"),
        (dict(mode="cloud"), {}, "mode is 'cloud'; allowed: 'performance', 'edge'"),
        ({}, dict(vlen=100), "vlen is 100; allowed: a power of two from 8 on"),
        ({}, dict(vector_format="int8"), "vector_format is 'int8'; allowed: 'bfloat16'"),
        ({}, dict(vector_bytes=0), "vector_bytes is 0; allowed: 1 or more"),
        ({}, dict(fp_words=0), "fp_words is 0; allowed: 1 or more"),
    ],
)
def test_bad_input(sampling, engine, message):
    with pytest.raises(ValueError, match=message):
        settings = Sampling(**{"batch": 1, "rows": 4, "vocab": 100, "mode": "edge", **sampling})
        compile_sampler(settings, EngineConfig(**engine))
