"""DPad (arXiv 2508.14148): far positions of the masked suffix are dropped."""

import llada_jax as lj


@lj.window
class SuffixDropout:
    """Runs everything up to `near` positions after the block, then every `stride`-th position.

    DPad draws far positions at random, the fewer the farther; here they are evenly spaced.
    """

    near: int = 4
    stride: int = 4
    caches = False
    runs_later_blocks = True

    def positions(self, state, context):
        distance = state.positions - state.block_stop(context.block_length)[:, None]
        kept = (distance < self.near) | (distance % self.stride == 0)
        return kept & (state.positions < state.end[:, None])
