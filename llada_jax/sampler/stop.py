"""Early stop: when a row has its answer before its canvas is full, or can have none."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas
from llada_jax.sampler.setup import Setup


def stop_rows(setup: Setup, canvas: Canvas) -> Canvas:
    """Returns the canvas whose rows are done once an EOS, or another id that the model stops at,
    has no mask before it, if `eos_early_stop` says so; what is masked behind it becomes EOS
    (LLaDA2), and what is visible there stable.

    Where tokens before it are still visible, a row first has the steps that may follow a last mask.
    """
    config = setup.config
    if not config.eos_early_stop:
        return canvas
    masked, position = canvas.masked, canvas.positions
    length = canvas.tokens.shape[1]
    first_mask = jnp.where(masked, position, length).min(axis=1)
    ended = (canvas.state >= STABLE) & ends_of(setup, canvas)
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


def ends_of(setup: Setup, canvas: Canvas) -> Bool[Array, "B L"]:
    """Returns the tokens at which a row stops, if `eos_early_stop` says so."""
    if not setup.config.eos_early_stop:
        return jnp.zeros(canvas.tokens.shape, bool)
    assert setup.config.eos_id is not None
    ids = jnp.array([setup.config.eos_id, *setup.model.stop_ids], jnp.int32)
    return jnp.isin(canvas.tokens, ids)


def stop_faulty(canvas: Canvas, faults: Bool[Array, "B L"]) -> Canvas:
    """Returns the canvas whose rows with faults are done, and know where their first one is."""
    found = faults.any(axis=1)
    first = jnp.argmax(faults, axis=1).astype(jnp.int32)
    return canvas._replace(done=canvas.done | found, fault=jnp.where(found, first, canvas.fault))


class Fault(NamedTuple):
    """Where a canvas has stopped at a score that is no finite number; counted from 0."""

    canvas: int
    forward: int
    position: int


def faults_of(canvas: Canvas) -> list[Fault]:
    """Returns the faults of a canvas's rows."""
    fault, nfe = np.asarray(canvas.fault), np.asarray(canvas.nfe)
    return [Fault(*map(int, (row, nfe[row] - 1, fault[row]))) for row in np.flatnonzero(fault >= 0)]


def require_scores(faults: Sequence[Fault]) -> None:
    """Raises FloatingPointError where there are faults: it names each of them."""
    told = [f"canvas {row}: forward {step}, position {at}" for row, step, at in faults]
    if told:
        raise FloatingPointError(
            f"the model's scores are NaN or infinite ({'; '.join(told)}; all counted from 0); "
            "nothing was decoded"
        )
