"""The toy denoiser outside JAX, which records the rows it receives."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.types import Rows
from tests.sampler.toy import CONFIG, in_parts, toy_denoiser


def recorded_decode(
    prompts, config: SamplerConfig, model=CONFIG, salt=0, **options
) -> tuple[Result, list[Rows]]:
    """Returns a run of the host loop and the rows of each forward as numpy arrays."""
    config = with_ids(config, model)
    toy, forwards = in_parts(toy_denoiser(config)), []

    def forward_rows(params, rows, cache):
        forwards.append(jax.tree.map(np.asarray, rows))
        return toy.forward_rows(params, rows, cache)

    recorded = replace(toy, forward_rows=forward_rows)
    result = decode(
        recorded, jnp.int32(salt), model, prompts, config, loop="host", trace=True, **options
    )
    return result, forwards
