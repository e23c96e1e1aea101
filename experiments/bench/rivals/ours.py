"""This project's backends LiteRT, native and XLA as contenders, driven by the sampler's host loop.

    python -m experiments.bench.rivals.ours SETTINGS

A forward computes and scores the last rows of a canvas against a cache of all of it. Decoding uses
the dual cache of Fast-dLLM: each block begins with a forward of the whole canvas.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.random_weights import random_params
from experiments.bench.rivals.answers import LayerClock, answer_lines
from llada_jax.api.denoisers import denoiser_for, score_rules
from llada_jax.backend.exported.opened import ExportedProgram
from llada_jax.backend.session import Session
from llada_jax.config import ModelConfig
from llada_jax.model.finite import require_finite_results
from llada_jax.rows import make_rows
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.types import Denoiser, Params, RowsOut, Scores


def clocked(denoiser: Denoiser, clock: LayerClock) -> Denoiser:
    """Returns a denoiser outside JAX that times its forwards."""
    compiled: Callable[[Any], Any] = jax.jit if denoiser.traceable else lambda function: function
    forward, score = compiled(denoiser.forward_rows), compiled(denoiser.score_rows)

    def forward_rows(*arguments: Any) -> Any:
        clock.start()
        out = jax.block_until_ready(forward(*arguments))
        clock.stop()
        return out

    return replace(
        denoiser, forward_rows=forward_rows, score_rows=score, measure_rows=None, traceable=False
    )


class Ours:
    """The tasks of this contender."""

    def __init__(self, denoiser: Denoiser, params: Params, config: ModelConfig, options: Any):
        self._denoiser, self._params, self._config = denoiser, params, config
        self._options = options
        self._cache = denoiser.empty_cache(params, 1, options["cached"])

    def forward(self, rows: int) -> Scores:
        """Runs and scores one forward. Raises FloatingPointError for NaN or infinity."""
        out = self._run_rows(rows, self._options["cached"] - rows, True)
        scores = self._denoiser.score_rows(self._params, out.hidden, None)
        require_finite_results(f"{rows} rows", scores.confidence)
        return scores

    def hidden(self, rows: int) -> np.ndarray:
        """Returns the normed outputs of the layers [rows, D] for the tokens 0, 1, ... alone."""
        return np.asarray(self._run_rows(rows, 0, False).hidden[0], np.float32)

    def _run_rows(self, rows: int, first: int, sees_cache: bool) -> RowsOut:
        tokens = jnp.arange(rows, dtype=jnp.int32)[None]
        visible = jnp.full((1, self._options["cached"]), sees_cache)
        request = make_rows(tokens, tokens + first, jnp.ones_like(tokens, bool), visible)
        return self._denoiser.forward_rows(self._params, request, self._cache)

    def decode(self, steps: int) -> None:
        """Decodes a prompt in `steps` steps."""
        gen, options = self._options["gen_length"], self._options
        sampler = SamplerConfig.from_flat(
            gen_length=gen, block_length=options["block_length"], steps=steps, cache="dual"
        )
        prompt = [list(range(options["prompt_length"]))]
        decode(self._denoiser, self._params, self._config, prompt, sampler, loop="host")
        self._cache = self._denoiser.empty_cache(self._params, 1, options["cached"])


def main(settings: str) -> None:
    """Opens an export, or generates parameters, and answers requests."""
    options = json.loads(settings)
    runtime, numbers = options["kind"].split("/")
    config, clock = ModelConfig(**options["model"]), LayerClock()
    rules = score_rules(with_ids(SamplerConfig(), config))
    params = None
    if runtime == "litert":
        denoiser = Session(ExportedProgram(Path(options["folder"])), rules).denoiser()
    else:
        denoiser = denoiser_for(config, rules)
        quant, dtype = ("int8", "bfloat16") if numbers == "int8" else ("float32", numbers)
        params = random_params(config, quant, dtype=dtype)
        if runtime == "native":
            from llada_jax.backend.native.program import NativeProgram  # needs llvmlite

            denoiser = Session(NativeProgram(config, params), rules).denoiser()
            params = None  # packed
    ours = Ours(clocked(denoiser, clock), params, config, options)
    package = {"litert": "ai-edge-litert", "native": "llvmlite", "xla": "jaxlib"}[runtime]
    about = f"{package} {version(package)}"

    def hidden(rows: int) -> None:
        np.save(options["hidden"], ours.hidden(rows))

    answer_lines(about, clock, {"forward": ours.forward, "decode": ours.decode, "hidden": hidden})


if __name__ == "__main__":
    main(*sys.argv[1:])
