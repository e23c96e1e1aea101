"""Block-wise decoding that computes the step after the next one beside it."""

from llada_jax.config import SamplerConfig, require
from llada_jax.config.policies import flat_choice
from llada_jax.sampler.policy import policy
from llada_jax.sampler.windows.blockwise import Blockwise
from llada_jax.sampler.windows.multi_block import require_trigger


@policy
class Lossless(Blockwise):
    """Runs the block as a whole, as block-wise decoding does, and a branch beside it in its late
    stage: the step after, as if this one committed what is expected of it.

    Attributes:
      lookahead_trigger: As in `MultiBlock`.
    """

    chosen_by = flat_choice("window", window="multi_block", cache="blockwise", lossless=True)
    source = "this package, after llada.cpp §3.2 and SSD, arXiv 2510.04147"
    branches = True

    lookahead_trigger: int = 4

    def check(self, config: SamplerConfig) -> None:
        require_trigger(self.lookahead_trigger, config)
        require(
            not config.rule.revises,
            f"accept is {config.accept!r} and lossless is True; allowed: a rule that never changes "
            "a token",
        )
