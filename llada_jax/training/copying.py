"""Heads that copy, put into a model before its training starts.

Answers repeat names and numbers of their questions, and to copy them two layers have to work
together: heads that bring what stands one place before and after, and heads that find where else
the same neighbours stand and bring what they surround. A choice's letter is copied alike, by what
stands a few places after it. A small model that we trained from random weights still guessed most
names after 3,000 steps, and the letters after 16,000. Here such heads are written into the first
three layers of a model with random weights, which training then changes as it likes. Structured
starts are known to help small transformers (Trockman & Kolter, arXiv 2305.09828); this one is ours.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llada_jax.config import ModelConfig, require
from llada_jax.model.params import Attention, FeedForward, Layer, ModelParams

# Dimensions of the residual stream that are equal for all tokens, and set for [MASK] alone; and the
# first one's share of a token's energy after the norm.
CONSTANT, IS_MASK, CONSTANT_SHARE = 0, 1, 1 / 8
# A place some tokens away scores `NEIGHBOUR_SCORE`, for frequencies of weight one. The highest ones
# of RoPE tell one place from the next; without the very highest, several places come into view.
NEIGHBOUR_SCORE = 7.5
NEIGHBOUR_FREQUENCIES, AHEAD_FREQUENCIES = (2.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0)
AHEAD = 2.7  # places from a letter and its bracket to the middle of what they stand for
FIRST_SLOW_FREQUENCY = 6  # from here on they turn little over a canvas, and can compare content
# Sharpness of comparing neighbours, a letter's bracket, and what stands ahead of it; and how much
# less a place scores that is masked itself, where what stands ahead is compared.
MATCH, MATCH_BRACKET, MATCH_AHEAD, NOT_MASKED = 2.2, 1.5, 4.5, 16.0
# Scales of what the first layers write, of what is brought, of the head's rows, and of what all
# other random weights write.
STREAM, BROUGHT, READ_OUT, REST = 0.5, 1.5, 1.5, 0.3


class _Stream(NamedTuple):
    """Which dimensions of the residual stream hold what."""

    content: np.ndarray
    ahead: np.ndarray
    before: np.ndarray
    after: np.ndarray


def with_copying_heads(params: ModelParams, config: ModelConfig, seed: int) -> ModelParams:
    """Puts heads that copy into the first three layers of random parameters, in float32.

    Raises ValueError for shapes that have no room for them.
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
    layers = [_quiet(layer, index) for index, layer in enumerate(params.layers)]
    matrices = [[np.array(each) for each in layer.attention[:4]] for layer in layers[:3]]
    _write_heads(config, stream, rng, [_heads(each, config.head_dim) for each in matrices])
    for index, four in enumerate(matrices):
        written = (jnp.asarray(each, jnp.float32) for each in four)
        named = dict(zip(Attention._fields, written, strict=False))
        layers[index] = layers[index]._replace(attention=layers[index].attention._replace(**named))
    return params._replace(embedding=embedding, head=head, layers=tuple(layers))


def check_shape(config: ModelConfig) -> None:
    """Raises ValueError for a shape that has no room for the heads."""
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
    """Makes embedding and head: a random direction for each token, and the same to read it."""
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


def _quiet(layer: Layer, index: int) -> Layer:
    """Turns what random weights write down, so that what copies does not drown in it."""
    attention, ffn = layer.attention, layer.ffn
    assert isinstance(ffn, FeedForward)
    if index > 1:
        attention = attention._replace(output=REST * jnp.asarray(attention.output))
    return layer._replace(attention=attention, ffn=ffn._replace(down=REST * jnp.asarray(ffn.down)))


class _Head(NamedTuple):
    """Views of a head's rows and columns: what it asks, offers and takes, each [head_dim, D], and
    what it writes, [D, head_dim]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray


def _heads(matrices: Sequence[np.ndarray], size: int) -> Iterator[_Head]:
    """Yields the heads of a layer's four matrices, one after the other, emptied."""
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
    """Writes the first heads of the first three layers.

    The content is as wide as two heads, where there is room: what one neighbour matches is brought
    in two halves.
    """
    nearby, matching, lettered = heads
    content, size = stream.content, config.head_dim
    halves = np.split(content, [size])
    one = _orthonormal(rng, len(content), size)  # for both sides, to be compared
    several = _orthonormal(rng, len(content), len(stream.ahead))
    for offset, weights, seen_as, target in (
        (-1, NEIGHBOUR_FREQUENCIES, one, stream.before),
        (1, NEIGHBOUR_FREQUENCIES, one, stream.after),
        (AHEAD, AHEAD_FREQUENCIES, several, stream.ahead),
    ):
        head = next(nearby)
        _look(head, config, offset, weights)
        head.value[: len(target), content] = seen_as.T
        head.output[target, np.arange(len(target))] = STREAM
    for side in (stream.before, stream.after):
        likeness = MATCH * _orthonormal(rng, size, len(side))
        for half in halves:
            _match(next(matching), config, side, likeness, half)
    bracket = MATCH_BRACKET * _orthonormal(rng, size, len(stream.after))
    ahead = MATCH_AHEAD * _orthonormal(rng, size, len(stream.ahead))
    likeness = np.concatenate([bracket, ahead], axis=1)
    sides = np.concatenate([stream.after, stream.ahead])
    for half, layer in zip(halves, (matching, lettered), strict=True):
        _match(next(layer), config, sides, likeness, half, masked=-NOT_MASKED)


def _look(head: _Head, config: ModelConfig, offset: float, weights: tuple[float, ...]) -> None:
    """Lets a head look some places away.

    Query and key read the constant alone. A query turned by the angles of `offset` places scores
    highest where the key's place differs by as much.
    """
    half = config.head_dim // 2
    reach = (NEIGHBOUR_SCORE * config.head_dim**0.5) ** 0.5 / (CONSTANT_SHARE * config.width) ** 0.5
    for pair, weight in enumerate(weights):
        angle = offset * config.rope_theta ** (-pair / half)
        head.query[pair, CONSTANT] = reach * weight**0.5 * np.cos(angle)
        head.query[pair + half, CONSTANT] = reach * weight**0.5 * np.sin(angle)
        head.key[pair, CONSTANT] = reach * weight**0.5


def _match(
    head: _Head,
    config: ModelConfig,
    compared: np.ndarray,
    likeness: Float[np.ndarray, "size compared"],
    content: np.ndarray,
    masked: float = 0.0,
) -> None:
    """Lets a head bring the content from where the same stands in the dimensions compared.

    Query and key are one matrix, so that a place is most like those with the same neighbour.
    `masked` is what the score of a masked place gets besides, by RoPE's slowest frequency.
    """
    half = config.head_dim // 2
    pairs = np.arange(FIRST_SLOW_FREQUENCY, half - (masked != 0))
    slow = np.concatenate([pairs, pairs + half])
    for matrix in (head.query, head.key):
        matrix[np.ix_(slow, compared)] = likeness[: len(slow)]
    if masked:
        energy = CONSTANT_SHARE * config.width, (1 - CONSTANT_SHARE) * config.width
        head.query[half - 1, CONSTANT] = config.head_dim**0.5 / energy[0] ** 0.5
        head.key[half - 1, IS_MASK] = masked / energy[1] ** 0.5
    own = np.arange(len(content))
    head.value[own, content] = 1
    head.output[content, own] = BROUGHT


def _orthonormal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(rows, columns)))[0]
