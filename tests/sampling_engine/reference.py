"""What a sampler should decide, in float64: Fast-dLLM's greedy sampler, row by row.

The rule (arXiv 2505.22618): the most probable token of each position, its softmax probability as
confidence, and the k most confident open positions of each batch row are committed, or also all
that pass a threshold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llada_jax.sampling_engine.formats import sanitized
from llada_jax.sampling_engine.sampling import Sampling

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


class Decisions(NamedTuple):
    """What became of a block [batch, rows]."""

    tokens: Ints
    """After the last step."""
    predictions: Ints
    """Best tokens of the last step; where a position is not open, its token."""
    transfer: Bools
    """Positions committed in the last step."""
    open: Bools
    """Positions without a token, before the last step."""
    keys: NDArray[np.float32] | None = None
    """What a program of one step without a threshold chose by; the reference has none."""


class StepInputs(NamedTuple):
    """A block's state before its steps, and the logits of each step [steps, batch, rows, vocab]."""

    logits: NDArray[np.float32]
    tokens: Ints
    open: Bools
    k: Ints
    """How many tokens each step commits in each batch row [steps, batch]."""


def reference_sampler(sampling: Sampling, inputs: StepInputs) -> Decisions:
    """Runs all steps. A NaN logit is -inf; a row without any number predicts id 0, and is never
    committed."""
    tokens, is_open = inputs.tokens.copy(), inputs.open.copy()
    decided = Decisions(tokens, tokens, np.zeros_like(is_open), is_open)
    for logits, k in zip(inputs.logits, inputs.k, strict=True):
        best, confidence = best_tokens(logits)
        transfer = committed(confidence, is_open, k, sampling)
        predictions = np.where(is_open, best, tokens)
        decided = Decisions(
            np.where(transfer, predictions, tokens), predictions, transfer, is_open.copy()
        )
        tokens, is_open = decided.tokens, is_open & ~transfer
    return decided


def best_tokens(logits: NDArray[np.float32]) -> tuple[Ints, NDArray[np.float64]]:
    """Returns most probable id and its probability, for each row [..., vocab]."""
    rows = logits.reshape(-1, logits.shape[-1])
    best = np.empty(len(rows), np.int32)
    confidence = np.empty(len(rows))
    for i, row in enumerate(rows):
        numbers = sanitized(row, "float32").astype(np.float64)
        best[i] = numbers.argmax()
        top = numbers[best[i]]
        confidence[i] = 0 if top == -np.inf else 1 / np.exp(numbers - top).sum()
    return best.reshape(logits.shape[:-1]), confidence.reshape(logits.shape[:-1])


def committed(
    confidence: NDArray[np.float64], is_open: Bools, k: Ints, sampling: Sampling
) -> Bools:
    """Returns which positions [batch, rows] are committed; the lowest index wins ties."""
    eligible = is_open & (confidence > 0)
    order = np.argsort(np.where(eligible, -confidence, np.inf), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    chosen = rank < k[:, None]
    if sampling.threshold is not None:
        chosen = chosen | (confidence >= sampling.threshold)
    return chosen & eligible
