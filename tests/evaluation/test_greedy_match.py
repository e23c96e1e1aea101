"""The greedy check against the sampler itself."""

from pathlib import Path

import pytest

import llada_jax as lj
from llada_jax.evaluation.greedy_match import decodes_greedily

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.mark.parametrize("family", ["dream", "llada2-moe"])
def test_only_what_the_sampler_writes_is_greedy(family):
    model = lj.load(GOLDENS / family)
    causal = family == "llada2-moe"
    ids = {"mask_id": 319, "block_length": 8 if causal else None}
    model = model._replace(config=model.config.replace(**ids))
    sampler = lj.SamplerConfig(gen_length=16, block_length=8 if causal else 16, steps=16)
    prompt = list(range(20, 36))
    (answer,) = lj.generate(model, [prompt], sampler).generated
    assert decodes_greedily(model.params, model.config, prompt, answer)
    for position in (0, 7, 8, 15):
        other = answer.copy()
        other[position] = (other[position] + 1) % 300
        assert not decodes_greedily(model.params, model.config, prompt, other)


def test_refuses_what_likelihoods_refuse():
    model = lj.load("tiny")
    with pytest.raises(ValueError, match="answer 0 is empty"):
        decodes_greedily(model.params, model.config, [5], [])
