"""The greedy check against the sampler itself."""

from pathlib import Path

import pytest

import llada_jax as lj
from llada_jax.evaluation.greedy import decodes_greedily

GOLDENS = Path(__file__).parents[1] / "goldens"
PROMPT = list(range(20, 32))


@pytest.mark.parametrize("family", ["llada-gqa", "dream", "llada2-moe"])
def test_only_what_the_sampler_writes_is_greedy(family):
    model = lj.load(GOLDENS / family)
    block = model.config.block_length or 8
    prompt = (PROMPT * block)[: 2 * block]
    ids = {"mask_id": model.config.mask_id or 319}
    config = model.config.replace(**ids)
    sampler = lj.SamplerConfig(gen_length=2 * block, block_length=block, steps=2 * block, **ids)
    if model.config.block_length is None:
        sampler = sampler.replace(block_length=2 * block)
    answer = lj.generate(model, [prompt], sampler).generated[0].tolist()
    assert decodes_greedily(model.params, config, prompt, answer)
    for position in range(len(answer)):
        other = list(answer)
        other[position] = (other[position] + 1) % 300
        assert not decodes_greedily(model.params, config, prompt, other)


def test_refuses_what_likelihoods_refuse():
    model = lj.load("tiny")
    with pytest.raises(ValueError, match="answer 0 is empty"):
        decodes_greedily(model.params, model.config, PROMPT, [])
