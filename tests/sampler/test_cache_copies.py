"""The compiled loop writes its cache in place: no program copies a whole cache in a step."""

import re

import jax
import pytest

import llada_jax as lj
from llada_jax.config import ModelConfig
from llada_jax.model.params import init_params
from llada_jax.sampler import generate, loops

SHAPE = ModelConfig(
    family="llada", vocab_size=64, width=16, n_layers=2, n_heads=2, n_kv_heads=2, head_dim=8,
    ffn_width=32, rope_theta=1e4, norm_eps=1e-5, max_length=64, mask_id=63,
)  # fmt: skip
WINDOWS = {
    "none": {"cache": "none"},
    "prefix": {"cache": "prefix", "threshold": 0.9},
    "dual": {"cache": "dual", "threshold": 0.9},
    "blockwise": {"cache": "blockwise", "threshold": 0.9},
    "multi_block": {"cache": "blockwise", "window": "multi_block", "threshold": 0.9},
    "lossless": {"cache": "blockwise", "window": "multi_block", "lossless": True},
    "llada_cpp": {"cache": "blockwise", "window": "multi_block", "accept": "staged"},
}


class Compiled(Exception):
    """Carries the optimized program of a run that does not take place."""


QUICK = ("dual", "llada_cpp")


CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WINDOWS]


@pytest.mark.parametrize("window", CASES)
def test_no_step_copies_a_whole_cache(window, monkeypatch):
    def compile_only(*args):
        raise Compiled(loops._compiled.lower(*args).compile().as_text())

    monkeypatch.setattr(generate, "compiled_loop", compile_only)
    model = lj.Model(SHAPE, init_params(SHAPE, jax.random.key(0)), None)
    config = lj.SamplerConfig(gen_length=16, block_length=8, **WINDOWS[window])
    with pytest.raises(Compiled) as compiled:
        lj.generate(model, [list(range(8))], config)
    (program,) = compiled.value.args
    whole = r"= f32\[2,1,32,2,8\]\S* "
    assert re.search(whole + r"parameter\(", program) or window == "none", "a cache of 32 positions"
    assert not re.findall(whole + r"copy(?:-start)?\(", program)
