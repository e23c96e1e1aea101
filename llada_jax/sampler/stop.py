"""Stop policies: when a row of the batch has its answer before its canvas is full."""

from collections.abc import Callable

import jax.numpy as jnp

from llada_jax.config import SamplerConfig
from llada_jax.sampler.advance import may_end
from llada_jax.sampler.canvas import MASKED, STABLE, Canvas, positions_of

Stop = Callable[[Canvas], Canvas]
"""Marks rows as done, and gives what is left of them its final form."""


def never_stop(canvas: Canvas) -> Canvas:
    """Rows are done only when their last block is."""
    return canvas


def eos_stop(eos_id: int, config: SamplerConfig) -> Stop:
    """A row is done once an EOS has no mask before it; what follows becomes EOS (LLaDA2).

    Where tokens are still visible, it first has the steps that may follow a last mask.
    """

    def stop(canvas: Canvas) -> Canvas:
        generated = canvas.state >= STABLE
        masked = canvas.state == MASKED
        position = positions_of(canvas)
        length = canvas.tokens.shape[1]
        first_mask = jnp.where(masked, position, length).min(axis=1)
        ended = generated & (canvas.tokens == eos_id)
        first_eos = jnp.where(ended, position, length).min(axis=1)
        stopped = first_eos < first_mask
        fill = masked & stopped[:, None]
        return canvas._replace(
            tokens=jnp.where(fill, jnp.int32(eos_id), canvas.tokens),
            state=jnp.where(fill, jnp.int8(STABLE), canvas.state),
            filled=canvas.filled | fill,
            done=canvas.done | (stopped & may_end(canvas, canvas.steady_steps, config)),
        )

    return stop


def stop_for(config: SamplerConfig) -> Stop:
    """The stop policy of `config`."""
    if not config.eos_early_stop:
        return never_stop
    assert config.eos_id is not None
    return eos_stop(config.eos_id, config)
