"""A score that is no finite number stops its canvas, and the run says which, when and where."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.types import Denoiser
from tests.sampler.toy import CONFIG, MASK, forward_rows, toy_decode, toy_denoiser

LENGTH = 12
ONE_BY_ONE = SamplerConfig(gen_length=LENGTH, block_length=LENGTH, steps=LENGTH)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]


def poisoned(at: dict[int, int], kind: str = "confidence", value: float = np.nan) -> Denoiser:
    """The toy; the canvas whose prompt starts with a key gets a bad number in that forward.

    It commits a token a forward, so the masks that it feeds count them.
    """
    plain = toy_denoiser(with_ids(ONE_BY_ONE, CONFIG))

    def forward(salt, rows, cache):
        out = forward_rows(salt, rows, cache)
        masks = ((rows.tokens == MASK) & rows.live).sum(axis=1)
        bad = jnp.zeros(rows.tokens.shape, bool)
        for first, forward in at.items():
            here = (rows.tokens[:, 0] == first) & (masks == LENGTH - forward)
            bad |= here[:, None]
        mark = jnp.where(bad, value if kind == "hidden" else 1.0, 0.0)
        hidden = jnp.concatenate([out.hidden.astype(jnp.float32), mark[..., None]], axis=-1)
        return out._replace(hidden=hidden)

    def score(salt, hidden, keys):
        found = plain.score_rows(salt, hidden[..., :2].astype(jnp.int32), keys)
        if kind == "entropy":
            nothing = jnp.full_like(found.entropy, jnp.nan)
            return found._replace(entropy=nothing, margin=nothing)
        confidence = jnp.where(hidden[..., 2] == 1, value, found.confidence)
        return found._replace(confidence=confidence)

    return Denoiser(forward, score, plain.empty_cache)


def run(denoiser: Denoiser, prompts=PROMPTS, **options: Any):
    config = with_ids(ONE_BY_ONE, CONFIG)
    return decode(denoiser, jnp.int32(0), CONFIG, prompts, config, trace=True, **options)


@pytest.mark.parametrize("loop", ["compiled", "host"])
@pytest.mark.parametrize(("kind", "value"), [("confidence", np.nan), ("hidden", np.inf)])
def test_the_canvas_and_the_forward_are_named(loop: Any, kind: str, value: float) -> None:
    whole = run(poisoned({}), loop=loop)
    assert whole.trace is not None
    committed = whole.trace.commit_steps()[1, 2 : 2 + LENGTH]
    first_masked = 2 + int(np.flatnonzero(committed >= 3)[0])
    message = rf"infinite \(canvas 1: forward 3, position {first_masked}; all counted from 0\)"
    with pytest.raises(FloatingPointError, match=message):
        run(poisoned({9: 3}, kind, value), loop=loop)


@pytest.mark.parametrize("loop", ["compiled", "host"])
def test_every_bad_canvas_is_named(loop: Any) -> None:
    with pytest.raises(
        FloatingPointError, match=r"canvas 0: forward 5, position \d+; canvas 2: forward 0, pos"
    ):
        run(poisoned({3: 5, 6: 0}), loop=loop)


def test_a_bad_canvas_stops_and_the_others_go_on() -> None:
    seen: list[Any] = []
    with pytest.raises(FloatingPointError, match="canvas 0: forward 2"):
        run(poisoned({9: 2}), [PROMPTS[1]], loop="host", on_step=seen.append)
    assert [view.step for view in seen] == [0, 1, 2]
    seen.clear()
    with pytest.raises(FloatingPointError, match="canvas 1: forward 2"):
        run(poisoned({9: 2}), loop="host", on_step=seen.append)
    assert seen[-1].nfe.tolist() == [LENGTH, 3, LENGTH]


@pytest.mark.parametrize("loop", ["compiled", "host"])
def test_what_nobody_asked_for_may_be_nan(loop: Any) -> None:
    expected = toy_decode(PROMPTS, ONE_BY_ONE, loop=loop)
    for denoiser in (poisoned({}, "entropy"), poisoned({4: 0})):
        found = run(denoiser, loop=loop)
        assert found.trace is not None and found.trace.same_decoding(expected.trace)
        assert jax.tree.all(jax.tree.map(np.array_equal, found.generated, expected.generated))
