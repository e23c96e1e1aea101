"""A random process that imitates LLaDA-8B's decoding, fitted to published statistics.

The number of forwards of a run depends on the model, which is not needed here. In the process, a
masked position with `u` masked positions before it in the window becomes confident in a forward
with probability

    reach * decay ** u

because text is settled from the left (arXiv 2606.13740, Figure 8). The sampler of llada.cpp is
simulated on top: it commits all confident positions, its window slides over the end of the block,
confident positions of later blocks are drafts, and visible tokens stay in the window until they are
stable.

Confidence falls exponentially with both thresholds (Figure 5b), and beyond `STABLE` with their log
odds: no token is more confident than 1, so the probability has to fall to 0 there. If tokens are
committed one by one, a forward reveals less to the drafts, and their probability is divided by
`tokens_per_forward`. When an answer that is shorter than the canvas has ended, the rest settles at
once.

The process gives the number and the sizes of forwards, not the tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from llada_jax.config import require_choice, require_counts, require_numbers
from llada_jax.phones.workload import Forward, Workload, round_cache

Commit = Literal["one", "threshold"]
BLOCK = 32
VISIBLE, STABLE = 0.7, 0.9
"""The paper's confidence thresholds. `Dynamics.reach` is the probability at `VISIBLE`."""
SOURCE = "published statistics (arXiv 2606.13740, Figures 5 and 8)"


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """Parameters of the process."""

    reach: float
    decay: float
    skipped: float = 0.0
    """Fraction of the window's rows without an open decision, which need no head (Figure 5c)."""
    strictness: float = 0.0
    """-d ln(probability to be confident) / d threshold, up to `STABLE` (Figure 5b)."""
    wavering: float = 0.0
    """-d ln(probability that a new visible token is stable) / d threshold, up to `STABLE` (Figure
    5b)."""
    tokens_per_forward: float = 1.0
    """Mean tokens per forward of a single block."""
    answer: int | None = None
    """Tokens until the answer ends, or None if it fills the canvas."""

    def __post_init__(self) -> None:
        require_numbers(self, "reach", "decay", above=0, most=1)
        require_numbers(self, "skipped", least=0, most=1)
        require_numbers(self, "strictness", "wavering", least=0)
        require_numbers(self, "tokens_per_forward", least=1)
        require_counts(self, "answer")

    def at(self, visible: float) -> "Dynamics":
        """Returns the process with another visible threshold."""
        return replace(self, reach=min(1.0, self.reach * self.rarer(visible)))

    def rarer(self, threshold: float, than: float = VISIBLE) -> float:
        """Returns the probability to reach a threshold, relative to the threshold `than`."""
        return math.exp(self.strictness * (_scale(than) - _scale(threshold)))

    def unstable(self, visible: float, stable: float) -> float:
        """Returns the fraction of tokens that are visible before they are stable."""
        return 1 - math.exp(-self.wavering * max(0.0, _scale(stable) - _scale(visible)))


def _scale(threshold: float) -> float:
    """Returns a threshold on the scale on which confidence falls exponentially.

    Up to `STABLE` it is the threshold. Beyond, it continues in log odds with the same slope.
    """
    beyond = min(max(threshold, STABLE), 1 - 1e-9)
    log_odds = math.log(beyond / (1 - beyond)) - math.log(STABLE / (1 - STABLE))
    return min(threshold, STABLE) + STABLE * (1 - STABLE) * log_odds


@dataclass(frozen=True, kw_only=True)
class Techniques:
    """Settings of llada.cpp's techniques, with the paper's abbreviations."""

    trigger: int = 4
    """The window grows by a block when this many masks are left in the current one (MBSD)."""
    commit: Commit = "threshold"
    """Tokens that a forward commits: `one`, or all above the visible threshold (STS)."""
    skip_logits: bool = True
    """Whether rows without an open decision skip the head (SLS)."""
    refresh: int = 2
    """Rows that the CPU may revise during a forward (SCR)."""
    visible: float = VISIBLE
    stable: float = STABLE
    slides: bool = True
    """Whether the window slides over the end of the block and drafts. Otherwise it is the block."""

    def __post_init__(self) -> None:
        require_choice("commit", self.commit, Commit)
        require_counts(self, "trigger", "refresh", least=0)
        require_numbers(self, "visible", "stable", above=0, most=1)


class BlockStatistics(NamedTuple):
    """Statistics of the process that the paper publishes for the model."""

    first_commit: np.ndarray
    """Mean number of the forward that committed each position of a block, from 1."""
    tail_share: np.ndarray
    """Fraction of forwards with at most 1, 2, ... 8 masks left in the block."""
    forwards: float
    """Mean forwards of a block."""


def decode(
    dynamics: Dynamics, techniques: Techniques, prompt: int, tokens: int, seed: int = 0
) -> Workload:
    """Returns the forwards of one run. It is deterministic in its arguments."""
    process = _DecodingProcess(dynamics, techniques, prompt, tokens, seed)
    return Workload(tuple(process.forwards()), tokens, prompt, SOURCE)


class _DecodingProcess:
    """The state of the generated positions during a run."""

    def __init__(
        self, dynamics: Dynamics, techniques: Techniques, prompt: int, tokens: int, seed: int
    ):
        self.dynamics, self.techniques, self.prompt = dynamics, techniques, prompt
        self.rng = np.random.default_rng(seed)
        self.masked = np.ones(tokens, bool)
        """Positions with neither a visible token nor a draft."""
        self.stable = np.zeros(tokens, bool)
        self.fed = np.zeros(tokens, bool)
        """Positions with a correct cached key, since their token was an input of a forward."""
        self.block = 0
        self.stale = 0
        """Unstable tokens of finished blocks that wait for a revision."""
        self.left_unstable = 0
        """Tokens of all finished blocks that were unstable at the end of their block."""

    @property
    def current(self) -> slice:
        return slice(self.block * BLOCK, min((self.block + 1) * BLOCK, len(self.masked)))

    def forwards(self) -> Iterator[Forward]:
        while self.masked.any():
            yield self._forward()

    def _forward(self) -> Forward:
        is_first = not self.fed.any() and bool(self.masked.all())
        window = self._window()
        skipped = self.dynamics.skipped if self.techniques.skip_logits else 0.0
        head_rows = round(len(window) * (1 - skipped))
        refreshed = min(self.stale, self.techniques.refresh)
        self.stale -= refreshed
        self.fed[window] |= ~self.masked[window]
        self._settle(window)
        cache = 0 if is_first else round_cache(self.prompt + int(window[0]))
        prefill = self.prompt if is_first else 0
        rows = round_cache(prefill + len(window))
        return Forward(rows, cache, head_rows, refreshed, refreshed)

    def _window(self) -> np.ndarray:
        """Returns the positions of the window, from the first one that still has to run."""
        if not self.techniques.slides:
            return np.arange(self.current.start, self.current.stop)
        must_run = self.masked | ~self.fed
        must_run[self.current] |= ~self.stable[self.current]
        start = int(np.argmax(must_run))
        grows = self.masked[self.current].sum() <= self.techniques.trigger
        return np.arange(start, min(start + BLOCK * (1 + grows), len(self.masked)))

    def _settle(self, window: np.ndarray) -> None:
        """Draws which tokens become visible or stable, and advances over finished blocks."""
        dynamics, techniques = self.dynamics, self.techniques
        masked = self.masked[window]
        masks_before = np.cumsum(masked) - masked
        chance = dynamics.reach * dynamics.decay**masks_before * dynamics.rarer(techniques.visible)
        stable_given_visible = dynamics.rarer(techniques.stable, techniques.visible)
        if techniques.commit == "one":
            # Drafts need the stable threshold. In the block, `_best` picks the one token instead.
            is_draft = window >= self.current.stop
            chance = np.where(is_draft, chance * stable_given_visible, 0.0)
            chance /= dynamics.tokens_per_forward
        answer_is_complete = not self.masked[: dynamics.answer].any()
        after_answer = answer_is_complete & (window >= (dynamics.answer or len(self.masked)))
        chance = np.where(after_answer, 1.0, chance)
        draw = self.rng.random(len(window))
        becomes_stable = ~masked & (draw < chance * stable_given_visible)
        committed = window[masked & (draw < chance)]
        if not (committed < self.current.stop).any():  # every forward commits in its block
            committed = np.append(committed, self._best())
        self.masked[committed] = False
        unstable = dynamics.unstable(techniques.visible, techniques.stable)
        stable_at_once = self.rng.random(len(committed)) >= unstable
        self.stable[committed] = stable_at_once | (techniques.commit == "one")
        self.stable[window[becomes_stable]] = True
        self.stable[window[after_answer]] = True
        while not self.masked[self.current].any() and self.masked.any():
            n_unstable = int((~self.stable[self.current]).sum())
            self.stale += n_unstable
            self.left_unstable += n_unstable
            self.block += 1

    def _best(self) -> np.ndarray:
        """Draws one masked position of the block, if there is one, with the process's decay."""
        masked = self.current.start + np.flatnonzero(self.masked[self.current])
        if not len(masked):
            return masked
        chances = self.dynamics.decay ** np.arange(len(masked))
        return masked[[self.rng.choice(len(masked), p=chances / chances.sum())]]


def unstable_per_block(dynamics: Dynamics, techniques: Techniques, runs: int = 100) -> float:
    """Returns the mean number of tokens that are unstable at the end of their block."""
    unstable = blocks = 0
    for seed in range(runs):
        process = _DecodingProcess(dynamics, techniques, 0, 4 * BLOCK, seed)
        _ = list(process.forwards())
        unstable, blocks = unstable + process.left_unstable, blocks + process.block
    return unstable / blocks


def statistics(dynamics: Dynamics, runs: int = 400) -> BlockStatistics:
    """Returns statistics of single blocks, decoded with the visible threshold of `dynamics`."""
    rng = np.random.default_rng(0)
    masked = np.ones((runs, BLOCK), bool)
    first_commit = np.zeros((runs, BLOCK))
    masks_left: list[np.ndarray] = []
    step = 0
    while masked.any():
        step += 1
        n_masked = masked.sum(axis=1)
        masks_left.append(n_masked[n_masked > 0])
        masks_before = np.cumsum(masked, axis=1) - masked
        chance = dynamics.reach * dynamics.decay**masks_before
        committed = masked & (rng.random(masked.shape) < chance)
        without_commit = (n_masked > 0) & ~committed.any(axis=1)
        committed[without_commit, masked[without_commit].argmax(axis=1)] = True
        first_commit[committed] = step
        masked &= ~committed
    masks = np.concatenate(masks_left)
    tail = np.array([np.mean(masks <= k) for k in range(1, 9)])
    return BlockStatistics(first_commit.mean(axis=0), tail, len(masks) / runs)
