"""A window of a block and the finished tokens with the least confidence."""

import jax
import jax.numpy as jnp

import llada_jax as lj


@lj.window
class LeastConfident:
    """Runs the uncached positions up to the end of the block, and `k` finished tokens again, so
    that their keys and values include tokens committed since."""

    k: int = 2
    caches_finished = True

    def positions(self, state, context):
        stop = state.block_stop(context.block_length)
        finished = state.committed & (state.positions < state.n_cached[:, None])
        doubt = jnp.where(finished, -state.confidence, -jnp.inf)
        least = jax.lax.top_k(doubt, self.k)[0][:, -1:]
        return state.in_span(state.n_cached, stop) | (finished & (doubt >= least))

    def cached_after(self, state, rows, context):
        return state.block_start(context.block_length)
