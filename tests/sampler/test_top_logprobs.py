"""The top tokens of a position come from the forward that committed its token."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Event
from tests.sampler.toy import CONFIG, Worker, toy_decode, toy_denoiser

PROMPTS = [[3, 1, 4, 1, 5], [9, 2]]
SIZES = {"gen_length": 24, "block_length": 8, "eos_early_stop": False}
SLOW = pytest.mark.slow


def assert_best_were_chosen(result):
    """Each position has the token that a forward last chose there, as the best of its top ones."""
    trace, chosen = result.trace, {}
    for at in np.flatnonzero(np.isin(trace.event_kind, (Event.COMMIT, Event.REPLACE))):
        position = trace.event_row[at], trace.event_position[at]
        chosen[position] = trace.event_token[at], trace.event_confidence[at]
    for (row, position), (token, confidence) in chosen.items():
        top, at = result.top_logprobs[row], position - len(PROMPTS[row])
        assert top.ids[at, 0] == token and np.isin(top.ids[at], token).sum() == 1
        np.testing.assert_allclose(np.exp(top.logprobs[at, 0]), confidence, rtol=1e-5)
    assert len(chosen) == len(PROMPTS) * SIZES["gen_length"]


@pytest.mark.parametrize(
    ("loop", "settings"),
    [
        ("host", {"threshold": 0.3}),
        pytest.param("host", {"name": "multi_block"}, marks=SLOW),
        pytest.param("host", {"name": "wino"}, marks=SLOW),
        pytest.param("host", {"name": "token_edit"}, marks=SLOW),
        pytest.param("compiled", {"name": "llada_cpp"}, marks=SLOW),
        pytest.param("host", {"name": "llada_cpp", "refresh": "worker"}, marks=SLOW),
    ],
)
def test_the_best_of_the_top_tokens_were_chosen(loop, settings):
    with Worker() as worker:
        config = SamplerConfig.preset(**{"name": "blockwise", **SIZES, **settings})
        options = {"loop": loop, "top_logprobs": 3, "worker": config.has_worker and worker}
        assert_best_were_chosen(toy_decode(PROMPTS, config, salt=5, **options))


def unmeasured(top_logprobs, **settings):
    """Decodes with a head that only predicts, like the heads of exports."""
    config = with_ids(SamplerConfig.preset("blockwise", **SIZES, **settings), CONFIG)
    denoiser = replace(toy_denoiser(config), measure_rows=None)
    options = {"loop": "host", "trace": True, "top_logprobs": top_logprobs}
    return decode(denoiser, jnp.int32(5), CONFIG, PROMPTS, config, **options)


ALONE = " and the backend reports the predicted token alone; allowed: 0, or 1 at temperature 0"


@pytest.mark.parametrize(
    ("count", "temperature", "rest"),
    [(2, 0.0, ALONE), (1, 0.5, ALONE), (-1, 0.0, "; allowed: 0 or more")],
)
def test_other_counts_are_refused(count, temperature, rest):
    with pytest.raises(ValueError, match=f"^top_logprobs is {count}{rest}$"):
        unmeasured(count, temperature=temperature)


@SLOW
def test_a_backend_that_only_predicts_has_one():
    assert_best_were_chosen(unmeasured(1, threshold=0.3))
