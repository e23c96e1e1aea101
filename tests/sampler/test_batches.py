"""A batch decodes each row as alone, even if windows pass block ends and tokens change."""

from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import Result
from llada_jax.sampler.trace import Event
from tests.sampler.toy import toy_decode

pytestmark = pytest.mark.slow  # quick tests of each policy compare batches on the toy

GOLDEN = Path(__file__).parents[1] / "goldens" / "llada-gqa"
OF_GOLDEN = {"mask_id": 319, "eos_id": 318}
TOY_PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
PROMPTS = [[29, 259, 9, 163, 26], [92, 145], [128, 122, 11, 4, 39, 5, 202, 159, 195]]
SHORTEST = 1  # needs the most padding in a batch
SHOWN = {
    "multi_block": (Event.AHEAD,),
    "staged": (Event.REPLACE, Event.PROMOTE),
    "llada_cpp": (Event.AHEAD, Event.REPLACE, Event.PROMOTE),
}
"""What each policy must actually do in the run of a single row."""


def sampler(policy: str, threshold: float, **stages: float) -> SamplerConfig:
    """Thresholds around the confidences of an untrained model."""
    lengths = dict(gen_length=16, block_length=8, steps=16)
    settings = {"multi_block": {"threshold": threshold}}.get(policy, stages)
    return SamplerConfig.preset(policy, **lengths, **settings)


@pytest.mark.parametrize("policy", SHOWN)
def test_the_compiled_loop(policy):
    config = sampler(policy, 0.24, theta_visible=0.2, theta_stable=0.3)
    together = toy_decode(TOY_PROMPTS, config, salt=1, seed=[11, 22, 33], loop="compiled")
    alone = toy_decode([TOY_PROMPTS[SHORTEST]], config, salt=1, seed=[22], loop="compiled")
    assert_row_is_alone(policy, together, alone)


@pytest.mark.parametrize("policy", SHOWN)
def test_a_model_in_floats(policy):
    assert_same_in_floats(policy, "host")


@pytest.mark.parametrize("policy", SHOWN)
def test_a_model_in_floats_and_the_compiled_loop(policy):
    assert_same_in_floats(policy, "compiled")


def assert_same_in_floats(policy: str, loop: str) -> None:
    config = sampler(policy, 0.4, theta_visible=0.28, theta_stable=0.4).replace(**OF_GOLDEN)
    model = lj.load(GOLDEN)
    together = lj.generate(model, PROMPTS, config, loop=loop, trace=True)
    alone = lj.generate(model, [PROMPTS[SHORTEST]], config, loop=loop, trace=True)
    assert_row_is_alone(policy, together, alone)


def assert_row_is_alone(policy: str, together: Result, alone: Result) -> None:
    for event in SHOWN[policy]:
        assert alone.trace.count(event).sum() > 0, f"the case shows no {event.name}"
    np.testing.assert_array_equal(together.generated[SHORTEST], alone.generated[0])
    assert together.nfe[SHORTEST] == alone.nfe[0]
    steps, own = together.trace.commit_steps()[SHORTEST], alone.trace.commit_steps()[0]
    np.testing.assert_array_equal(steps[: len(own)], own)
