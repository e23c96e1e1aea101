"""The public names: `__init__.py` imports each from its module when it is first used."""

from llada_jax import testing
from llada_jax.api.converting import export, tiled
from llada_jax.api.decoding import generate, generate_stream, infill, start
from llada_jax.api.latency import latency_table
from llada_jax.api.loading import Description, describe, load
from llada_jax.api.model import Model, forward
from llada_jax.config import ExportConfig, LatencyTable, ModelConfig
from llada_jax.constraint.patterns import Constraint, choice, json_schema, regex
from llada_jax.evaluation.comparison import Comparison
from llada_jax.evaluation.evaluate import compare, evaluate
from llada_jax.evaluation.graded import Evaluation
from llada_jax.model.mesh import mesh
from llada_jax.phones.phone import Phone, phone
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.drafters.drafter import DraftView, drafter
from llada_jax.sampler.generate import Result
from llada_jax.sampler.rules.rule import Ask, Decision, Observation, Revision, Sizes, rule
from llada_jax.sampler.runner import decode_step as step
from llada_jax.sampler.state import DecodeState, RuleState
from llada_jax.sampler.trace import Trace
from llada_jax.sampler.windows.window import Span, WindowContext, window

__all__ = [
    "Ask", "Comparison", "Constraint", "Decision", "DecodeState", "Description", "DraftView",
    "Evaluation", "ExportConfig", "LatencyTable", "Model", "ModelConfig", "Observation",
    "Phone", "Result", "Revision", "RuleState", "SamplerConfig", "Sizes", "Span", "Trace",
    "WindowContext", "choice", "compare", "describe", "drafter", "evaluate", "export",
    "forward", "generate", "generate_stream", "infill", "json_schema", "latency_table", "load",
    "mesh", "phone", "regex", "rule", "start", "step", "testing", "tiled", "window",
]  # fmt: skip
__version__: str
