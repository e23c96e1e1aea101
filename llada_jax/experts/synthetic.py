"""Routing traces drawn from published statistics, for models that are too big to run here.

A row's preference for an expert is a normal number, the sum of independent parts:

    popular     the expert's, in this layer, for ever
    topic       the expert's, for as long as a block (or a passage of text) lasts
    own         the row's, until its token changes
    jitter      fresh in every step

Their variances add up to 1 and are all that is adjusted. The k best experts are taken, and router
logits are the preferences: an assumption, which only minus-recent-score caching sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require, require_numbers
from llada_jax.experts.routing import ABSENT, LOOK_AHEAD, RoutingTrace
from llada_jax.experts.shapes import MoEShape

GATE_AHEAD = 0.78
"""Share of a layer's experts that its gate finds one layer early: FATE on DeepSeek-V2-Lite, which
arXiv 2511.10676 says to beat by about 15 points with 93.03 %. Further ahead its powers, which is an
assumption."""
PASSAGE = 0.97
"""Correlation of a text's topic from token to token: 33 tokens long, as a block."""


@dataclass(frozen=True, kw_only=True)
class RoutingStatistics:
    """Variances of a row's preferences; `own` is what the others leave of 1."""

    popular: float = 0.1
    """Nothing is published about the usual shares of single experts; the same for all models."""
    topic: float
    jitter: float = 0.0
    topic_keeps: float = 0.0
    """Correlation of the topic with that of the block, or the token, before."""

    def __post_init__(self) -> None:
        require_numbers(self, "popular", "topic", "jitter", "topic_keeps", least=0, most=1)
        shared = self.popular + self.topic + self.jitter
        require(shared <= 1, f"popular + topic + jitter is {shared}; allowed: up to 1")


STATISTICS = {
    # 69.5 of 256 experts a step (dMoE, arXiv 2605.30876) fix the topic, the cosine 0.985 of
    # adjacent steps (TIDE, arXiv 2605.20179) the jitter.
    "llada2_mini": RoutingStatistics(topic=0.47, jitter=0.002),
    # 2.5 to 6.5 times the mean load for the busiest expert of a prompt of 352 tokens, taken as 4.5,
    # fix popular and topic together; the jitter is LLaDA2's.
    "llada_moe": RoutingStatistics(topic=0.16, jitter=0.002),
    # LRU's hit rate at a quarter of the experts fixes the topic (arXiv 2504.05897, figure 9).
    "qwen2": RoutingStatistics(topic=0.208, topic_keeps=PASSAGE),
    "deepseek": RoutingStatistics(topic=0.213, topic_keeps=PASSAGE),
    "mixtral": RoutingStatistics(topic=0.025, topic_keeps=PASSAGE),
}
"""By the name of the model's shape."""


class _Preferences:
    """What rows prefer, as their text goes on. Arrays are [N, E] and, of rows, [N, R, E]."""

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
        """Begins the next block, or token, of which all rows are new."""
        self.change_rows(np.arange(self._own.shape[1]))
        fresh, keeps = self._normal(*self._topic.shape), np.float64(self._statistics.topic_keeps)
        self._topic = keeps * self._topic + np.sqrt(1 - keeps**2) * fresh

    def change_rows(self, rows: Int[np.ndarray, " r"]) -> None:
        """Draws anew what rows themselves prefer, since their tokens change."""
        self._own[:, rows] = self._normal(len(self._own), len(rows), self._own.shape[2])

    def logits(self) -> Float[np.ndarray, "N R E"]:
        """Returns the router's logits of a step."""
        variances = self._statistics
        own = 1 - variances.popular - variances.topic - variances.jitter
        shared = np.sqrt(variances.popular) * self._popular + np.sqrt(variances.topic) * self._topic
        logits = shared[:, None] + np.sqrt(own) * self._own
        if variances.jitter:
            logits = logits + np.sqrt(variances.jitter) * self._normal(*logits.shape)
        return logits.astype(np.float32)

    def next_token(self) -> Float[np.ndarray, "N R E"]:
        """Goes on by a token, of which these are the logits."""
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
    """Denoises block after block; all rows of a block run in each of its steps.

    Each step commits `tokens_per_step` rows of the block on average, at least one; a row's own
    preferences change in the step after its commit, which feeds the token and no mask.
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
    """Decodes as an autoregressive model: one row a step, a new token each time."""
    require(tokens > 0, f"tokens is {tokens}; allowed: 1 or more")
    text = _Preferences(shape, statistics, seed, 1)
    steps = [(text.next_token(), 0, np.ones(1, bool), 1) for _ in range(tokens)]
    return _trace(text.rng, shape, steps, "decoding", seed)


def prefill_trace(
    shape: MoEShape, statistics: RoutingStatistics, *, seed: int, prompts: int, tokens: int
) -> RoutingTrace:
    """Prefills a prompt a step: each row draws its topic's correlate of the row before."""
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
    """Returns a trace of steps: logits [N, R, E], block, changed rows [R], and how many commit."""
    logits, block, changed, committed = zip(*steps, strict=True)
    k, most = shape.experts_per_token, min(2 * shape.experts_per_token, shape.n_experts)
    likely = [_best(each, most) for each in logits]
    experts = np.stack([each[..., :k] for each in likely]).astype(np.int16)
    return RoutingTrace(
        experts=experts,
        scores=np.stack([_scores(shape, each).mean(axis=1) for each in logits]),
        foreseen=np.stack([_foreseen(rng, k, each) for each in likely]),
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
    """Returns the indices of the largest entries, best first."""
    part = np.argpartition(-logits, count - 1, axis=-1)[..., :count]
    order = np.argsort(-np.take_along_axis(logits, part, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(part, order, axis=-1)


def _foreseen(
    rng: np.random.Generator, k: int, likely: Int[np.ndarray, "N R 2k"]
) -> Int[np.ndarray, "N A R k"]:
    """Foresees the layers ahead with errors: a wrong guess is a runner-up."""
    n, rows, found = likely.shape
    seen = np.full((n, LOOK_AHEAD, rows, k), ABSENT, np.int16)
    runner_up = np.minimum(np.arange(k) + k, found - 1)
    for ahead in range(1, min(LOOK_AHEAD, n - 1) + 1):
        wrong = rng.random((n - ahead, rows, k)) > GATE_AHEAD**ahead
        true = likely[ahead:]
        seen[:-ahead, ahead - 1] = np.where(wrong, true[..., runner_up], true[..., :k])
    return seen
