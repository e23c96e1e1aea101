"""For tests of rules and windows: a toy model in integers, and checks that each is put through.

    import llada_jax as lj

    lj.testing.check_rule(MyRule(threshold=0.8))

What the toy predicts depends, exactly, on every token that a row may see. It is fast to compile,
has no rounding, and obeys the rows' visibility and the cache like a model.
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
"""Between these lies most of what the toy is sure of: thresholds in tests belong there."""


def forward_rows(salt: Any, rows: Rows, cache: KVCache) -> RowsOut:
    """Returns states whose first two numbers are a sum over what a row sees, and its position.

    The others are features of the sum, so that rules that read states get a realistic width.
    """
    spoken = (rows.tokens * 31 + rows.positions * 17 + salt) % 101
    keys = spoken[None, :, :, None, None]
    from_cache = jnp.where(rows.sees_cache, cache.keys[0, :, None, :, 0, 0], 0)
    from_rows = jnp.where(rows.sees_rows, spoken[:, None, :], 0)
    heard: Any = sum(part.sum(-1, dtype=jnp.int32) for part in (from_cache, from_rows)) % 1009
    frequency = jnp.arange(1, TOY.width - 1, dtype=jnp.float32)[None, None, :]
    features = jnp.sin(jnp.float32(heard)[..., None] * frequency)
    exact = jnp.stack([heard, rows.positions], axis=-1).astype(jnp.float32)
    return RowsOut(jnp.concatenate([exact, features], axis=-1), keys, keys)  # pyright: ignore


def toy_logits(salt: Any, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Returns logits between 0 and 6."""
    exact = hidden[..., :2].astype(jnp.int32)
    heard, position = exact[..., :1], exact[..., 1:]
    ids = along_last(jnp.arange(VOCAB, dtype=jnp.int32), hidden)
    mixed = (heard * 7 + position * 29 + salt * 3 + 11) * (ids * ids + ids * 13 + 5)
    return (mixed % 1013).astype(jnp.float32) * (6.0 / 1013)


def score_rows(salt: Any, hidden: Float[Array, "B C D"], keys: Any, rules: ScoreRules) -> Scores:
    """Returns scores of all logits at once."""
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
    """Returns what is asked of all logits at once."""
    rows, running = start_head(hidden, asked, rules)
    logits = toy_logits(salt, rows).astype(rules.confidence_dtype)
    return finish_head(absorb_head(running, logits, 0, keys, asked, rules))


def empty_cache(salt: Any, batch: int, length: int) -> KVCache:
    """Returns a cache of integers."""
    shape = (1, batch, length, 1, 1)
    return KVCache(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))


@lru_cache
def _toy(rules: ScoreRules) -> Denoiser:
    return Denoiser(
        forward_rows,
        partial(score_rows, rules=rules),
        empty_cache,
        measure_rows=partial(measure_rows, rules=rules),
    )


def toy_denoiser(config: SamplerConfig) -> Denoiser:
    """Returns the toy with the rules of `config` in its scores; the same one for the same rules."""
    return _toy(score_rules(config))


def toy_decode(
    prompts: Sequence[Any],
    config: SamplerConfig,
    model: ModelConfig = TOY,
    salt: int = 0,
    **options: Any,
) -> Result:
    """Decodes with the toy. Each `salt` is another model; `options` are those of `decode`."""
    config = with_ids(config, model)
    options.setdefault("trace", True)
    return decode(toy_denoiser(config), jnp.int32(salt), model, prompts, config, **options)


def check_rule(rule: Any, *, salts: Sequence[int] = (1, 2, 3), **settings: Any) -> None:
    """Checks what every rule owes, on the toy: it leaves no mask, touches no prompt, commits a
    token a forward at the least, decodes a batch in the compiled loop as it decodes each prompt
    alone in the host's, and compiles once for all its numbers.

    Args:
      rule: a rule with numbers that fit the toy's confidences (`CONFIDENCES`).
      salts: toys to decode with.
      settings: of the sampler, for example `block_length=24`.

    Raises:
      ValueError: the rule's own, for wrong shapes and NaN.
      AssertionError: what it does wrong, with the rule's name.
    """
    _check_policy(rule, {"rule": rule, "cache": "blockwise", **settings}, salts)


def check_window(window: Any, *, salts: Sequence[int] = (1, 2, 3), **settings: Any) -> None:
    """Checks what every window owes, on the toy, as `check_rule` does for rules.

    Args:
      window: A window with numbers that fit 24 generated tokens in blocks of 8.
      salts: Toys to decode with.
      settings: Flat settings of the sampler, for example `threshold=0.2`.

    Raises:
      AssertionError: What it does wrong, with the window's name.
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
            steps, own = together.trace.commit_steps()[row], alone.trace.commit_steps()[0]
            assert np.array_equal(together.generated[row], alone.generated[0]) and np.array_equal(
                steps[: len(own)], own
            ), f"{name}: prompt {row} decodes otherwise in a batch and the compiled loop"
    moved = jax.tree.map(lambda number: number * 0.9, policy)
    same = jax.tree.structure(moved) == jax.tree.structure(policy)
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
