"""The toy of `llada_jax.testing`, with a worker for refreshes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from llada_jax import testing
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import Result
from llada_jax.sampler.host_runner import Refresher
from llada_jax.sampler.prompts import with_ids
from llada_jax.testing import EOS, EOT, MASK, TOY, VOCAB, forward_rows, score_rows, toy_denoiser
from llada_jax.types import Denoiser

__all__ = ["BLOCK_CAUSAL", "CONFIG", "EOS", "EOT", "MASK", "VOCAB", "Worker",
           "forward_rows", "in_parts", "score_rows", "toy_decode", "toy_denoiser"]  # fmt: skip

CONFIG = TOY
BLOCK_CAUSAL = TOY.replace(block_length=8)


_compiled = jax.jit(lambda function, *args: function(*args), static_argnums=0)


def in_parts(denoiser: Denoiser) -> Denoiser:
    """Returns a denoiser as separate parts, each of which is compiled separately."""
    parts = {
        name: partial(_compiled, getattr(denoiser, name))
        for name in ("forward_rows", "score_rows", "measure_rows")
    }
    return replace(denoiser, **parts, traceable=False)


class Worker(ThreadPoolExecutor):
    """The worker thread of a run."""

    def __init__(self):
        super().__init__(max_workers=1, thread_name_prefix="revision")


def toy_decode(
    prompts, config: SamplerConfig, model=CONFIG, salt=0, worker=None, **options
) -> Result:
    if worker is not None:
        denoiser = toy_denoiser(with_ids(config, model))
        options["refresher"] = Refresher(worker, denoiser, jnp.int32(salt))
    return testing.toy_decode(prompts, config, model, salt, **options)
