"""The compiled loop's program: it copies no layer's cache and does not grow with the layers."""

import re
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import pytest

import llada_jax as lj
from llada_jax.api.denoisers import denoiser_for, score_rules
from llada_jax.config import ModelConfig
from llada_jax.model.layers import MOST_SCORES
from llada_jax.model.params import init_params
from llada_jax.sampler.generate import DecodingRun, checked_run
from llada_jax.sampler.loops import program_of
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


def run_of(shape: ModelConfig, prompt_length: int, **flat: Any) -> DecodingRun:
    """A run whose parameters are shapes only."""
    config = with_ids(lj.SamplerConfig.from_flat(**flat), shape)
    denoiser = denoiser_for(shape, score_rules(config))
    params = jax.eval_shape(partial(init_params, shape), jax.random.key(0))
    return checked_run(denoiser, params, shape, [[1] * prompt_length], config)


def lowered(window: str, n_layers: int = 2, block_length: int = 8) -> jax.stages.Lowered:
    """The loop's program, lowered from shapes only."""
    settings = {"gen_length": 16, "block_length": block_length, **WINDOWS[window]}
    run = run_of(SHAPE.replace(n_layers=n_layers), 8, **settings)
    with run.precision():
        return run.lowered()


LONG = SHAPE.replace(head_dim=64, max_length=4096)
FLOATS = re.compile(r"^.* = \(?(?:bf|f)\d+\[([\d,]+)\]\S* (?:.*\) )?([\w-]+)\(.*$", re.MULTILINE)
REFERENCES = "parameter get-tuple-element tuple bitcast while conditional fusion call".split()


def long_program(window: str, block_length: int) -> str:
    """The compiled loop on a canvas of `LONG`, whose forwards have the rows of one block or of two:
    a forward of the whole canvas has as many rows as the cache, and transposes them. It records two
    steps, because all of them would have more numbers than a layer's cache."""
    settings = {"gen_length": 2 * block_length, "block_length": block_length, **WINDOWS[window]}
    run = run_of(LONG, LONG.max_length - 2 * block_length, **settings)
    decoding = replace(run.decoding, buckets=(block_length, 2 * block_length), max_steps=2)
    with run.precision():
        state = jax.eval_shape(partial(run.state, [0]))
        return program_of(decoding, state).lower(decoding, state, 1, 2).compile().as_text()


QUICK = ("dual",)


CASES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in WINDOWS
    if name != "wide"
]


def check_that_rows_are_written_in_place(program: str) -> None:
    """No operation, also inside of fused kernels, makes half as many floats as a layer has cached
    keys, in any shape and layout, except the writes of the rows."""
    half = LONG.n_kv_heads * LONG.max_length * LONG.head_dim // 2
    made = [
        (line[2], line[0])
        for line in FLOATS.finditer(program)
        if prod(map(int, line[1].split(","))) >= half and line[2] not in REFERENCES
    ]
    assert [line for name, line in made if name != "scatter"] == []
    assert len(made) == 2 * LONG.n_layers * 2, "keys and values of each layer, in two branches"


@pytest.mark.parametrize("window", CASES[1:])
def test_no_step_copies_a_layers_cache(window):
    check_that_rows_are_written_in_place(long_program(window, 8))


def test_attention_in_blocks_copies_no_layers_cache():
    assert 64 * (LONG.max_length + 64) > MOST_SCORES
    check_that_rows_are_written_in_place(long_program("dual", 64))


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
