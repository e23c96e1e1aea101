"""Log-likelihoods of answers and texts: exact for autoregressive models, else LLaDA's bound.

An autoregressive model gives log p(answer | prompt) as the sum of log p(token | tokens before it),
from one forward of the text.

The bound of an answer of L tokens (LLaDA, arXiv 2502.09992, equation 6) is the mean, over l uniform
on 1..L and then over all sets of l masked tokens, of

    L / l * sum of log p(token | prompt, unmasked tokens) over the masked tokens.

It equals the mean log-likelihood over all orders of decoding one token a step, and therefore the
log-likelihood itself if every order gives the same value.

Each mask pattern of an answer becomes one canvas. Canvases of similar length are padded and share
batches, so that few programs are compiled. The model's body runs whole canvases, the head only the
masked tokens; the head streams the vocabulary, so no logits [B, L, V] exist.

Draws cover the numbers of masked tokens evenly, so the error of an estimate is taken from the
differences of draws with neighbouring numbers (Wolter, Introduction to Variance Estimation, 2007,
chapter 8); the scatter of all draws would also include what the even cover removes.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice, pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from tqdm import tqdm

from llada_jax.config import ModelConfig, require
from llada_jax.model.forward import hidden_states
from llada_jax.model.head import ScoreRules
from llada_jax.model.measures import measure_rows
from llada_jax.model.params import ModelParams
from llada_jax.types import HeadRequest

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt, which may be empty, and of an answer, which must not be."""


class MaskedTokens(NamedTuple):
    """All masked tokens of a batch of canvases, in one list."""

    row: Int[np.ndarray, " M"]
    position: Int[np.ndarray, " M"]
    token: Int[np.ndarray, " M"]  # the text's token under the mask


class Likelihoods(NamedTuple):
    """Log-likelihoods or bounds, and their Monte Carlo standard errors, in nats. An error is 0 for
    an exact value, and NaN for an estimate from a single draw."""

    value: Float[np.ndarray, " n"]
    error: Float[np.ndarray, " n"]


def log_likelihoods(
    params: ModelParams, config: ModelConfig, pairs: Sequence[Pair], **options: Any
) -> Float[np.ndarray, " n"]:
    """Returns the values of `estimated_likelihoods`, whose options it takes."""
    return estimated_likelihoods(params, config, pairs, **options).value


def estimated_likelihoods(
    params: ModelParams,
    config: ModelConfig,
    pairs: Sequence[Pair],
    *,
    mc_num: int = 128,
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = False,
) -> Likelihoods:
    """Returns log p(answer | prompt) in nats of an autoregressive model, or its lower bounds for
    other families: exact bounds of short answers, otherwise Monte Carlo estimates.

    For a block-causal family the answer's blocks are scored one after the other, each with all
    earlier blocks unmasked, as such a model is trained and decoded.

    Args:
      mc_num: Maximum number of mask patterns for each answer (or block). Answers with no more
        patterns than that (up to 7 tokens at 128) get the exact bound.
      batch_size: Canvases in a forward pass; changes results by rounding only.
      seed: Seed of the mask patterns.
      progress: Show a progress bar.

    Raises ValueError, before anything is computed, for an empty answer, an empty prompt if outputs
    predict the next position, ids outside the vocabulary or [MASK], a canvas that is too long, a
    model without parameters, or a diffusion model without mask_id; and FloatingPointError for
    log-probabilities that are not finite.
    """
    require(mc_num >= 1, f"mc_num is {mc_num}; allowed: 1 or more")
    _require_likelihoods(params, config, batch_size)
    pieces = sorted(_pieces(config, pairs), key=_canvas_length)
    sums = np.zeros(len(pairs))
    draws: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    with tqdm(pieces, desc="likelihoods", unit="answer", disable=not progress) as bar:
        for length, group in groupby(bar, _canvas_length):
            samples = _samples(group, None if config.autoregressive else mc_num, seed)
            while batch := list(islice(samples, batch_size)):
                tokens, live, masked = _canvases(batch, batch_size, length, config.mask_id)
                log_p = score_masked(params, config, tokens, live, masked)
                of_samples = np.bincount(masked.row, log_p, minlength=len(batch))
                for (piece, holes, weight), total in zip(batch, of_samples, strict=True):
                    sums[piece.pair] += weight * total
                    answer_length = len(piece.ids) - piece.start
                    if not config.autoregressive and not is_exact(answer_length, mc_num):
                        draw = len(holes), answer_length / len(holes) * total
                        times = round(weight * mc_num * len(holes) / answer_length)
                        draws[piece.pair, piece.start] += [draw] * times
    variances = np.zeros(len(pairs))
    for (pair, _), drawn in draws.items():
        steps = np.diff([value for _, value in sorted(drawn)])
        variances[pair] += (steps**2).mean() / (2 * len(drawn)) if len(steps) else np.nan
    return Likelihoods(sums, np.sqrt(variances))


def greedy_answers(
    params: ModelParams, config: ModelConfig, pairs: Sequence[Pair], *, batch_size: int = 16
) -> Bool[np.ndarray, " n"]:
    """Tells of each pair whether greedy decoding after the prompt gives the answer's tokens.

    An autoregressive model must predict each token from those before it. Other families begin with
    the answer (or its part in a block) masked, and each forward commits the most confident token;
    an answer is dropped at the first token that differs. Raises ValueError as
    `estimated_likelihoods`.
    """
    _require_likelihoods(params, config, batch_size)
    greedy = np.ones(len(pairs), bool)
    remaining = [
        _Sample(piece, np.arange(piece.start, len(piece.ids)), 1.0)
        for piece in _pieces(config, pairs)
    ]

    def length_of(sample: _Sample) -> int:
        return _canvas_length(sample.piece)

    while remaining := sorted((s for s in remaining if greedy[s.piece.pair]), key=length_of):
        undecided = []
        for length, group in groupby(remaining, length_of):
            while batch := list(islice(group, batch_size)):
                tokens, live, masked = _canvases(batch, batch_size, length, config.mask_id)
                predicted, confidence = predict_masked(params, config, tokens, live, masked)
                for row, sample in enumerate(batch):
                    (at,) = np.nonzero(masked.row == row)
                    committed = at if config.autoregressive else at[[confidence[at].argmax()]]
                    agrees = (predicted[committed] == masked.token[committed]).all()
                    greedy[sample.piece.pair] &= agrees
                    left = np.setdiff1d(sample.masked, masked.position[committed])
                    undecided += [sample._replace(masked=left)] if left.size else []
        remaining = undecided
    return greedy


def _require_likelihoods(params: ModelParams, config: ModelConfig, batch_size: int) -> None:
    """Raises ValueError if the model has no likelihoods, or for a bad batch size."""
    require(batch_size >= 1, f"batch_size is {batch_size}; allowed: 1 or more")
    require(
        params is not None, "the model has no parameters (it is an export); allowed: a checkpoint"
    )
    require(
        config.causal is None or config.autoregressive,
        f"causal is {config.causal!r}, for which LLaDA's bound says nothing; allowed: None",
    )
    if config.mask_id is None and not config.autoregressive:
        raise ValueError("mask_id is not set by the model's configuration, and likelihoods need it")


class _Piece(NamedTuple):
    """A part of an answer that is scored at once: `ids[start:]`, given `ids[:start]`."""

    pair: int  # index of the prompt and answer
    ids: Int[np.ndarray, " L"]
    start: int


def _canvas_length(piece: _Piece) -> int:
    return padded(len(piece.ids))


class _Sample(NamedTuple):
    """One canvas: a piece, its masked positions, and the weight of the mask pattern."""

    piece: _Piece
    masked: Int[np.ndarray, " l"]
    weight: float


def _pieces(config: ModelConfig, pairs: Sequence[Pair]) -> Iterator[_Piece]:
    """Yields each answer, or its part in each block of a block-causal family. Raises ValueError
    for a pair that has no likelihood."""
    for index, (prompt, answer) in enumerate(pairs):
        ids = np.asarray([*prompt, *answer], np.int64)
        require(len(answer) > 0, f"answer {index} is empty; allowed: 1 token or more")
        config.require_room(f"the text of prompt and answer {index}", len(ids))
        mask_id = -1 if config.mask_id is None else config.mask_id
        outside = ids[(ids < 0) | (ids >= config.vocab_size) | (ids == mask_id)]
        require(
            not outside.size,
            f"prompt and answer {index} have id {outside[:1]}; allowed: 0 to "
            f"{config.vocab_size - 1}{'' if mask_id < 0 else f', without [MASK] ({mask_id})'}",
        )
        require(
            len(prompt) > 0 or not _predicts_next(config),
            f"prompt {index} is empty; allowed: 1 token or more (each position of this family "
            "predicts the next one)",
        )
        block, first = config.block_length, len(prompt)
        cuts = range((first // block + 1) * block, len(ids), block) if block else ()
        for start, stop in pairwise([first, *cuts, len(ids)]):
            yield _Piece(index, ids[:stop], start)


def _predicts_next(config: ModelConfig) -> bool:
    return config.shift_logits or config.autoregressive


def padded(length: int) -> int:
    """Returns the smallest of 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, ... that is at least `length`.
    Four sizes per octave: few programs to compile, and little padding in a long canvas."""
    step = max(8, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step


def _samples(pieces: Iterator[_Piece], mc_num: int | None, seed: int) -> Iterator[_Sample]:
    """Yields the canvases of each piece; one that scores all of its tokens if `mc_num` is None."""
    for piece in pieces:
        length = len(piece.ids) - piece.start
        whole = MaskPatterns(np.ones((1, length), bool), np.ones(1))
        patterns = whole if mc_num is None else mask_patterns(length, mc_num, seed)
        for pattern, weight in zip(*patterns, strict=True):
            yield _Sample(piece, piece.start + np.flatnonzero(pattern), float(weight))


def _canvases(
    batch: list[_Sample], batch_size: int, length: int, mask_id: int | None
) -> tuple[Int[np.ndarray, "B L"], Bool[np.ndarray, "B L"], MaskedTokens]:
    """Returns the canvases, filled up to `batch_size` with copies of the first, their live
    positions and the tokens to score, which are not masked if there is no `mask_id`."""
    tokens = np.full((batch_size, length), mask_id or 0, np.int32)
    live = np.zeros((batch_size, length), bool)
    for row in range(batch_size):
        piece, holes, _ = batch[row] if row < len(batch) else batch[0]
        tokens[row, : len(piece.ids)] = piece.ids
        if mask_id is not None:
            tokens[row, holes] = mask_id
        live[row, : len(piece.ids)] = True
    masked = MaskedTokens(
        np.concatenate([np.full(len(sample.masked), row) for row, sample in enumerate(batch)]),
        np.concatenate([sample.masked for sample in batch]),
        np.concatenate([sample.piece.ids[sample.masked] for sample in batch]),
    )
    return tokens, live, masked


def score_masked(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[np.ndarray, "B L"],
    live: Bool[np.ndarray, "B L"],
    masked: MaskedTokens,
) -> Float[np.ndarray, " M"]:
    """Returns log-probabilities (nats) of masked tokens, given canvases with [MASK] at their
    positions; of the text's own tokens if the model is autoregressive, where each row only sees
    earlier ones. Positions that are not live are ignored. Raises FloatingPointError if a result is
    not finite."""
    (log_p,) = _head_output(_log_probabilities, params, config, tokens, live, masked)
    log_p = log_p.astype(np.float64)
    (bad,) = np.nonzero(~np.isfinite(log_p))
    if len(bad):
        raise FloatingPointError(
            f"{len(bad)} of {len(log_p)} log-likelihoods are NaN or infinite, the first of canvas "
            f"{masked.row[bad[0]]} at position {masked.position[bad[0]]}; nothing was scored"
        )
    return log_p


def predict_masked(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[np.ndarray, "B L"],
    live: Bool[np.ndarray, "B L"],
    masked: MaskedTokens,
) -> tuple[Int[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Returns the most probable token at each position that `score_masked` scores, except [MASK],
    and its probability."""
    forbidden = () if config.mask_id is None else (config.mask_id,)
    predict = partial(_predictions, forbidden)
    predicted, confidence = _head_output(predict, params, config, tokens, live, masked)
    return predicted, confidence


def _head_output(
    head: Callable[..., Any],
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[np.ndarray, "B L"],
    live: Bool[np.ndarray, "B L"],
    masked: MaskedTokens,
) -> list[np.ndarray]:
    """Returns the arrays that `head` computes of the masked tokens."""
    states = _states(params, config, tokens, live)
    padding = padded(len(masked.row)) - len(masked.row)
    row, position, token = (np.pad(part, (0, padding)).astype(np.int32) for part in masked)
    predicting = np.maximum(position - int(_predicts_next(config)), 0)
    arrays = jax.tree.leaves(head(params, states, row, predicting, token))
    return [np.asarray(array)[: len(masked.row)] for array in arrays]


_states = jax.jit(hidden_states, static_argnums=1)


@partial(jax.jit, static_argnums=0)
def _predictions(
    forbidden: tuple[int, ...],
    params: ModelParams,
    states: Float[Array, "B L D"],
    row: Int[Array, " M"],
    position: Int[Array, " M"],
    token: Int[Array, " M"],
) -> tuple[Int[Array, " M"], Float[Array, " M"]]:
    del token
    rules, rows = ScoreRules(forbidden, spread=False), states[row, position][None]
    scores = measure_rows(params, rows, None, HeadRequest(), rules).scores
    return scores.token[0], scores.confidence[0]


@jax.jit
def _log_probabilities(
    params: ModelParams,
    states: Float[Array, "B L D"],
    row: Int[Array, " M"],
    position: Int[Array, " M"],
    token: Int[Array, " M"],
) -> Float[Array, " M"]:
    request = HeadRequest(listed=token[None, :, None])
    rows = states[row, position][None]
    measured = measure_rows(params, rows, None, request, ScoreRules()).measured
    return measured.listed[0, :, 0] - measured.log_sum_exp[0]  # pyright: ignore


class MaskPatterns(NamedTuple):
    """Distinct patterns. The bound is the weighted sum of the masked tokens' log-probabilities."""

    masked: Bool[np.ndarray, "S L"]
    weights: Float[np.ndarray, " S"]


def is_exact(length: int, mc_num: int) -> bool:
    """Tells whether an answer has at most `mc_num` patterns, so that all are used."""
    return 2**length - 1 <= mc_num


def mask_patterns(length: int, mc_num: int, seed: int) -> MaskPatterns:
    """Returns at most `mc_num` patterns for an answer of `length` tokens.

    These are all patterns, which makes the bound exact, if there are no more, otherwise random
    ones. Answers of equal length get equal patterns, so that multiple-choice answers are compared
    on the same ones.
    """
    if is_exact(length, mc_num):
        return every_pattern(length)
    return drawn_patterns(length, mc_num, np.random.default_rng(seed))


def every_pattern(length: int) -> MaskPatterns:
    """Returns all 2**length - 1 patterns that mask something, with their exact weights."""
    numbers = np.arange(1, 2**length)
    masked = (numbers[:, None] >> np.arange(length)) % 2 == 1
    counts = masked.sum(axis=1)
    sets = np.array([math.comb(length, int(count)) for count in counts])
    return MaskPatterns(masked, 1 / (counts * sets))


def drawn_patterns(length: int, mc_num: int, rng: np.random.Generator) -> MaskPatterns:
    """Draws `mc_num` patterns; a pattern that is drawn several times is listed once, with a higher
    weight."""
    counts = mask_counts(length, mc_num, int(rng.integers(length)))
    permutations = rng.permuted(np.tile(np.arange(length), (mc_num, 1)), axis=1)
    masked, times = np.unique(permutations < counts[:, None], axis=0, return_counts=True)
    return MaskPatterns(masked, times / mc_num * length / masked.sum(axis=1))


def mask_counts(length: int, mc_num: int, offset: int) -> Int[np.ndarray, " mc_num"]:
    """Returns numbers of masked tokens, spread evenly over 1..length from a random offset.

    As in LLaDA's evaluation, each number is uniform on 1..length over the offsets, and together
    they cover the range: each occurs mc_num / length times, rounded down or up. LLaDA spreads each
    batch by itself; here the spread is over all draws, so the batch size does not matter.
    """
    return (offset + np.arange(mc_num) * length // mc_num) % length + 1
