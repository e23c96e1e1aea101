"""The composition root: names in a configuration become objects that work together."""

from llada_jax.build.decoding import generate, generate_stream, infill, latency_table
from llada_jax.build.loading import Model, export, forward, load, tiled

__all__ = [
    "Model",
    "export",
    "forward",
    "generate",
    "generate_stream",
    "infill",
    "latency_table",
    "load",
    "tiled",
]
