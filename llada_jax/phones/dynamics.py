"""How many forwards a diffusion model needs: decoding dynamics from published statistics.

A process with two numbers stands for the model. A masked position with `u` masked positions before
it, as far as the window reaches, becomes confident in a forward with probability

    reach * decay ** u

(text is settled from the left, arXiv 2606.13740 Figure 8; what is near settled text is settled
first). What the sampler does follows: threshold-parallel commits, drafts in a window that slides
over the block's end, lookahead. A confident position of a later block is a draft, and counts when
its block becomes current. A visible token of the current block stays in the window until it is
stable; once its block is done it is the CPU's to revise. Where one token is committed at a time, a
forward brings less news to the drafts, and their chance is smaller by as much.

Confidence is exponential in both thresholds (Figure 5b): a higher one is reached more rarely, and
tokens that just pass the visible one are stable as rarely as the stable one is far above it. Where
an answer is shorter than the canvas, its end settles all that follows at once.

It says how many forwards of which size run, never which tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from llada_jax.config import require_choice, require_counts, require_numbers
from llada_jax.phones.workload import Forward, Workload, rounded

Commit = Literal["one", "threshold"]
BLOCK = 32
VISIBLE, STABLE = 0.7, 0.9
"""The paper's thresholds; a position's chance, `reach`, is that of the first one."""
SOURCE = "published statistics (arXiv 2606.13740, Figures 5 and 8)"


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """The process, and the two shares that go with it."""

    reach: float
    decay: float
    skipped: float = 0.0
    """Share of the window's rows whose decision is skipped (Figure 5c)."""
    strictness: float = 0.0
    """By how much chances fall as a threshold rises: -d ln(chance) / d threshold (Figure 5b)."""
    wavering: float = 0.0
    """By how much a just visible token is less stable: -d ln(stable) / d threshold (Figure 5b)."""
    tokens_per_forward: float = 1.0
    """Of a block alone, as the process gives it: what a forward usually brings of news."""
    answer: int | None = None
    """Tokens until the answer's end, whatever the canvas; None: it fills the canvas."""

    def __post_init__(self) -> None:
        require_numbers(self, "reach", "decay", above=0, most=1)
        require_numbers(self, "skipped", least=0, most=1)
        require_numbers(self, "strictness", "wavering", least=0)
        require_numbers(self, "tokens_per_forward", least=1)
        require_counts(self, "answer")

    def at(self, visible: float) -> "Dynamics":
        """Returns the process at another visible threshold."""
        return replace(self, reach=min(1.0, self.reach * self.rarer(visible)))

    def rarer(self, threshold: float, than: float = VISIBLE) -> float:
        """Returns the chance to reach a threshold, over that to reach another one."""
        return math.exp(self.strictness * (than - threshold))

    def unstable(self, visible: float, stable: float) -> float:
        """Returns the share of tokens that are not stable when they become visible."""
        return 1 - math.exp(-self.wavering * max(0.0, stable - visible))


@dataclass(frozen=True, kw_only=True)
class Techniques:
    """Which of llada.cpp's techniques run."""

    trigger: int = 4
    """Masks left in the block at which its sliding window grows by a block (MBSD)."""
    commit: Commit = "threshold"
    """`one` token a forward, or every confident one (STS)."""
    skip_logits: bool = True
    """No head for rows whose decision is not open (SLS)."""
    refresh: int = 2
    """Rows that the CPU may revise beside a forward (SCR); 0: none."""
    visible: float = VISIBLE
    stable: float = STABLE
    slides: bool = True
    """Whether the window slides over the block's end, and drafts; else it is the block."""

    def __post_init__(self) -> None:
        require_choice("commit", self.commit, Commit)
        require_counts(self, "trigger", "refresh", least=0)
        require_numbers(self, "visible", "stable", above=0, most=1)


class Statistics(NamedTuple):
    """What the paper reports of its runs, as the process gives it."""

    first_commit: np.ndarray
    """Mean forward that committed each position of a block, from 1."""
    tail_share: np.ndarray
    """Share of forwards with 1, 2, ... 8 masks left in the block, or fewer."""
    forwards: float
    """Mean number for one block alone."""


def decode(
    dynamics: Dynamics, techniques: Techniques, prompt: int, tokens: int, seed: int = 0
) -> Workload:
    """Returns the forwards of one run. The same arguments give the same run."""
    canvas = _DecodingProcess(dynamics, techniques, prompt, tokens, seed)
    return Workload(tuple(canvas.forwards()), tokens, prompt, SOURCE)


class _DecodingProcess:
    """Generated positions while they are decoded."""

    def __init__(
        self, dynamics: Dynamics, techniques: Techniques, prompt: int, tokens: int, seed: int
    ):
        self.dynamics, self.techniques, self.prompt = dynamics, techniques, prompt
        self.rng = np.random.default_rng(seed)
        self.masked = np.ones(tokens, bool)
        """Without a token that is visible, or a draft."""
        self.stable = np.zeros(tokens, bool)
        self.fed = np.zeros(tokens, bool)
        """Its final token was the input of a forward, so that its key and value are right."""
        self.block = 0
        self.stale = 0
        """Visible tokens of finished blocks that wait for a revision."""
        self.left_unstable = 0
        """Visible tokens of all blocks that were not stable when their block was done."""

    @property
    def current(self) -> slice:
        return slice(self.block * BLOCK, min((self.block + 1) * BLOCK, len(self.masked)))

    def forwards(self) -> Iterator[Forward]:
        while self.masked.any():
            yield self._forward()

    def _forward(self) -> Forward:
        first = not self.fed.any() and bool(self.masked.all())
        inside = self._window()
        skipped = self.dynamics.skipped if self.techniques.skip_logits else 0.0
        open_rows = round(len(inside) * (1 - skipped))
        refreshed = min(self.stale, self.techniques.refresh)
        self.stale -= refreshed
        self.fed[inside] |= ~self.masked[inside]
        self._settle(inside)
        cache = 0 if first else rounded(self.prompt + int(inside[0]))
        prefill = self.prompt if first else 0
        return Forward(rounded(prefill + len(inside)), cache, open_rows, refreshed, refreshed)

    def _window(self) -> np.ndarray:
        if not self.techniques.slides:
            return np.arange(self.current.start, self.current.stop)
        kept = self.masked | ~self.fed
        kept[self.current] |= ~self.stable[self.current]
        start = int(np.argmax(kept))
        grows = self.masked[self.current].sum() <= self.techniques.trigger
        return np.arange(start, min(start + BLOCK * (1 + grows), len(self.masked)))

    def _settle(self, inside: np.ndarray) -> None:
        """Makes tokens visible and stable; goes to the next block, once this one is done."""
        dynamics, techniques = self.dynamics, self.techniques
        masked = self.masked[inside]
        before = np.cumsum(masked) - masked
        chance = dynamics.reach * dynamics.decay**before * dynamics.rarer(techniques.visible)
        strict = dynamics.rarer(techniques.stable, techniques.visible)
        later = inside >= self.current.stop
        if techniques.commit == "one":
            chance = np.where(later, chance * strict, 0.0)
            chance /= dynamics.tokens_per_forward
        answered = not self.masked[: dynamics.answer].any()
        after_the_answer = answered & (inside >= (dynamics.answer or len(self.masked)))
        chance = np.where(after_the_answer, 1.0, chance)
        draw = self.rng.random(len(inside))
        promoted = ~masked & (draw < chance * strict)
        chosen = inside[masked & (draw < chance)]
        if not (chosen < self.current.stop).any():  # one of the block at the least
            chosen = np.append(chosen, self._best())
        self.masked[chosen] = False
        unstable = dynamics.unstable(techniques.visible, techniques.stable)
        sure = self.rng.random(len(chosen)) >= unstable
        self.stable[chosen] = sure | (techniques.commit == "one")
        self.stable[inside[promoted]] = True
        self.stable[inside[after_the_answer]] = True
        while not self.masked[self.current].any() and self.masked.any():
            waiting = int((~self.stable[self.current]).sum())
            self.stale, self.left_unstable = self.stale + waiting, self.left_unstable + waiting
            self.block += 1

    def _best(self) -> np.ndarray:
        """Draws a masked position of the block, the sooner the nearer it is to settled text."""
        masked = self.current.start + np.flatnonzero(self.masked[self.current])
        if not len(masked):
            return masked
        chances = self.dynamics.decay ** np.arange(len(masked))
        return masked[[self.rng.choice(len(masked), p=chances / chances.sum())]]


def unstable_per_block(dynamics: Dynamics, techniques: Techniques, runs: int = 100) -> float:
    """Returns how many visible tokens of a block are not stable when it is done, on average."""
    left = blocks = 0
    for seed in range(runs):
        canvas = _DecodingProcess(dynamics, techniques, 0, 4 * BLOCK, seed)
        _ = list(canvas.forwards())
        left, blocks = left + canvas.left_unstable, blocks + canvas.block
    return left / blocks


def statistics(dynamics: Dynamics, runs: int = 400) -> Statistics:
    """Returns what blocks decoded alone look like."""
    rng = np.random.default_rng(0)
    masked = np.ones((runs, BLOCK), bool)
    first = np.zeros((runs, BLOCK))
    left: list[np.ndarray] = []
    step = 0
    while masked.any():
        step += 1
        counts = masked.sum(axis=1)
        left.append(counts[counts > 0])
        before = np.cumsum(masked, axis=1) - masked
        now = masked & (rng.random(masked.shape) < dynamics.reach * dynamics.decay**before)
        stuck = (counts > 0) & ~now.any(axis=1)
        now[stuck, masked[stuck].argmax(axis=1)] = True  # progress is forced
        first[now] = step
        masked &= ~now
    masks = np.concatenate(left)
    tail = np.array([np.mean(masks <= k) for k in range(1, 9)])
    return Statistics(first.mean(axis=0), tail, len(masks) / runs)
