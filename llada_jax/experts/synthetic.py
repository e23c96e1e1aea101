"""Draws routing traces from published statistics, for models that are too large to run here.

A row's preference for an expert is a normal random number, the sum of independent parts:

    popular     constant for the expert and layer
    topic       constant for the expert during a block (or a passage of text)
    own         constant for the row until its token changes
    jitter      new in every step

Their variances add up to 1 and are the only parameters. The k experts with the highest preferences
are chosen. Router logits are the preferences, which is an assumption that only minus-recent-score
caching depends on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require, require_numbers
from llada_jax.experts.routing import ABSENT, LOOK_AHEAD, RoutingTrace
from llada_jax.experts.shapes import MoEShape

GATE_AHEAD = 0.78
"""Share of a layer's experts that its gate predicts one layer early: FATE on DeepSeek-V2-Lite,
which arXiv 2511.10676 claims to beat by about 15 points with 93.03 %. For n layers early its n-th
power, which is an assumption."""
_PASSAGE = 0.97
"""Correlation of a text's topic between tokens: a passage of 33 tokens, about a block."""


@dataclass(frozen=True, kw_only=True)
class RoutingStatistics:
    """Variances of a row's preferences; the variance of `own` is the rest to 1."""

    popular: float = 0.1
    """The same for all models, since nothing is published about the usual shares of experts."""
    topic: float
    jitter: float = 0.0
    topic_keeps: float = 0.0
    """Correlation of the topic with the topic of the previous block or token."""

    def __post_init__(self) -> None:
        require_numbers(self, "popular", "topic", "jitter", "topic_keeps", least=0, most=1)
        shared = self.popular + self.topic + self.jitter
        require(shared <= 1, f"popular + topic + jitter is {shared}; allowed: up to 1")


STATISTICS = {
    # 69.5 of 256 experts per step (dMoE, arXiv 2605.30876) determine the topic, the cosine 0.985 of
    # adjacent steps (TIDE, arXiv 2605.20179) the jitter.
    "llada2_mini": RoutingStatistics(topic=0.47, jitter=0.002),
    # 2.5 to 6.5 times the mean load for the busiest expert of a prompt of 352 tokens, taken as 4.5,
    # determine popular and topic together; the jitter is LLaDA2's.
    "llada_moe": RoutingStatistics(topic=0.16, jitter=0.002),
    # LRU's hit rate at a quarter of the experts determines the topic (arXiv 2504.05897, figure 9).
    "qwen2": RoutingStatistics(topic=0.208, topic_keeps=_PASSAGE),
    "deepseek": RoutingStatistics(topic=0.213, topic_keeps=_PASSAGE),
    "mixtral": RoutingStatistics(topic=0.025, topic_keeps=_PASSAGE),
}
"""By the name of the model's shape."""


class _Preferences:
    """The preferences of rows as a text proceeds; arrays [N, E], and for rows [N, R, E]."""

    def __init__(
        self, shape: MoEShape, statistics: RoutingStatistics, seed: int, rows: int
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self._statistics = statistics
        n, e = shape.n_layers, shape.n_experts
        self._popular, self._topic = self._normal(n, e), self._normal(n, e)
        self._own = self._normal(n, rows, e)

    def _normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, np.float32)

    def change_topic(self) -> None:
        """Begins the next block or token, with new rows."""
        self.change_rows(np.arange(self._own.shape[1]))
        fresh, keeps = self._normal(*self._topic.shape), np.float64(self._statistics.topic_keeps)
        self._topic = keeps * self._topic + np.sqrt(1 - keeps**2) * fresh

    def change_rows(self, rows: Int[np.ndarray, " r"]) -> None:
        """Draws the rows' own preferences again, because their tokens change."""
        self._own[:, rows] = self._normal(len(self._own), len(rows), self._own.shape[2])

    def logits(self) -> Float[np.ndarray, "N R E"]:
        """Draws the router's logits of a step."""
        variances = self._statistics
        own = 1 - variances.popular - variances.topic - variances.jitter
        shared = np.sqrt(variances.popular) * self._popular + np.sqrt(variances.topic) * self._topic
        logits = shared[:, None] + np.sqrt(own) * self._own
        if variances.jitter:
            logits = logits + np.sqrt(variances.jitter) * self._normal(*logits.shape)
        return logits.astype(np.float32)

    def next_token(self) -> Float[np.ndarray, "N R E"]:
        """Proceeds by one token, and returns its logits."""
        self.change_topic()
        return self.logits()


def denoising_trace(
    shape: MoEShape,
    statistics: RoutingStatistics,
    *,
    seed: int,
    blocks: int,
    block_length: int = 32,
    tokens_per_step: float,
) -> RoutingTrace:
    """Draws a trace of denoising block after block; every step of a block runs all its rows.

    Each step commits `tokens_per_step` rows of the block on average, at least one. A row's own
    preferences change in the step after its commit, which has the token instead of a mask.
    """
    require(blocks > 0, f"blocks is {blocks}; allowed: 1 or more")
    require(
        1 <= tokens_per_step <= block_length,
        f"tokens_per_step is {tokens_per_step}; allowed: 1 to block_length ({block_length})",
    )
    text = _Preferences(shape, statistics, seed, block_length)
    steps = []
    for block in range(blocks):
        text.change_topic()
        masked = done = np.arange(block_length)
        while masked.size:
            logits = text.logits()
            changed = np.isin(np.arange(block_length), done)
            count = min(masked.size, 1 + text.rng.poisson(tokens_per_step - 1))
            done = text.rng.choice(masked, count, replace=False)
            masked = np.setdiff1d(masked, done)
            text.change_rows(done)
            steps.append((logits, block, changed, count))
    return _trace(text.rng, shape, steps, "denoising", seed)


def decoding_trace(
    shape: MoEShape, statistics: RoutingStatistics, *, seed: int, tokens: int
) -> RoutingTrace:
    """Draws a trace of autoregressive decoding: one row per step, with a new token each time."""
    require(tokens > 0, f"tokens is {tokens}; allowed: 1 or more")
    text = _Preferences(shape, statistics, seed, 1)
    steps = [(text.next_token(), 0, np.ones(1, bool), 1) for _ in range(tokens)]
    return _trace(text.rng, shape, steps, "decoding", seed)


def prefill_trace(
    shape: MoEShape, statistics: RoutingStatistics, *, seed: int, prompts: int, tokens: int
) -> RoutingTrace:
    """Draws a trace of prefilling, one prompt per step; topics of adjacent rows are correlated."""
    require(prompts > 0 and tokens > 0, f"prompts, tokens are {prompts}, {tokens}; allowed: 1 up")
    text = _Preferences(shape, statistics, seed, 1)
    steps = []
    for prompt in range(prompts):
        rows = [text.next_token() for _ in range(tokens)]
        steps.append((np.concatenate(rows, axis=1), prompt, np.ones(tokens, bool), 0))
    return _trace(text.rng, shape, steps, "prefill", seed)


def _trace(
    rng: np.random.Generator, shape: MoEShape, steps: Sequence[tuple], kind: str, seed: int
) -> RoutingTrace:
    """Builds a trace of steps: logits [N, R, E], block, changed rows [R], number of commits."""
    logits, block, changed, committed = zip(*steps, strict=True)
    k = shape.experts_per_token
    n_candidates = min(2 * k, shape.n_experts)  # runners-up are the wrong predictions
    candidates = [_best(step_logits, n_candidates) for step_logits in logits]
    experts = np.stack([indices[..., :k] for indices in candidates]).astype(np.int16)
    return RoutingTrace(
        experts=experts,
        scores=np.stack([_scores(shape, step_logits).mean(axis=1) for step_logits in logits]),
        foreseen=np.stack([_foreseen(rng, k, indices) for indices in candidates]),
        changed=np.stack(changed),
        block=np.repeat(np.array(block, np.int32)[:, None], experts.shape[2], axis=1),
        committed=np.array(committed, np.int32),
        settings={"source": f"synthetic {kind}", "model": shape.name, "seed": seed},
    )


def _scores(shape: MoEShape, logits: np.ndarray) -> np.ndarray:
    if shape.sigmoid:
        return 1 / (1 + np.exp(-logits))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _best(logits: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the largest entries, in descending order."""
    part = np.argpartition(-logits, count - 1, axis=-1)[..., :count]
    order = np.argsort(-np.take_along_axis(logits, part, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(part, order, axis=-1)


def _foreseen(
    rng: np.random.Generator, k: int, candidates: Int[np.ndarray, "N R 2k"]
) -> Int[np.ndarray, "N A R k"]:
    """Draws predictions for later layers with errors; a wrong prediction is a runner-up."""
    n, rows, n_candidates = candidates.shape
    predicted = np.full((n, LOOK_AHEAD, rows, k), ABSENT, np.int16)
    runner_up = np.minimum(np.arange(k) + k, n_candidates - 1)
    for ahead in range(1, min(LOOK_AHEAD, n - 1) + 1):
        wrong = rng.random((n - ahead, rows, k)) > GATE_AHEAD**ahead
        actual = candidates[ahead:]
        choices = np.where(wrong, actual[..., runner_up], actual[..., :k])
        predicted[:-ahead, ahead - 1] = choices
    return predicted
