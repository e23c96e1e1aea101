"""Early stop: when a row of the batch has its answer before its canvas is full."""

import jax.numpy as jnp

from llada_jax.sampler.canvas import MASKED, STABLE, VISIBLE, Canvas, positions_of
from llada_jax.sampler.setup import Setup


def stop_rows(setup: Setup, canvas: Canvas) -> Canvas:
    """Returns the canvas whose rows are done once an EOS has no mask before it, if `eos_early_stop`
    says so; what is masked behind the EOS becomes EOS (LLaDA2), and what is visible there stable.

    Where tokens before it are still visible, a row first has the steps that may follow a last mask.
    """
    config = setup.config
    if not config.eos_early_stop:
        return canvas
    assert config.eos_id is not None
    masked, position = canvas.state == MASKED, positions_of(canvas)
    length = canvas.tokens.shape[1]
    first_mask = jnp.where(masked, position, length).min(axis=1)
    ended = (canvas.state >= STABLE) & (canvas.tokens == config.eos_id)
    first_eos = jnp.where(ended, position, length).min(axis=1)
    stopped = first_eos < first_mask
    fill = masked & stopped[:, None]
    over = fill | ((canvas.state == VISIBLE) & (position > first_eos[:, None]) & stopped[:, None])
    canvas = canvas._replace(
        tokens=jnp.where(fill, jnp.int32(config.eos_id), canvas.tokens),
        state=jnp.where(over, jnp.int8(STABLE), canvas.state),
        filled=canvas.filled | fill,
    )
    done = stopped & setup.rule.may_end(canvas, canvas.steady_steps)
    return canvas._replace(done=canvas.done | done)
