"""The rule of llada.cpp: tokens are visible first, and stable once the model is surer of them."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig, require, require_choice
from llada_jax.config.policies import flat_choice
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas
from llada_jax.sampler.policy import policy
from llada_jax.sampler.rules.base import (
    Refresh,
    Rescore,
    Rescored,
    RevisingRule,
    Rule,
    require_probability,
)
from llada_jax.sampler.rules.threshold import Threshold


@policy
class Staged(RevisingRule):
    """Commits tokens as visible, replaces them while they are, and keeps those that are stable:
    staged token stabilization (§3.3).

    Attributes:
      theta_visible: `staged`: masked positions whose confidence reaches it become visible, and
        visible tokens give way to another one that reaches it (llada.cpp).
      theta_stable: `staged`: tokens whose confidence reaches it change no more.
      rescore: What a visible token's new confidence comes from: `shadow` a further row that feeds
        [MASK] at its position and does not see it; `token` the row that feeds it.
      refresh: What happens to `staged` tokens that are still visible when their block is finished:
        `none` they stay as they are; `rows` further rows of the forwards refresh them; `worker` a
        thread of the host does, with the same result.
      refresh_rows: Tokens that are refreshed beside one forward, the least confident first.
      end_steps: `staged`: forwards that may follow the last mask of a canvas, while tokens are
        visible.
    """

    chosen_by = flat_choice("rule", accept="staged")
    source = "llada.cpp, arXiv 2606.13740"

    theta_visible: float = 0.7
    theta_stable: float = 0.9
    rescore: Rescore = "shadow"
    refresh: Refresh = "rows"
    refresh_rows: int = 4
    end_steps: int = 4

    def __post_init__(self) -> None:
        require_probability("theta_visible", self.theta_visible)
        require_probability("theta_stable", self.theta_stable)
        require(
            self.theta_visible <= self.theta_stable,
            f"theta_visible is {self.theta_visible}; allowed: up to theta_stable "
            f"({self.theta_stable})",
        )
        require_choice("rescore", self.rescore, Rescore)
        require_choice("refresh", self.refresh, Refresh)
        for name, least in (("refresh_rows", 1), ("end_steps", 0)):
            value = getattr(self, name)
            require(
                isinstance(value, int) and value >= least,
                f"{name} is {value!r}; allowed: {least} or more",
            )

    def check(self, config: SamplerConfig) -> None:
        super().check(config)
        require(  # nothing leaves another window
            self.refresh != "worker" or config.window.leaves_tokens,
            f"cache is {config.cache!r} and refresh is 'worker'; allowed: 'blockwise'",
        )

    def at_once(self) -> Rule:
        return Threshold(threshold=self.theta_visible)

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        return candidates.reach(self.theta_visible)

    def stable(self, confidence: Float[Array, "B C"]) -> Bool[Array, "B C"]:
        return confidence >= self.theta_stable

    def revise(self, canvas: Canvas, rescored: Rescored) -> Canvas:
        """Another token whose confidence reaches `theta_visible` takes a token's place.

        Where the window has passed, the cache has keys and values of the token that was fed, so a
        new one there stays visible until it has been fed itself.
        """
        confidence, other = rescored.scores.confidence, rescored.other(canvas)
        replaced = rescored.at & other & (confidence >= self.theta_visible)
        kept = rescored.at & ~other
        stable = (kept | (replaced & ~rescored.passed)) & (confidence >= self.theta_stable)
        return rescored.changed(canvas, replaced, kept | replaced)._replace(
            state=jnp.where(stable, jnp.int8(STABLE), canvas.state)
        )

    def may_end(self, canvas: Canvas, steady: Int[Array, " B"]) -> Bool[Array, " B"]:
        visible = (canvas.state == VISIBLE).any(axis=1)
        return ~visible | (steady > self.end_steps)

    def frozen(
        self, finished: Bool[Array, "B L"], done: Bool[Array, " B"]
    ) -> Bool[Array, "B L"] | None:
        return None if self.refreshes else finished
