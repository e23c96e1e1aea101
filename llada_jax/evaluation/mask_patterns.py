"""Which tokens of an answer are masked, and how much each pattern weighs in the likelihood bound.

The bound of an answer of L tokens (LLaDA, arXiv 2502.09992, equation 6) is the mean, over l uniform
on 1..L and then over all sets of l masked tokens, of

    L / l * sum of log p(token | prompt, tokens that are not masked) over the masked tokens.

It is the mean of the log-likelihood over all orders of decoding one token a step, so it is the
log-likelihood itself where every order gives the same.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class MaskPatterns(NamedTuple):
    """Distinct patterns; the bound sums their weights times log-probabilities of masked tokens."""

    masked: Bool[np.ndarray, "S L"]
    weights: Float[np.ndarray, " S"]


def mask_patterns(length: int, mc_num: int, seed: int) -> MaskPatterns:
    """Returns at most `mc_num` patterns for an answer of `length` tokens.

    All of them, which makes the bound exact, where there are not more than that; else drawn ones.
    Answers of equal length get equal patterns, so that choices are compared on the same ones.
    """
    if 2**length - 1 <= mc_num:
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
    """Makes `mc_num` draws; a pattern drawn several times is there once, and weighs more."""
    counts = mask_counts(length, mc_num, int(rng.integers(length)))
    permutations = rng.permuted(np.tile(np.arange(length), (mc_num, 1)), axis=1)
    masked, times = np.unique(permutations < counts[:, None], axis=0, return_counts=True)
    return MaskPatterns(masked, times / mc_num * length / masked.sum(axis=1))


def mask_counts(length: int, mc_num: int, offset: int) -> Int[np.ndarray, " mc_num"]:
    """Returns numbers of masked tokens, spread evenly over 1..length from a random offset on.

    As in LLaDA's evaluation, each number is uniform on 1..length over the offsets, and together
    they cover the range: each occurs mc_num / length times, rounded down or up. There each batch is
    spread by itself; here all draws are, so that the batch size changes nothing.
    """
    return (offset + np.arange(mc_num) * length // mc_num) % length + 1
