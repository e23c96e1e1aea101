"""Diffusion language models in JAX, for phones with an NPU."""

from llada_jax.build import Model, forward, generate, infill, load
from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.sampler.generate import Result
from llada_jax.sampler.trace import Trace

__all__ = [
    "Model",
    "ModelConfig",
    "Result",
    "SamplerConfig",
    "Trace",
    "forward",
    "generate",
    "infill",
    "load",
]
