"""The native backend gives the tokens of XLA's int8, for every kind of dense layer."""

import numpy as np
import pytest

import llada_jax as lj
from tests.backend.models import GQA, MOE, VARIANTS, quantized, random_params

pytest.importorskip("llvmlite", reason="needs the extra revision")

SAMPLER = lj.SamplerConfig.from_flat(gen_length=16, block_length=8, steps=8, cache="dual")
PROMPTS = [[5, 6, 7], [8, 9]]


def int8_model(config=GQA) -> lj.Model:
    return lj.Model(config, quantized(random_params(config), 8), None)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GQA, id="gqa", marks=pytest.mark.slow),
        pytest.param(VARIANTS["all"].replace(tied_embeddings=False), id="all"),
    ],
)
def test_tokens_equal_xla(config):
    model = int8_model(config)
    ours, theirs = (
        lj.generate(model, PROMPTS, SAMPLER, backend=backend, loop="host", trace=True)
        for backend in ("native", "xla")
    )
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    confidences = ours.trace.event_confidence, theirs.trace.event_confidence
    np.testing.assert_allclose(*confidences, rtol=0, atol=2e-3)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="backend is 'native', and the model is float32; allowed"):
        lj.generate(lj.Model(GQA, random_params(GQA), None), PROMPTS, SAMPLER, backend="native")
    with pytest.raises(ValueError, match="'native', and the model has experts; allowed: none"):
        lj.generate(int8_model(MOE), PROMPTS, SAMPLER, backend="native")
