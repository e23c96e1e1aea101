"""Whether greedy decoding gives exactly this answer: what `acc` of cloze tasks (LAMBADA) wants.

Slow: up to one forward a token, one after the other. It ends at the first token that differs.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from llada_jax.config import ModelConfig
from llada_jax.evaluation.likelihood import Piece, check_pairs, padded, pieces_of
from llada_jax.model.forward import hidden_states
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.params import ModelParams
from llada_jax.types import Scores


def decodes_greedily(
    params: ModelParams, config: ModelConfig, prompt: Sequence[int], answer: Sequence[int]
) -> bool:
    """Tells whether the sampler, one token a step on a canvas of the answer's length, writes the
    answer.

    The most confident token is committed first, the leftmost of equals; [MASK] is never predicted.
    Under a block-causal family one block is decoded after the other. Errors as `log_likelihoods`.
    """
    check_pairs(params, config, [(prompt, answer)])
    pieces = pieces_of(0, prompt, answer, config.block_length)
    return all(_piece_decodes(params, config, piece) for piece in pieces)


def _piece_decodes(params: ModelParams, config: ModelConfig, piece: Piece) -> bool:
    length = len(piece.ids)
    tokens = np.full((1, padded(length)), config.mask_id, np.int32)
    tokens[0, : piece.start] = piece.ids[: piece.start]
    live = np.arange(tokens.shape[1])[None] < length
    is_open = np.arange(length) >= piece.start
    candidates = np.minimum(piece.start + np.arange(padded(length - piece.start)), length - 1)
    while is_open.any():
        scores = _scores(params, config, tokens, live, candidates.astype(np.int32))
        confidence = np.where(is_open[candidates], scores.confidence[0], -1)
        best = int(confidence.argmax())
        position = candidates[best]
        if int(scores.token[0, best]) != piece.ids[position]:
            return False
        tokens[0, position] = piece.ids[position]
        is_open[position] = False
    return True


@partial(jax.jit, static_argnums=1)
def _scores(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "1 L"],
    live: Bool[Array, "1 L"],
    candidates: Int[Array, " C"],
) -> Scores:
    states = hidden_states(params, config, tokens, live)
    predicting = jnp.maximum(candidates - int(config.shift_logits), 0)
    assert config.mask_id is not None
    rules = ScoreRules(forbidden=(config.mask_id,), spread=False)
    return score_rows(params, states[:, predicting], None, rules)
