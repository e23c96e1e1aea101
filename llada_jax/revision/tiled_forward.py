"""A forward of a few rows whose matrices are tiles: the host's side of llada.cpp's sparse refresh.

The products run on the host's threads, and everything else by the functions of the model's own
layers. What `forward_rows` and `score_rows` give for the dequantized weights, this gives too.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from llada_jax.config import ModelConfig, require
from llada_jax.model.forward import cache_for, run_layer, run_layers
from llada_jax.model.head import ScoreRules, absorb_chunk, finish_scores, score_rows, start_scores
from llada_jax.model.layers import CachedLayer, attention_bias, rms_norm, rotation
from llada_jax.model.params import ModelParams, ParamSpec, abstract_params, parameter_name
from llada_jax.model.quantize import QuantArray
from llada_jax.revision.tile_multiplier import TileMultiplier
from llada_jax.revision.tiles import TILE, Tiles, pack_q4_0, quantize_q4_0
from llada_jax.types import Denoiser, KVCache, Rows, RowsOut, Scores


def pack_params(params: ModelParams, config: ModelConfig) -> ModelParams:
    """Packs matrices as `Tiles`, one at a time; the rest becomes float32.

    int4 keeps its integers, and floats are quantized. The embedding stays as it is. Raises
    ValueError, which names the matrix, where it has no tiles.
    """
    require(config.moe is None, "the model has experts; allowed: dense models")

    def pack(path: tuple[Any, ...], spec: ParamSpec, leaf: Any) -> Any:
        if not spec.quantizable:
            return leaf if path[0].name == "embedding" else jnp.asarray(leaf, jnp.float32)
        try:
            whole = isinstance(leaf, QuantArray)
            return pack_q4_0(leaf if whole else quantize_q4_0(np.asarray(leaf)))
        except ValueError as error:
            raise ValueError(f"{parameter_name(path)}: {error}") from error

    return jax.tree.map_with_path(pack, abstract_params(config), params)


def tiled_denoiser(config: ModelConfig, rules: ScoreRules, multiply: TileMultiplier) -> Denoiser:
    """Returns the model on the threads of `multiply`, for parameters of `pack_params`.

    Its cache is an ordinary one, and it keeps nothing between calls, so a worker may refresh rows
    with it against the cache of a run whose other rows go elsewhere.
    """
    return Denoiser(
        partial(forward_tiled_rows, config, multiply),
        partial(score_tiled_rows, rules, multiply),
        lambda params, batch, length: cache_for(params, config, batch, length),
        traceable=False,
    )


def forward_tiled_rows(
    config: ModelConfig, multiply: TileMultiplier, params: ModelParams, rows: Rows, cache: KVCache
) -> RowsOut:
    """Runs `forward_rows`. Only live rows pass through the matrices; the others give any values."""
    live = np.asarray(rows.live)

    def product(tiles: Tiles, x: Float[Array, "B R In"]) -> Float[Array, "B R Out"]:
        out = np.zeros((*live.shape, tiles.shape[0]), np.float32)
        out[live] = multiply(np.asarray(x)[live], tiles)
        return jnp.asarray(out)

    def of_tiles(leaf: Any) -> Any:
        return partial(product, leaf) if isinstance(leaf, Tiles) else leaf

    hidden, keys, values = run_layers(
        jax.tree.map(of_tiles, params.layers),
        config,
        _embedded(params.embedding, rows.tokens),
        rotation(config, rows.positions),
        attention_bias(rows),
        (CachedLayer(*cache, index) for index in range(config.n_layers)),
        run_layer,
    )
    hidden = rms_norm(hidden, params.final_norm, config.norm_eps)
    return RowsOut(
        hidden.astype(params.embedding.dtype),
        jnp.stack(keys).astype(cache.keys.dtype),
        jnp.stack(values).astype(cache.values.dtype),
    )


_embedded = jax.jit(lambda embedding, tokens: embedding[tokens].astype(jnp.float32))


def score_tiled_rows(
    rules: ScoreRules,
    multiply: TileMultiplier,
    params: ModelParams,
    hidden: Float[Array, "B C D"],
    noise_keys: Key[Array, "B C"] | None,
) -> Scores:
    """Runs `score_rows`; a head that is the embedding is no tiles, and XLA's own product."""
    head: Any = params.head
    if head is None:
        return _score(params._replace(layers=()), hidden, noise_keys, rules)
    x = np.asarray(hidden.astype(jnp.float32))
    vocab, chunk = head.shape[0], max(TILE, rules.chunk // TILE * TILE)
    running = start_scores(hidden.shape[:2], jnp.dtype(rules.confidence_dtype))
    for start in range(0, vocab, chunk):
        logits = multiply(x, head.columns(start, min(start + chunk, vocab)))
        wide = jnp.asarray(logits, rules.confidence_dtype)
        running = _absorb(running, wide, jnp.int32(start), noise_keys, rules)
    return finish_scores(running)


_score = jax.jit(score_rows, static_argnums=3)
_absorb = jax.jit(absorb_chunk, static_argnums=4)
