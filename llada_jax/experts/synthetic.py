"""Routing traces drawn from published statistics, for models that are too big to run here.

A row's preference for an expert is a normal number, the sum of independent parts:

    popular     the expert's, in this layer, for ever
    topic       the expert's, for as long as a block (or a passage of text) lasts
    own         the row's, until its token changes
    jitter      fresh in every step

Their variances add up to 1 and are all that is adjusted. The k best experts are taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require
from llada_jax.experts.routing import ABSENT, RoutingTrace
from llada_jax.experts.shapes import MoEShape

GATE_AHEAD = 0.78
"""Share of a layer's experts that its gate finds one layer early: FATE on DeepSeek-V2-Lite, which
arXiv 2511.10676 says to beat by about 15 points with 93.03 %. Further ahead its powers, which is an
assumption."""
LOOK_AHEAD = 3
LOGIT_SCALE = 1.0
"""Router logits for each standard deviation of preference: an assumption, which only the scores
and thereby minus-recent-score caching see."""

POPULAR = 0.1
"""Nothing is published about the usual shares of single experts; the same for all models."""
PASSAGE = 0.97
"""Correlation of a text's topic from token to token: 33 tokens long, as a block."""


@dataclass(frozen=True, kw_only=True)
class RoutingStatistics:
    """Variances of a row's preferences; `own` is what the others leave of 1."""

    popular: float
    topic: float
    jitter: float = 0.0
    topic_keeps: float = 0.0
    """Correlation of the topic with that of the block, or the token, before."""
    token_change: float = 1.0
    """Share of `own` that is drawn anew when a row's mask becomes a token."""

    def __post_init__(self) -> None:
        for name in ("popular", "topic", "jitter", "topic_keeps", "token_change"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}; allowed: 0 to 1")
        shared = self.popular + self.topic + self.jitter
        require(shared <= 1, f"popular + topic + jitter is {shared}; allowed: up to 1")

    @property
    def own(self) -> float:
        return 1 - self.popular - self.topic - self.jitter


class Preferences(NamedTuple):
    """The parts that stay from step to step."""

    popular: Float[np.ndarray, "N E"]
    topic: Float[np.ndarray, "N E"]
    own: Float[np.ndarray, "N R E"]


class _DrawnStep(NamedTuple):
    """One step of a run, before its experts are picked."""

    logits: Float[np.ndarray, "N R E"]
    block: int
    changed: Bool[np.ndarray, " R"]
    committed: int


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
    rng = np.random.default_rng(seed)
    state = _fresh(rng, shape, block_length)
    steps = []
    for block in range(blocks):
        state = _next_topic(rng, state, statistics)
        masked = done = np.arange(block_length)
        while masked.size:
            logits = _logits(rng, state, statistics)
            changed = np.isin(np.arange(block_length), done)
            count = min(masked.size, 1 + rng.poisson(tokens_per_step - 1))
            done = rng.choice(masked, count, replace=False)
            masked = np.setdiff1d(masked, done)
            _change_own(rng, state, done, statistics.token_change)
            steps.append(_DrawnStep(logits, block, changed, count))
    return _trace(rng, shape, steps, "denoising", seed)


def decoding_trace(
    shape: MoEShape, statistics: RoutingStatistics, *, seed: int, tokens: int
) -> RoutingTrace:
    """Decodes as an autoregressive model: one row a step, a new token each time."""
    require(tokens > 0, f"tokens is {tokens}; allowed: 1 or more")
    rng = np.random.default_rng(seed)
    rows = _successive_rows(rng, shape, statistics, tokens)
    steps = [_DrawnStep(logits, 0, np.ones(1, bool), 1) for logits in rows]
    return _trace(rng, shape, steps, "decoding", seed)


def prefill_trace(
    shape: MoEShape, statistics: RoutingStatistics, *, seed: int, prompts: int, tokens: int
) -> RoutingTrace:
    """Prefills a prompt a step: each row draws its topic's correlate of the row before."""
    require(prompts > 0 and tokens > 0, f"prompts, tokens are {prompts}, {tokens}; allowed: 1 up")
    rng = np.random.default_rng(seed)
    rows = _successive_rows(rng, shape, statistics, prompts * tokens)
    steps = [
        _DrawnStep(np.concatenate(rows[i * tokens :][:tokens], axis=1), i, np.ones(tokens, bool), 0)
        for i in range(prompts)
    ]
    return _trace(rng, shape, steps, "prefill", seed)


def _successive_rows(
    rng: np.random.Generator, shape: MoEShape, statistics: RoutingStatistics, count: int
) -> list[Float[np.ndarray, "N 1 E"]]:
    """Returns the logits of tokens of one text, one after another."""
    state, rows = _fresh(rng, shape, 1), []
    for _ in range(count):
        state = _next_topic(rng, state, statistics)
        rows.append(_logits(rng, state, statistics))
    return rows


def _fresh(rng: np.random.Generator, shape: MoEShape, rows: int) -> Preferences:
    def normal(*leading: int) -> np.ndarray:
        return rng.standard_normal((*leading, shape.n_experts), np.float32)

    n = shape.n_layers
    return Preferences(normal(n), normal(n), normal(n, rows))


def _next_topic(
    rng: np.random.Generator, state: Preferences, statistics: RoutingStatistics
) -> Preferences:
    _change_own(rng, state, np.arange(state.own.shape[1]), 1.0)
    return state._replace(topic=_mixed(rng, state.topic, 1 - statistics.topic_keeps**2))


def _change_own(
    rng: np.random.Generator, state: Preferences, rows: Int[np.ndarray, " r"], share: float
) -> None:
    state.own[:, rows] = _mixed(rng, state.own[:, rows], share)


def _mixed(rng: np.random.Generator, old: np.ndarray, fresh_variance: float) -> np.ndarray:
    fresh = rng.standard_normal(old.shape, np.float32)
    return np.sqrt(1 - fresh_variance) * old + np.sqrt(fresh_variance) * fresh


def _logits(
    rng: np.random.Generator, state: Preferences, statistics: RoutingStatistics
) -> Float[np.ndarray, "N R E"]:
    shared = np.sqrt(statistics.popular) * state.popular + np.sqrt(statistics.topic) * state.topic
    logits = shared[:, None] + np.sqrt(statistics.own) * state.own
    if statistics.jitter:
        fresh = rng.standard_normal(logits.shape, np.float32)
        logits = logits + np.sqrt(statistics.jitter) * fresh
    return logits.astype(np.float32)


def _trace(
    rng: np.random.Generator, shape: MoEShape, steps: Sequence[_DrawnStep], kind: str, seed: int
) -> RoutingTrace:
    routed = [_routed(rng, shape, step.logits) for step in steps]
    experts, weights, scores, foreseen = (np.stack(each) for each in zip(*routed, strict=True))
    block = np.array([step.block for step in steps], np.int32)
    return RoutingTrace(
        experts=experts,
        weights=weights,
        scores=scores,
        foreseen=foreseen,
        changed=np.stack([step.changed for step in steps]),
        block=np.repeat(block[:, None], experts.shape[2], axis=1),
        committed=np.array([step.committed for step in steps], np.int32),
        settings={"source": f"synthetic {kind}", "model": shape.name, "seed": seed},
    )


def _routed(
    rng: np.random.Generator, shape: MoEShape, logits: Float[np.ndarray, "N R E"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    k = shape.experts_per_token
    scores = _scores(shape, LOGIT_SCALE * logits)
    likely = _best(logits, min(2 * k, shape.n_experts))
    chosen = likely[..., :k]
    weights = np.take_along_axis(scores, chosen, axis=-1)
    if shape.sigmoid:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    foreseen = _foreseen(rng, shape, likely)
    return chosen.astype(np.int16), weights, scores.mean(axis=1), foreseen


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
    rng: np.random.Generator, shape: MoEShape, likely: Int[np.ndarray, "N R 2k"]
) -> Int[np.ndarray, "N A R k"]:
    """Foresees the layers ahead with errors: a wrong guess is a runner-up."""
    n, rows, found = likely.shape
    k = shape.experts_per_token
    seen = np.full((n, LOOK_AHEAD, rows, k), ABSENT, np.int16)
    runner_up = np.minimum(np.arange(k) + k, found - 1)
    for ahead in range(1, min(LOOK_AHEAD, n - 1) + 1):
        wrong = rng.random((n - ahead, rows, k)) > GATE_AHEAD**ahead
        seen[:-ahead, ahead - 1] = np.where(
            wrong, likely[ahead:][..., runner_up], likely[ahead:, :, :k]
        )
    return seen


STATISTICS = {
    # 69.5 of 256 experts a step (dMoE, arXiv 2605.30876) fix the topic, the cosine 0.985 of
    # adjacent steps (TIDE, arXiv 2605.20179) the jitter.
    "llada2_mini": RoutingStatistics(popular=POPULAR, topic=0.47, jitter=0.002),
    # 2.5 to 6.5 times the mean load for the busiest expert of a prompt of 352 tokens, taken as 4.5,
    # fix popular and topic together; the jitter is LLaDA2's.
    "llada_moe": RoutingStatistics(popular=POPULAR, topic=0.16, jitter=0.002),
    # LRU's hit rate at a quarter of the experts fixes the topic (arXiv 2504.05897, figure 9).
    "qwen2": RoutingStatistics(popular=POPULAR, topic=0.208, topic_keeps=PASSAGE),
    "deepseek": RoutingStatistics(popular=POPULAR, topic=0.213, topic_keeps=PASSAGE),
    "mixtral": RoutingStatistics(popular=POPULAR, topic=0.025, topic_keeps=PASSAGE),
}
"""By the name of the model's shape."""
