"""The compiled loop's program: it copies no layer's cache and does not grow with the layers."""

import re
from functools import partial

import jax
import pytest

import llada_jax as lj
from llada_jax.api.denoisers import denoiser_for, score_rules
from llada_jax.config import ModelConfig
from llada_jax.model.params import init_params
from llada_jax.sampler.generate import checked_run
from llada_jax.sampler.prompts import with_ids

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
    "llada_cpp": {"cache": "blockwise", "window": "multi_block", "accept": "staged"},
    "wide": {"cache": "dual", "confidence_dtype": "float64"},
}
WIDE = re.compile(r"tensor<[\dx]+xf64>")


def lowered(window: str, n_layers: int = 2, block_length: int = 8) -> jax.stages.Lowered:
    """The loop's program, lowered from shapes only."""
    shape = SHAPE.replace(n_layers=n_layers)
    config = lj.SamplerConfig.from_flat(
        **{"gen_length": 16, "block_length": block_length, **WINDOWS[window]}
    )
    config = with_ids(config, shape)
    denoiser = denoiser_for(shape, score_rules(config))
    params = jax.eval_shape(partial(init_params, shape), jax.random.key(0))
    run = checked_run(denoiser, params, shape, [list(range(8))], config)
    with run.precision():
        return run.lowered()


QUICK = ("dual",)


CASES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in WINDOWS
    if name != "wide"
]


@pytest.mark.parametrize("window", CASES)
def test_no_step_copies_a_layers_cache(window):
    """Also inside of fused kernels."""
    program = lowered(window).compile().as_text()
    whole = r"= f32\[1,2,32,8\]\S* "
    assert re.search(whole + r"parameter\(", program) or window == "none", "a cache of 32 positions"
    copies = re.findall(whole + r"(?:copy|copy-start|slice)\(.*", program)
    # A forward of the whole canvas has as many rows, which it transposes for attention.
    assert [line for line in copies if "mix_heads)/transpose" not in line] == []


@pytest.mark.parametrize("window", CASES)
def test_float64_is_used_only_if_requested(window):
    """A parity preset's request turns on 64-bit types for the whole program."""
    with jax.enable_x64(True):
        program = lowered(window)
    assert not WIDE.search(program.as_text())


def test_the_request_only_reaches_the_head():
    program = lowered("wide").as_text()
    assert WIDE.search(program)
    layer = program.partition("func.func private @run_layer(")[2].partition("func.func")[0]
    assert "dot_general" in layer and "f64" not in layer


@pytest.mark.parametrize(
    ("window", "block_length", "choices"), [("none", 8, 0), ("none", 16, 1), ("dual", 16, 2)]
)
def test_a_step_branches_only_if_a_size_varies(window, block_length, choices):
    """Branches choose sizes of the head (for 8 and 16 rows) and of the forward."""
    assert lowered(window, 2, block_length).as_text().count("stablehlo.case") == choices


def test_sixteen_layers_make_a_program_hardly_longer_than_two():
    """Equal layers are calls of one function."""
    short, long = (lowered("llada_cpp", n).as_text().count("\n") for n in (2, 16))
    assert short < long < 1.2 * short
