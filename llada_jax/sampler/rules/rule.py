"""What every rule is: numbers, and the functions that read them, in one value."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, cast

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig, require
from llada_jax.sampler.candidates import Candidates, ranks
from llada_jax.sampler.canvas import VISIBLE, Canvas
from llada_jax.sampler.policy_pytree import Policy
from llada_jax.types import Scores

Rescore = Literal["shadow", "token"]
Refresh = Literal["none", "rows", "worker"]


@dataclass(frozen=True)
class Rescored:
    """Visible tokens, and what a step says that should stand in their place."""

    scores: Scores  # by position, [B, L]
    standing: Float[Array, "B L"]  # probability of the token there, or a bound of it
    at: Bool[Array, "B L"]  # visible tokens that were scored
    passed: Bool[Array, "B L"]  # before the window: the cache has what was fed there last
    fresh: Bool[Array, "B L"]  # tokens of the current block that this step committed
    ends: Bool[Array, "B L"]  # tokens that end an answer, where a row stops there
    config: SamplerConfig  # with the ids that it needs

    def other(self, canvas: Canvas) -> Bool[Array, "B L"]:
        """Returns where the model prefers another token than the one that stands there."""
        return self.scores.token != canvas.tokens

    def changed(self, canvas: Canvas, replaced: Bool[Array, "B L"]) -> Canvas:
        """Returns the canvas with new tokens, and with what the step says of those that stand
        now."""
        doubted = self.other(canvas) & ~replaced
        confidence = jnp.where(doubted, self.standing, self.scores.confidence).astype(jnp.float32)
        return canvas._replace(
            tokens=jnp.where(replaced, self.scores.token, canvas.tokens),
            confidence=jnp.where(self.at, confidence, canvas.confidence),
        )


class Rule(Policy):
    """Decides which predictions are committed, and what becomes of committed tokens.

    A rule defines `accept`; the other functions have defaults that change nothing. Numbers are
    leaves of the pytree: in a program they are arrays.
    """

    revises: ClassVar[bool] = False  # tokens may still change: they are visible before stable
    verifies: ClassVar[bool] = False  # holds drafts against what finished tokens predict
    forces_progress: ClassVar[bool] = True  # each step commits its best candidate, however unsure
    spread: ClassVar[bool] = False  # reads entropies
    no_drafts: ClassVar[str] = ""  # why it cannot say which drafts are taken over, if it cannot
    rescore: Rescore | Literal["none"] = "shadow"  # what scores a visible token again
    refresh: Refresh = "none"
    refresh_rows: int = 0
    end_steps: int = 0  # forwards that may follow a canvas's last mask

    @property
    def refreshes(self) -> bool:
        """Whether tokens that left the window while they were visible are recomputed."""
        return self.refresh != "none"

    @property
    def counts_remasks(self) -> bool:
        """Whether the rule asks how often positions were masked again."""
        return False

    def check(self, config: SamplerConfig) -> None:
        """Raises ValueError where the rule cannot work with the rest of the settings."""

    def label(self, config: SamplerConfig) -> str:
        """Returns the rule and its numbers as a model card has them: `threshold 0.9`."""
        values = (getattr(self, each.name) for each in fields(cast(Any, self)))
        numbers = (f"{value:g}" for value in values if isinstance(value, float))
        return " ".join([self.chosen_by["accept"].rpartition(":")[2], *numbers])

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        """Returns the transfer mask: which candidates are committed."""
        raise NotImplementedError

    def priority(self, candidates: Candidates) -> Float[Array, "B C"]:
        """Returns what the progress that is forced ranks candidates by, high to low."""
        return candidates.priority

    def stable(self, confidence: Float[Array, "B C"]) -> Bool[Array, "B C"]:
        """Returns which tokens, committed with this confidence, never change."""
        return jnp.full(confidence.shape, not self.revises)

    def revise(self, canvas: Canvas, rescored: Rescored) -> Canvas:
        """Returns the canvas after what a step said of its visible tokens."""
        return canvas

    def measures(self, canvas: Canvas, config: SamplerConfig) -> Bool[Array, "B L"]:
        """Returns the visible tokens that are worth scoring again."""
        return canvas.state == VISIBLE

    def most_due(self, config: SamplerConfig) -> int:
        """Returns the most masks that a step commits, however unsure they are."""
        return scheduled(config) if config.parity.forced_progress == "quota" else 1

    def block_steps(self, config: SamplerConfig) -> int:
        """Returns how many forwards one block may take."""
        return config.block_length

    def quiet(self, steady: Int[Array, " B"], edited: Bool[Array, " B"]) -> Bool[Array, " B"]:
        """Returns whether a block without masks is over, after so many forwards without any, the
        last of which may have `edited` a token."""
        return jnp.ones(steady.shape, bool)

    def may_end(self, canvas: Canvas, steady: Int[Array, " B"]) -> Bool[Array, " B"]:
        """Returns whether a row without masks is done."""
        return jnp.ones(steady.shape, bool)

    def frozen(
        self, finished: Bool[Array, "B L"], done: Bool[Array, " B"]
    ) -> Bool[Array, "B L"] | None:
        """Returns where visible tokens become stable as they are: in finished blocks, and in rows
        that are done. None: nowhere."""
        return finished | done[:, None] if self.revises else None


class RevisingRule(Rule):
    """Rules whose tokens stay visible, and are scored again, before they are stable."""

    revises = True

    def check(self, config: SamplerConfig) -> None:
        require_for_revision(config, f"accept is {self.chosen_by['accept']!r}")


def require_for_revision(config: SamplerConfig, rule: str) -> None:
    """Raises ValueError where a rule that changes committed tokens cannot work."""
    require(
        config.window.chosen_by["cache"] in ("none", "blockwise"),
        f"cache is {config.cache!r} and {rule}; allowed: 'none', 'blockwise'",
    )
    require(  # a sampled token is not the preferred one
        config.temperature == 0, f"temperature is {config.temperature} and {rule}; allowed: 0"
    )
    require(not config.parity.predict_mask, f"predict_mask is True and {rule}; allowed: False")


def scheduled(config: SamplerConfig) -> int:
    """Returns the most tokens that the schedule commits in one step."""
    if config.parity.schedule == "noise":
        return config.block_length
    return -(-config.block_length // config.steps_per_block)


def accepted(rule: Rule, candidates: Candidates) -> Bool[Array, "B C"]:
    """Returns what a step commits: what the rule accepts, and the progress that is forced, the best
    candidate of each row or the schedule's quota."""
    taken = rule.accept(candidates)
    if not rule.forces_progress:
        return taken
    least = jnp.ones_like(candidates.quota)
    if candidates.parity.forced_progress == "quota":
        least = jnp.maximum(candidates.quota, least)
    rank = ranks(rule.priority(candidates), candidates.open)
    return taken | (candidates.open & (rank < least[:, None]))
