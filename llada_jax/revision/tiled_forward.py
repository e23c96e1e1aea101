"""The model's forward pass for a few rows with matrices in tiles, for llada.cpp's sparse refresh.

Matrix products run on the host's threads, everything else is computed by the functions of the
model's layers. Results equal those of `forward_rows` and `score_rows` with dequantized weights.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from llada_jax.config import ModelConfig, require
from llada_jax.model.forward import cache_for, cached_layers, run_layer, run_layers
from llada_jax.model.head import ScoreRules, absorb_chunk, finish_scores, score_rows, start_scores
from llada_jax.model.layers import rms_norm, rotation
from llada_jax.model.params import ModelParams, ParamSpec, abstract_params, parameter_name
from llada_jax.model.quantize import QuantArray
from llada_jax.revision.tile_multiplier import TileMultiplier
from llada_jax.revision.tiles import TILE, Tiles, pack_q4_0, quantize_q4_0
from llada_jax.types import Denoiser, KVCache, Rows, RowsOut, Scores


def pack_params(params: ModelParams, config: ModelConfig) -> ModelParams:
    """Packs matrices as `Tiles`, one at a time; other parameters become float32.

    int4 weights keep their integers, and floats are quantized. The embedding is not changed. Raises
    ValueError, which names the matrix, if its shape or scales do not fit tiles.
    """
    require(config.moe is None, "the model has experts; allowed: dense models")

    def pack(path: tuple[Any, ...], spec: ParamSpec, leaf: Any) -> Any:
        if not spec.quantizable:
            return leaf if path[0].name == "embedding" else jnp.asarray(leaf, jnp.float32)
        try:
            is_quantized = isinstance(leaf, QuantArray)
            return pack_q4_0(leaf if is_quantized else quantize_q4_0(np.asarray(leaf)))
        except ValueError as error:
            raise ValueError(f"{parameter_name(path)}: {error}") from error

    return jax.tree.map_with_path(pack, abstract_params(config), params)


def tiled_denoiser(config: ModelConfig, rules: ScoreRules, multiply: TileMultiplier) -> Denoiser:
    """Returns a denoiser that computes with `multiply`, for parameters of `pack_params`.

    Its cache is the model's, and it keeps no state between calls. So a worker can refresh rows with
    it against the cache of a run whose other rows are computed elsewhere.
    """
    return Denoiser(
        partial(_forward_tiled_rows, config, multiply),
        partial(_score_tiled_rows, rules, multiply),
        lambda params, batch, length: cache_for(params, config, batch, length),
        traceable=False,
    )


def _forward_tiled_rows(
    config: ModelConfig, multiply: TileMultiplier, params: ModelParams, rows: Rows, cache: KVCache
) -> RowsOut:
    """Runs `forward_rows` with tiles. Products are computed for live rows only; other rows have
    arbitrary results."""
    live = np.asarray(rows.live)

    def product(tiles: Tiles, x: Float[Array, "B R In"]) -> Float[Array, "B R Out"]:
        out = np.zeros((*live.shape, tiles.shape[0]), np.float32)
        out[live] = multiply(np.asarray(x)[live], tiles)
        return jnp.asarray(out)

    def with_product(leaf: Any) -> Any:
        return partial(product, leaf) if isinstance(leaf, Tiles) else leaf

    hidden, keys, values = run_layers(
        jax.tree.map(with_product, params.layers),
        config,
        _embed(params.embedding, rows.tokens),
        rotation(config, rows.positions),
        (rows.sees_cache, rows.sees_rows),
        cached_layers(cache),
        run_layer,
    )
    hidden = rms_norm(hidden, params.final_norm, config.norm_eps)
    return RowsOut(
        hidden.astype(params.embedding.dtype),
        tuple(key.astype(cache.keys[0].dtype) for key in keys),
        tuple(value.astype(cache.values[0].dtype) for value in values),
    )


_embed = jax.jit(lambda embedding, tokens: embedding[tokens].astype(jnp.float32))


def _score_tiled_rows(
    rules: ScoreRules,
    multiply: TileMultiplier,
    params: ModelParams,
    hidden: Float[Array, "B C D"],
    noise_keys: Key[Array, "B C"] | None,
) -> Scores:
    """Runs `score_rows` with tiles. A head that is the embedding is not in tiles; XLA
    multiplies."""
    head: Any = params.head
    if head is None:
        return _score(params._replace(layers=()), hidden, noise_keys, rules)
    x = np.asarray(hidden.astype(jnp.float32))
    vocab, chunk = head.shape[0], max(TILE, rules.chunk // TILE * TILE)
    running = start_scores(hidden.shape[:2], jnp.dtype(rules.confidence_dtype))
    for start in range(0, vocab, chunk):
        logits = multiply(x, head.columns(start, min(start + chunk, vocab)))
        logits = jnp.asarray(logits, rules.confidence_dtype)
        running = _absorb(running, logits, jnp.int32(start), noise_keys, rules)
    return finish_scores(running)


_score = jax.jit(score_rows, static_argnums=3)
_absorb = jax.jit(absorb_chunk, static_argnums=4)
