"""A denoiser in integers: what it predicts depends, exactly, on every token that a row may see.

It is fast to compile, has no rounding, and obeys the rows' visibility and the cache like a model,
so the sampler is tested against it without one.
"""

import jax
import jax.numpy as jnp

from llada_jax.build.denoisers import score_rules
from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.model.head import ScoreRules, gumbel_noise
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.loops import Refresher
from llada_jax.sampler.prompts import with_ids
from llada_jax.types import Denoiser, KVCache, RowsOut, Scores

VOCAB, MASK, EOS, EOT = 24, 23, 22, 21
CONFIG = ModelConfig(
    family="toy", vocab_size=VOCAB, width=1, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=2,
    ffn_width=1, rope_theta=1.0, norm_eps=1e-6, max_length=96, mask_id=MASK, eos_id=EOS,
    eot_id=EOT,
)  # fmt: skip
BLOCK_CAUSAL = CONFIG.replace(block_length=8)


def forward_rows(salt, rows, cache):
    spoken = (rows.tokens * 31 + rows.positions * 17 + salt) % 101
    keys = spoken[None, :, :, None, None]
    from_cache = jnp.where(rows.sees_cache, cache.keys[0, :, None, :, 0, 0], 0)
    from_rows = jnp.where(rows.sees_rows, spoken[:, None, :], 0)
    heard = (_total(from_cache) + _total(from_rows)) % 1009
    hidden = jnp.stack([heard, rows.positions], axis=-1)
    return RowsOut(hidden, keys, keys)


def _total(heard):
    return heard.sum(-1, dtype=jnp.int32)  # also where 64-bit integers are on


def toy_logits(salt, hidden):
    """[..., 2] -> [..., V], between 0 and 6."""
    heard, position = hidden[..., :1], hidden[..., 1:]
    ids = jnp.arange(VOCAB, dtype=jnp.int32)
    mixed = (heard * 7 + position * 29 + salt * 3 + 11) * (ids * ids + ids * 13 + 5)
    return (mixed % 1013).astype(jnp.float32) * (6.0 / 1013)


def score_rows(salt, hidden, noise_keys, rules: ScoreRules):
    logits = toy_logits(salt, hidden).astype(rules.confidence_dtype)
    if rules.forbidden:
        logits = logits.at[..., jnp.asarray(rules.forbidden)].set(-jnp.inf)
    noisy = logits
    if noise_keys is not None:
        noisy = logits + rules.temperature * gumbel_noise(
            noise_keys, 0, VOCAB, rules.noise_dtype
        ).astype(logits.dtype)
    token = jnp.argmax(noisy, axis=-1).astype(jnp.int32)
    if rules.discounted:
        logits = logits.at[..., jnp.asarray(rules.discounted)].set(-jnp.inf)
    share = jax.nn.softmax(logits, axis=-1)
    confidence = jnp.take_along_axis(share, token[..., None], axis=-1)[..., 0]
    entropy = -jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1)), 0).sum(-1)
    best = jax.lax.top_k(share, 2)[0]
    return Scores(token, confidence, entropy, best[..., 0] - best[..., 1])


def empty_cache(salt, batch, length):
    shape = (1, batch, length, 1, 1)
    return KVCache(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32))


_denoisers: dict[ScoreRules, Denoiser] = {}


def toy_denoiser(config: SamplerConfig) -> Denoiser:
    rules = score_rules(config)
    if rules not in _denoisers:
        _denoisers[rules] = Denoiser(
            forward_rows,
            lambda salt, hidden, keys: score_rows(salt, hidden, keys, rules),
            empty_cache,
        )
    return _denoisers[rules]


def toy_decode(
    prompts, config: SamplerConfig, model=CONFIG, salt=0, worker=None, **options
) -> Result:
    config = with_ids(config, model)
    options.setdefault("trace", True)
    denoiser, params = toy_denoiser(config), jnp.int32(salt)
    if worker is not None:
        options["refresher"] = Refresher(worker, denoiser, params)
    return decode(denoiser, params, model, prompts, config, **options)
