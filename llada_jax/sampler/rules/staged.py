"""The rule of llada.cpp (arXiv 2606.13740): tokens are visible first, stable once they are sure."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig
from llada_jax.config.checks import require, require_choices, require_counts, require_numbers
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas
from llada_jax.sampler.rules.rule import Refresh, Rescore, Rescored, RevisingRule

OnChange = Literal["keep", "remask"]
MOST_REMASKS = 1
"""How often a position may become a mask again, so that decoding ends."""


class Staged(RevisingRule, accept="staged"):
    """Commits tokens as visible, replaces them while they are, and keeps those that are stable:
    staged token stabilization (§3.3).

    Attributes:
      theta_visible: `staged`: masked positions whose confidence reaches it become visible, and
        visible tokens give way to another one that reaches it (llada.cpp).
      theta_stable: `staged`: tokens whose confidence reaches it change no more.
      rescore: What a visible token's new confidence comes from: `shadow` a further row that feeds
        [MASK] at its position and does not see it; `token` the row that feeds it.
      on_change: What becomes of tokens behind one that changes, in the current block: `keep` they
        stay as they are; `remask` they become masks again, once.
      refresh: What happens to `staged` tokens that are still visible when their block is finished:
        `none` they stay as they are; `rows` further rows of the forwards refresh them; `worker` a
        thread of the host does, with the same result.
      refresh_rows: Tokens that are refreshed beside one forward, the least confident first.
      end_steps: `staged`: forwards that may follow the last mask of a canvas, while tokens are
        visible.
    """

    theta_visible: float = 0.7
    theta_stable: float = 0.9
    rescore: Rescore = "shadow"
    on_change: OnChange = "keep"
    refresh: Refresh = "rows"
    refresh_rows: int = 4
    end_steps: int = 4

    def __post_init__(self) -> None:
        require_numbers(self, "theta_visible", "theta_stable", above=0, most=1)
        require(
            self.theta_visible <= self.theta_stable,
            f"theta_visible is {self.theta_visible}; allowed: up to theta_stable "
            f"({self.theta_stable})",
        )
        require_choices(self)
        require_counts(self, "refresh_rows")
        require_counts(self, "end_steps", least=0)

    def check(self, config: SamplerConfig) -> None:
        super().check(config)
        require(  # nothing leaves another window
            self.refresh != "worker" or config.window.leaves_tokens,
            f"cache is {config.cache!r} and refresh is 'worker'; allowed: 'blockwise'",
        )

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        return candidates.reach(self.theta_visible)

    def stable(self, confidence: Float[Array, "B C"]) -> Bool[Array, "B C"]:
        return confidence >= self.theta_stable

    @property
    def counts_remasks(self) -> bool:
        return self.on_change == "remask"

    def measures(self, canvas: Canvas, config: SamplerConfig) -> Bool[Array, "B L"]:
        """Leaves out an EOS behind another one: it becomes stable with that one."""
        return super().measures(canvas, config) & ~_repeated_eos(canvas, config, VISIBLE)

    def block_steps(self, config: SamplerConfig) -> int:
        return config.block_length * (1 + MOST_REMASKS * self.counts_remasks)

    def revise(self, canvas: Canvas, rescored: Rescored) -> Canvas:
        """Replaces tokens by others whose confidence reaches `theta_visible`.

        Where the window has passed, the cache has keys and values of the token that was fed, so a
        new one there stays visible until it has been fed itself. Tokens behind one that changed are
        masked again where the block has the forwards to fill them all.
        """
        confidence, config = rescored.scores.confidence, rescored.config
        sure, other = rescored.at & (confidence >= self.theta_visible), rescored.other(canvas)
        replaced = sure & other
        stable = sure & ~(other & rescored.passed) & (confidence >= self.theta_stable)
        canvas = rescored.changed(canvas, replaced).stable(stable)
        canvas = canvas.stable(_repeated_eos(canvas, config, STABLE) & ~rescored.fresh)
        if self.on_change == "keep":
            return canvas
        assert canvas.remasks is not None
        behind = jnp.cumsum(replaced, axis=1) > replaced.astype(jnp.int32)
        again = behind & ~replaced & (canvas.state >= VISIBLE) & ~canvas.filled & ~rescored.passed
        here = canvas.blocks(config.block_length) == canvas.block[:, None]
        again &= here & (canvas.remasks < MOST_REMASKS)
        masks = canvas.masks_left(config.block_length) + again.sum(axis=1)
        room = canvas.block_step + 1 + masks <= self.block_steps(config)
        return canvas.masked_again(again & room[:, None], config.mask_id)

    def may_end(self, canvas: Canvas, steady: Int[Array, " B"]) -> Bool[Array, " B"]:
        visible = (canvas.state == VISIBLE).any(axis=1)
        return ~visible | (steady > self.end_steps)

    def frozen(
        self, finished: Bool[Array, "B L"], done: Bool[Array, " B"]
    ) -> Bool[Array, "B L"] | None:
        return None if self.refreshes else finished


def _repeated_eos(canvas: Canvas, config: SamplerConfig, after: int) -> Bool[Array, "B L"]:
    """Returns the visible EOS behind an EOS whose state is `after` or a later one."""
    if config.eos_id is None:
        return jnp.zeros(canvas.state.shape, bool)
    eos = (canvas.tokens == config.eos_id) & (canvas.state >= VISIBLE)
    first = eos & (canvas.state >= after)
    behind = jnp.cumsum(first, axis=1) > first.astype(jnp.int32)
    return behind & eos & (canvas.state == VISIBLE)
