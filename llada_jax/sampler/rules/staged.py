"""The rule of llada.cpp (arXiv 2606.13740): tokens are visible first, stable once they are sure."""

from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from llada_jax.config.checks import require, require_choices, require_counts, require_numbers
from llada_jax.sampler.rules.rule import (
    Decision,
    Observation,
    Refresh,
    Rescore,
    Revision,
    Rule,
    RuleState,
    rule,
)
from llada_jax.sampler.state import STABLE, VISIBLE, DecodeState

OnChange = Literal["keep", "remask"]


@rule(name="staged")
class Staged(Rule):
    """Commits tokens as visible, replaces them while they are, and keeps stable ones:
    staged token stabilization (§3.3).

    Attributes:
      theta_visible: `staged`: masked positions whose confidence reaches it become visible, and
        visible tokens give way to another one that reaches it (llada.cpp).
      theta_stable: `staged`: tokens whose confidence reaches it change no more.
      rescore: What a visible token's new confidence comes from: `shadow` an extra row that feeds
        [MASK] at its position and does not see it; `token` the row that feeds it.
      on_change: What becomes of tokens after a changed one, in the current block: `keep` they stay
        as they are; `remask` they become masks again, once.
      refresh: What happens to `staged` tokens that are still visible when their block is finished:
        `none` they stay as they are; `rows` extra rows of the forwards refresh them; `worker` a
        thread of the host does, with the same result.
      end_steps: `staged`: forwards that may follow the last mask of a canvas, while tokens are
        visible.
    """

    needs = frozenset({"probability"})
    revises = True
    waits = True
    refresh_rows = 4  # the least confident first; 1 and 8 answer alike (docs/options.md)

    theta_visible: float = 0.7
    theta_stable: float = 0.9
    rescore: Rescore = "shadow"
    on_change: OnChange = "keep"
    refresh: Refresh = "rows"
    end_steps: int = 4

    def __post_init__(self) -> None:
        require_numbers(self, "theta_visible", "theta_stable", above=0, most=1)
        require(
            self.theta_visible <= self.theta_stable,
            f"theta_visible is {self.theta_visible}; allowed: up to theta_stable "
            f"({self.theta_stable})",
        )
        require_choices(self)
        require_counts(self, "end_steps", least=0)

    @property
    def max_remasks(self) -> int | None:
        return 1 if self.on_change == "remask" else None

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        return seen.reaches(self.theta_visible)

    def is_stable(self, confidence: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
        return confidence >= self.theta_stable

    def rescorable(self, state: DecodeState, eos_id: int | None) -> Bool[Array, "B L"]:
        """Leaves out an EOS after another one: it becomes stable with that one."""
        return (state.status == VISIBLE) & ~_repeated_eos(state, eos_id, VISIBLE)

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        """Replaces tokens by others with a confidence from `theta_visible` on.

        Before the window the cache holds keys and values of the token that was fed, so a new one
        there stays visible until it has been fed itself.
        """
        canvas: Any = seen.canvas
        sure = canvas.rescored & (canvas.confidence >= self.theta_visible)
        replace = sure & canvas.differs
        stable = sure & ~(canvas.differs & canvas.fed) & self.is_stable(canvas.confidence)
        revision = Revision(replace, stable, confidence=canvas.confidence_after(replace))
        decision = Decision(
            commit=seen.with_progress(self.accept(seen)),
            stable=self.is_stable(seen.confidence),
            canvas=revision,
        )
        after = seen.after(decision)
        fresh = canvas.state.masked & ~after.masked
        stable |= _repeated_eos(after, seen.eos_id, STABLE) & ~fresh
        revision = revision._replace(stable=stable)
        if self.on_change == "remask":
            revision = revision._replace(remask=self._remask(seen, after, replace))
        return decision._replace(canvas=revision), state

    def _remask(
        self, seen: Observation, after: DecodeState, replaced: Bool[Array, "B L"]
    ) -> Bool[Array, "B L"]:
        """Marks tokens of the block after a changed one, if the block has forwards left for all."""
        canvas, length = seen.canvas, seen.block_length
        follows = jnp.cumsum(replaced, axis=1) > replaced.astype(jnp.int32)
        remask = follows & ~replaced & (after.status >= VISIBLE) & ~after.filled & ~canvas.fed
        remask &= after.blocks(length) == after.block[:, None]
        remask &= canvas.remasks < 1
        masks = after.masks_left(length) + remask.sum(axis=1)
        room = after.block_step + 1 + masks <= self.max_block_steps(length)
        return remask & room[:, None]


def _repeated_eos(state: DecodeState, eos_id: int | None, after: int) -> Bool[Array, "B L"]:
    """Marks each visible EOS after an EOS with status `after` or a later one."""
    if eos_id is None:
        return jnp.zeros(state.status.shape, bool)
    eos = (state.tokens == eos_id) & (state.status >= VISIBLE)
    first = eos & (state.status >= after)
    follows = jnp.cumsum(first, axis=1) > first.astype(jnp.int32)
    return follows & eos & (state.status == VISIBLE)
