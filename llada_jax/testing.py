"""Checks for custom rules and windows, on a toy model.

    import llada_jax as lj

    lj.testing.check_rule(MyRule(threshold=0.8))

The toy's predictions are integer functions of all tokens that a row may see. So it compiles fast,
has no rounding, and reveals every mistake in visibility or caching as a changed prediction.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llada_jax.api.denoisers import score_rules
from llada_jax.config import ModelConfig, require
from llada_jax.model.head import ScoreRules, gumbel_noise, without
from llada_jax.model.measures import absorb_head, finish_head, start_head
from llada_jax.model.quantize import along_last
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Event
from llada_jax.types import Denoiser, HeadOut, HeadRequest, KVCache, Rows, RowsOut, Scores

VOCAB, MASK, EOS, EOT = 24, 23, 22, 21
TOY = ModelConfig(
    family="toy", vocab_size=VOCAB, width=64, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=2,
    ffn_width=1, rope_theta=1.0, norm_eps=1e-6, max_length=96, mask_id=MASK, eos_id=EOS,
    eot_id=EOT,
)  # fmt: skip
PROMPTS = ([3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7])
CONFIDENCES = (0.15, 0.3)
"""Most confidences of the toy are between these; use them for thresholds in tests."""


def forward_rows(salt: Any, rows: Rows, cache: KVCache) -> RowsOut:
    """Returns states with a hash of the visible tokens and the position as their first numbers.

    The others are features of the hash, so that rules that read states get a realistic width.
    """
    own = (rows.tokens * 31 + rows.positions * 17 + salt) % 101
    keys = (own[:, :, None, None],)
    from_cache = jnp.where(rows.sees_cache, cache.keys[0][..., 0], 0)
    from_rows = jnp.where(rows.sees_rows, own[:, None, :], 0)
    visible: Any = sum(part.sum(-1, dtype=jnp.int32) for part in (from_cache, from_rows)) % 1009
    frequency = jnp.arange(1, TOY.width - 1, dtype=jnp.float32)[None, None, :]
    features = jnp.sin(jnp.float32(visible)[..., None] * frequency)
    exact = jnp.stack([visible, rows.positions], axis=-1).astype(jnp.float32)
    return RowsOut(jnp.concatenate([exact, features], axis=-1), keys, keys)  # pyright: ignore


def toy_logits(salt: Any, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Returns pseudorandom logits between 0 and 6, from the states' hash and position."""
    exact = hidden[..., :2].astype(jnp.int32)
    visible, position = exact[..., :1], exact[..., 1:]
    ids = along_last(jnp.arange(VOCAB, dtype=jnp.int32), hidden)
    mixed = (visible * 7 + position * 29 + salt * 3 + 11) * (ids * ids + ids * 13 + 5)
    return (mixed % 1013).astype(jnp.float32) * (6.0 / 1013)


def score_rows(salt: Any, hidden: Float[Array, "B C D"], keys: Any, rules: ScoreRules) -> Scores:
    """Scores rows from all logits at once, without streaming."""
    logits = toy_logits(salt, hidden).astype(rules.confidence_dtype)
    logits = noisy = without(logits, rules.forbidden)
    if keys is not None:
        noise = gumbel_noise(keys, 0, VOCAB, rules.noise_dtype)
        noisy = logits + rules.temperature * noise.astype(logits.dtype)
    token = jnp.argmax(noisy, axis=-1).astype(jnp.int32)
    share = jax.nn.softmax(without(logits, rules.discounted), axis=-1)
    confidence = jnp.take_along_axis(share, token[..., None], axis=-1)[..., 0]
    entropy = -jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1)), 0).sum(-1)
    best = jax.lax.top_k(share, 2)[0]
    return Scores(token, confidence, entropy, best[..., 0] - best[..., 1])


def measure_rows(
    salt: Any, hidden: Float[Array, "B C D"], keys: Any, asked: HeadRequest, rules: ScoreRules
) -> HeadOut:
    """Measures rows from all logits at once, without streaming."""
    rows, running = start_head(hidden, asked, rules)
    logits = toy_logits(salt, rows).astype(rules.confidence_dtype)
    return finish_head(absorb_head(running, logits, 0, keys, asked, rules))


def empty_cache(salt: Any, batch: int, length: int) -> KVCache:
    """Returns a cache of integers, with one number for a key."""
    zeros = partial(jnp.zeros, (batch, 1, length, 1), jnp.int32)
    return KVCache((zeros(),), (zeros(),))


@lru_cache
def _toy(rules: ScoreRules) -> Denoiser:
    return Denoiser(
        forward_rows,
        partial(score_rows, rules=rules),
        empty_cache,
        measure_rows=partial(measure_rows, rules=rules),
    )


def toy_denoiser(config: SamplerConfig) -> Denoiser:
    """Returns the toy with the score rules of `config`; cached, so that programs are reused."""
    return _toy(score_rules(config))


def toy_decode(
    prompts: Sequence[Any],
    config: SamplerConfig,
    model: ModelConfig = TOY,
    salt: int = 0,
    **options: Any,
) -> Result:
    """Decodes with the toy. Each `salt` is a different model; `options` are those of `decode`."""
    config = with_ids(config, model)
    options.setdefault("trace", True)
    return decode(toy_denoiser(config), jnp.int32(salt), model, prompts, config, **options)


def check_rule(rule: Any, *, salts: Sequence[int] = (1, 2, 3), **settings: Any) -> None:
    """Checks the requirements for every rule, on the toy: it leaves no masks, does not change
    prompts, commits at least one token per forward pass, decodes a batch in the compiled loop like
    each prompt alone in the host's loop, and needs no new compilation if its numbers change.

    Args:
      rule: A rule with numbers that suit the toy's confidences (`CONFIDENCES`).
      salts: Toys to decode with.
      settings: Settings of the sampler, for example `block_length=24`.

    Raises:
      ValueError: The rule has wrong shapes or NaN.
      AssertionError: Names the rule and the violated requirement.
    """
    _check_policy(rule, {"rule": rule, "cache": "blockwise", **settings}, salts)


def check_window(window: Any, *, salts: Sequence[int] = (1, 2, 3), **settings: Any) -> None:
    """Checks the requirements for every window, on the toy, like `check_rule` for rules.

    Args:
      window: A window with numbers that fit 24 generated tokens in blocks of 8.
      salts: Toys to decode with.
      settings: Flat settings of the sampler, for example `threshold=0.2`.

    Raises:
      AssertionError: Names the window and the violated requirement.
    """
    _check_policy(window, {"threshold": CONFIDENCES[0], **settings, "window": window}, salts)


def _check_policy(policy: Any, settings: dict[str, Any], salts: Sequence[int]) -> None:
    config = SamplerConfig.from_flat({"gen_length": 24, "block_length": 8} | settings)
    name = type(policy).__name__
    require(bool(salts), "salts is empty; allowed: one or more")
    for salt in salts:
        together = toy_decode(PROMPTS, config, salt=salt, loop="compiled")
        _check_run(name, together, config)
        for row, prompt in enumerate(PROMPTS):
            alone = toy_decode([prompt], config, salt=salt, loop="host")
            steps, alone_steps = together.trace.commit_steps()[row], alone.trace.commit_steps()[0]
            assert np.array_equal(together.generated[row], alone.generated[0]) and np.array_equal(
                steps[: len(alone_steps)], alone_steps
            ), f"{name}: prompt {row} decodes otherwise in a batch and the compiled loop"
    changed = jax.tree.map(lambda number: number * 0.9, policy)
    same = jax.tree.structure(changed) == jax.tree.structure(policy)
    assert same, f"{name}: a sweep compiles anew"


def _check_run(name: str, result: Result, config: SamplerConfig) -> None:
    for row, prompt in enumerate(PROMPTS):
        canvas = result.tokens[row, -len(prompt) - config.gen_length :]
        assert canvas[: len(prompt)].tolist() == list(prompt), f"{name}: a prompt has changed"
    assert not (result.tokens == MASK).any(), f"{name}: masks are left"
    if config.rule.may_wait or config.rule.waits or config.rule.edit_steps:
        return
    commits = result.trace.count(Event.COMMIT) + result.trace.count(Event.FILL)
    useful = np.arange(len(commits))[:, None] < result.nfe
    assert (commits[useful] > 0).all(), f"{name}: a forward committed nothing"
