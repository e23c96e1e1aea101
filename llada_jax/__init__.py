"""Diffusion language models in JAX, for phones with an NPU.

`llada_jax.phone` is the function, which hides the package of that name as an attribute: its modules
are imported as `from llada_jax.phones.workload import Workload`.
"""

from importlib.metadata import version

from llada_jax import testing
from llada_jax.api.decoding import generate, generate_stream, infill
from llada_jax.api.latency import latency_table
from llada_jax.api.loading import Description, Model, describe, export, forward, load, tiled
from llada_jax.config import ExportConfig, LatencyTable, ModelConfig, SamplerConfig
from llada_jax.constraint.patterns import Constraint, choice, json_schema, regex
from llada_jax.evaluation.evaluate import evaluate
from llada_jax.evaluation.graded import Evaluation
from llada_jax.model.mesh import mesh
from llada_jax.phones.phone import Phone, phone
from llada_jax.sampler.generate import Result
from llada_jax.sampler.rules.own import Ask, Decision, Seen, Sizes, State, rule
from llada_jax.sampler.trace import Trace

__all__ = [
    "Ask", "Constraint", "Decision", "Description", "Evaluation", "ExportConfig", "LatencyTable",
    "Model", "ModelConfig", "Phone", "Result", "SamplerConfig", "Seen", "Sizes", "State", "Trace",
    "choice", "describe", "evaluate", "export", "forward", "generate", "generate_stream",
    "infill", "json_schema", "latency_table", "load", "mesh", "phone", "regex", "rule", "testing",
    "tiled",
]  # fmt: skip

__version__ = version("llada_jax")
