"""The expected decisions in float64: Fast-dLLM's greedy sampler, row by row.

The rule (arXiv 2505.22618): the most probable token of each position, its softmax probability as
confidence, and the k most confident open positions of each batch row are committed.
"""

import numpy as np
from numpy.typing import NDArray

from llada_jax.sampling_engine.formats import sanitized
from llada_jax.sampling_engine.host import Bools, Decisions, Ints, StepInputs


def reference_sampler(inputs: StepInputs) -> Decisions:
    """Decides a step. A NaN logit is -inf; a row without any number predicts id 0, and is never
    committed."""
    best, confidence = best_tokens(inputs.logits)
    transfer = committed(confidence, inputs.open, inputs.k)
    predictions = np.where(inputs.open, best, inputs.tokens)
    tokens = np.where(transfer, predictions, inputs.tokens)
    return Decisions(tokens, predictions, transfer, confidence.astype(np.float32))


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


def committed(confidence: NDArray[np.float64], is_open: Bools, k: Ints) -> Bools:
    """Returns which positions [batch, rows] are committed; the lowest index wins ties."""
    eligible = is_open & (confidence > 0)
    order = np.argsort(np.where(eligible, -confidence, np.inf), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return (rank < k[:, None]) & eligible
