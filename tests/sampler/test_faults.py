"""A non-finite score stops its canvas, and the error names canvas, forward and position."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.types import Denoiser, KVCache, Rows, RowsOut, Scores
from tests.sampler.toy import CONFIG, MASK, forward_rows, toy_decode, toy_denoiser

LENGTH = 12
ONE_BY_ONE = SamplerConfig.from_flat(gen_length=LENGTH, block_length=LENGTH, steps=LENGTH)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]


class Poison(NamedTuple):
    """Parameters of the toy. Numbers that a program gets, so that all cases share its compilation.

    A row of `at` is the first token of a prompt, and the forward in which its canvas goes bad.
    """

    at: np.ndarray
    mark: np.float32
    """Replaces the hidden state: 1 if `value` is to become the confidence."""
    value: np.float32
    entropy: np.float32
    """Added to every entropy and margin."""


def poisoned(at: dict[int, int], kind: str = "confidence", value: float = np.nan) -> Poison:
    """Maps a prompt's first token to the forward in which its canvas gets a bad number."""
    found = np.full((2, 2), -1, np.int32)
    found[: len(at)] = np.reshape(list(at.items()), (-1, 2))
    mark = value if kind == "hidden" else 1
    entropy = np.nan if kind == "entropy" else 0
    return Poison(found, *map(np.float32, (mark, value, entropy)))


def forward(poison: Poison, rows: Rows, cache: KVCache) -> RowsOut:
    """The toy commits one token per forward, so the number of masks gives the forward."""
    out = forward_rows(jnp.int32(0), rows, cache)
    masks = ((rows.tokens == MASK) & rows.live).sum(axis=1)
    first, number = poison.at[:, :1], poison.at[:, 1:]
    bad = ((rows.tokens[None, :, 0] == first) & (masks[None] == LENGTH - number)).any(axis=0)
    mark = jnp.where(bad[:, None, None], poison.mark, 0.0)
    mark = jnp.broadcast_to(mark, (*rows.tokens.shape, 1))
    return out._replace(hidden=jnp.concatenate([out.hidden.astype(jnp.float32), mark], axis=-1))


def score(poison: Poison, hidden: jax.Array, keys: Any) -> Scores:
    found = PLAIN.score_rows(jnp.int32(0), hidden[..., :-1], keys)
    confidence = jnp.where(hidden[..., -1] == 1, poison.value, found.confidence)
    spoilt = {name: getattr(found, name) + poison.entropy for name in ("entropy", "margin")}
    return found._replace(confidence=confidence, **spoilt)


PLAIN = toy_denoiser(with_ids(ONE_BY_ONE, CONFIG))
POISONED = Denoiser(forward, score, PLAIN.empty_cache)


def run(poison: Poison, prompts=PROMPTS, **options: Any):
    config = with_ids(ONE_BY_ONE, CONFIG)
    return decode(POISONED, poison, CONFIG, prompts, config, trace=True, **options)


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


@pytest.mark.parametrize("loop", ["compiled", pytest.param("host", marks=pytest.mark.slow)])
def test_scores_that_are_not_requested_may_be_nan(loop: Any) -> None:
    expected = toy_decode(PROMPTS, ONE_BY_ONE, loop=loop)
    for poison in (poisoned({}, "entropy"), poisoned({4: 0})):
        found = run(poison, loop=loop)
        assert found.trace is not None and found.trace.same_decoding(expected.trace)
        assert jax.tree.all(jax.tree.map(np.array_equal, found.generated, expected.generated))
