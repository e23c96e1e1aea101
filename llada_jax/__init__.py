"""Diffusion language models in JAX, for phones with an NPU."""

from importlib.metadata import version

from llada_jax.build.decoding import generate, infill, latency_table
from llada_jax.build.loading import Model, export, forward, load, tiled
from llada_jax.config import ExportConfig, LatencyTable, ModelConfig, SamplerConfig
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.harness import evaluate
from llada_jax.phone.phone import Phone, phone
from llada_jax.sampler.generate import Result
from llada_jax.sampler.trace import Trace

__all__ = [
    "Evaluation",
    "ExportConfig",
    "LatencyTable",
    "Model",
    "ModelConfig",
    "Phone",
    "Result",
    "SamplerConfig",
    "Trace",
    "evaluate",
    "export",
    "forward",
    "generate",
    "infill",
    "latency_table",
    "load",
    "phone",
    "tiled",
]

__version__ = version("llada_jax")
