"""Initialises a model with attention heads that copy from the prompt.

Answers repeat names and numbers of their questions. To copy them, two layers must cooperate, like
induction heads: heads in the first layer bring each position its neighbours' tokens, and heads in a
later one find positions with the same neighbours and bring the token there. The letter of a choice
is found by the text a few positions after it. A small model trained from random weights still
guessed most names after 3,000 steps, and the letters after 16,000. Here such heads are written into
the first three layers of a model with random weights; training then changes them freely. Structured
initialisation is known to help small transformers (Trockman & Kolter, arXiv 2305.09828); this one
is our own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llada_jax.config import ModelConfig, require
from llada_jax.model.params import Attention, FeedForward, Layer, ModelParams

# Two dimensions of the residual stream: one is equal for all tokens, one is set for [MASK] only.
# And the share of the first in a token's energy after the norm.
CONSTANT, IS_MASK, CONSTANT_SHARE = 0, 1, 1 / 8
# Attention score of the position that a head looks at, for RoPE frequencies of weight one. The
# highest frequencies tell adjacent positions apart; without the very highest, a head sees several.
NEIGHBOUR_SCORE = 7.5
NEIGHBOUR_FREQUENCIES, AHEAD_FREQUENCIES = (2.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0)
AHEAD = 2.7  # positions from a letter and its bracket to the middle of the text of the choice
FIRST_SLOW_FREQUENCY = 6  # lower ones hardly turn over a canvas, so they can compare content
# Sharpness of comparing neighbours, the bracket of a letter, and the text ahead of it; and the
# penalty of a masked position if the text ahead is compared.
MATCH, MATCH_BRACKET, MATCH_AHEAD, NOT_MASKED = 2.2, 1.5, 4.5, 16.0
# Scales of the first layers' outputs, of the copied content, of the head's rows, and of all other
# random weights' outputs.
STREAM, COPIED, READ_OUT, REST = 0.5, 1.5, 1.5, 0.3


class _Stream(NamedTuple):
    """The dimensions of the residual stream for the token itself and for its neighbours."""

    content: np.ndarray
    ahead: np.ndarray
    before: np.ndarray
    after: np.ndarray


def with_copying_heads(params: ModelParams, config: ModelConfig, seed: int) -> ModelParams:
    """Writes heads that copy into the first three layers of random parameters, in float32.

    Raises ValueError for shapes without room for them.
    """
    check_shape(config)
    require(config.mask_id is not None, "mask_id is None; allowed with copying heads: a token id")
    rng = np.random.default_rng(seed)
    size, width = config.head_dim, config.width
    end = min(2 + 2 * size, width - 3 * size + 2)
    stream = _Stream(
        np.arange(2, end),
        np.arange(end, min(end + size, width - 2 * size)),
        np.arange(width - 2 * size, width - size),
        np.arange(width - size, width),
    )
    embedding, head = _vocabulary(params, config, stream, rng)
    layers = [_scale_down(layer, index) for index, layer in enumerate(params.layers)]
    matrices = [[np.array(matrix) for matrix in layer.attention[:4]] for layer in layers[:3]]
    _write_heads(config, stream, rng, [_clear_heads(layer, size) for layer in matrices])
    for index, layer_matrices in enumerate(matrices):
        arrays = (jnp.asarray(matrix, jnp.float32) for matrix in layer_matrices)
        changes = dict(zip(Attention._fields, arrays, strict=False))
        attention = layers[index].attention._replace(**changes)
        layers[index] = layers[index]._replace(attention=attention)
    return params._replace(embedding=embedding, head=head, layers=tuple(layers))


def check_shape(config: ModelConfig) -> None:
    """Raises ValueError for a shape without room for the heads."""
    heads, size = config.n_heads, config.head_dim
    require(config.moe is None, "moe is set; allowed with copying heads: None")
    require(not config.tied_embeddings, "tied_embeddings is True; allowed here: False")
    require(config.n_layers > 2, f"n_layers is {config.n_layers}; allowed here: 3 or more")
    require(
        heads == config.n_kv_heads >= 5,
        f"n_heads is {heads} and n_kv_heads {config.n_kv_heads}; allowed here: the same, 5 or more",
    )
    require(
        config.rotary_dims == size >= 32,
        f"head_dim is {size}, of which {config.rotary_dims} turn; allowed here: 32 or more, all",
    )
    require(
        config.width >= 4 * size,
        f"width is {config.width}; allowed here: {4 * size} or more, four times head_dim",
    )


def _vocabulary(
    params: ModelParams, config: ModelConfig, stream: _Stream, rng: np.random.Generator
) -> tuple[Float[Array, "V D"], Float[Array, "V D"]]:
    """Returns embedding and head: a random direction for each token, and the same to read it."""
    size, dims = config.vocab_size, len(stream.content)
    energy = (1 - CONSTANT_SHARE) * config.width
    embedding = np.zeros((size, config.width))
    embedding[:, CONSTANT] = STREAM * (CONSTANT_SHARE * config.width) ** 0.5
    content = rng.normal(size=(size, dims))
    content *= energy**0.5 * STREAM / np.linalg.norm(content, axis=1, keepdims=True)
    embedding[:, stream.content] = content
    embedding[config.mask_id, stream.content] = 0
    embedding[config.mask_id, IS_MASK] = energy**0.5 * STREAM
    embedding[:, 2:] += 0.02 * rng.normal(size=(size, config.width - 2))
    head = np.array(params.head) * REST
    head[:, stream.content] = READ_OUT * content / np.linalg.norm(content, axis=1, keepdims=True)
    return jnp.asarray(embedding, jnp.float32), jnp.asarray(head, jnp.float32)


def _scale_down(layer: Layer, index: int) -> Layer:
    """Scales down the outputs of random weights, which would drown what the heads write."""
    attention, ffn = layer.attention, layer.ffn
    assert isinstance(ffn, FeedForward)
    if index > 1:
        attention = attention._replace(output=REST * jnp.asarray(attention.output))
    return layer._replace(attention=attention, ffn=ffn._replace(down=REST * jnp.asarray(ffn.down)))


class _Head(NamedTuple):
    """Views of a head's matrices: query, key and value [head_dim, D], output [D, head_dim]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray


def _clear_heads(matrices: Sequence[np.ndarray], size: int) -> Iterator[_Head]:
    """Yields the heads of a layer's four matrices one after the other, set to zero."""
    query, key, value, output = matrices
    for start in range(0, len(query), size):
        rows = slice(start, start + size)
        head = _Head(query[rows], key[rows], value[rows], output[:, rows])
        for view in head:
            view[:] = 0
        yield head


def _write_heads(
    config: ModelConfig, stream: _Stream, rng: np.random.Generator, heads: list[Iterator[_Head]]
) -> None:
    """Writes the heads of the first three layers; `heads` has an iterator for each layer.

    Content may be wider than a head's value, so two heads with the same comparison copy one half
    each.
    """
    nearby, matching, lettered = heads
    content, size = stream.content, config.head_dim
    halves = np.split(content, [size])
    one = _orthonormal(rng, len(content), size)  # the same for both sides, so they can be compared
    several = _orthonormal(rng, len(content), len(stream.ahead))
    for offset, weights, projection, target in (
        (-1, NEIGHBOUR_FREQUENCIES, one, stream.before),
        (1, NEIGHBOUR_FREQUENCIES, one, stream.after),
        (AHEAD, AHEAD_FREQUENCIES, several, stream.ahead),
    ):
        head = next(nearby)
        _look(head, config, offset, weights)
        head.value[: len(target), content] = projection.T
        head.output[target, np.arange(len(target))] = STREAM
    for side in (stream.before, stream.after):
        projection = MATCH * _orthonormal(rng, size, len(side))
        for half in halves:
            _match(next(matching), config, side, projection, half)
    bracket = MATCH_BRACKET * _orthonormal(rng, size, len(stream.after))
    ahead = MATCH_AHEAD * _orthonormal(rng, size, len(stream.ahead))
    projection = np.concatenate([bracket, ahead], axis=1)
    sides = np.concatenate([stream.after, stream.ahead])
    for half, layer in zip(halves, (matching, lettered), strict=True):
        _match(next(layer), config, sides, projection, half, masked=-NOT_MASKED)


def _look(head: _Head, config: ModelConfig, offset: float, weights: tuple[float, ...]) -> None:
    """Makes a head attend to the position at an offset.

    Query and key depend on the constant dimension alone. With the query turned by the RoPE angles
    of `offset` positions, the score is highest for the key at this offset.
    """
    half = config.head_dim // 2
    scale = (NEIGHBOUR_SCORE * config.head_dim**0.5) ** 0.5 / (CONSTANT_SHARE * config.width) ** 0.5
    for pair, weight in enumerate(weights):
        angle = offset * config.rope_theta ** (-pair / half)
        head.query[pair, CONSTANT] = scale * weight**0.5 * np.cos(angle)
        head.query[pair + half, CONSTANT] = scale * weight**0.5 * np.sin(angle)
        head.key[pair, CONSTANT] = scale * weight**0.5


def _match(
    head: _Head,
    config: ModelConfig,
    compared: np.ndarray,
    projection: Float[np.ndarray, "size compared"],
    content: np.ndarray,
    masked: float = 0.0,
) -> None:
    """Makes a head copy `content` from positions that agree in the dimensions `compared`.

    Query and key are the same matrix, so positions with equal neighbours have the highest scores.
    `masked` is added to the score of masked positions, with RoPE's slowest frequency.
    """
    half = config.head_dim // 2
    pairs = np.arange(FIRST_SLOW_FREQUENCY, half - (masked != 0))
    slow = np.concatenate([pairs, pairs + half])
    for matrix in (head.query, head.key):
        matrix[np.ix_(slow, compared)] = projection[: len(slow)]
    if masked:
        energy = CONSTANT_SHARE * config.width, (1 - CONSTANT_SHARE) * config.width
        head.query[half - 1, CONSTANT] = config.head_dim**0.5 / energy[0] ** 0.5
        head.key[half - 1, IS_MASK] = masked / energy[1] ** 0.5
    index = np.arange(len(content))
    head.value[index, content] = 1
    head.output[content, index] = COPIED


def _orthonormal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(rows, columns)))[0]
