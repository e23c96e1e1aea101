"""Small random models, inputs of their steps, and the steps' outputs."""

from collections.abc import Mapping
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.backend.protocol import Step
from llada_jax.backend.weights import InMemory, pieces_of
from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.lowered import LoweredWeight
from llada_jax.model.layers import HIDDEN_SCORE
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import QuantArray, dequantize, quantize
from tests.drawn_params import drawn_params

Arrays = dict[str, np.ndarray]

GQA = ModelConfig(
    family="llada",
    vocab_size=96,
    width=64,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    ffn_width=96,
    rope_theta=1e4,
    norm_eps=1e-5,
    max_length=128,
    mask_id=95,
    eos_id=94,
    eot_id=93,
    pad_id=94,
)
VARIANTS = {
    "mha": GQA.replace(n_kv_heads=4),
    "gqa": GQA,
    "one_kv_head": GQA.replace(n_kv_heads=1),
    "partial_rotary": GQA.replace(rotary_dims=8),
    "qkv_bias": GQA.replace(qkv_bias=True),
    "qk_norm": GQA.replace(qk_norm=True),
    "all": GQA.replace(rotary_dims=4, qkv_bias=True, qk_norm=True, tied_embeddings=True),
}
MOE = GQA.replace(
    moe=MoEConfig(n_experts=4, experts_per_token=2, expert_width=32, first_layer=1),
)


@cache
def random_params(config: ModelConfig, seed: int = 0) -> ModelParams:
    """Like `init_params`, but biases and norms are also random."""
    rng = np.random.default_rng(seed)

    def disturbed(leaf: jax.Array) -> jax.Array:
        noise = 0 if leaf.ndim > 1 else 0.2 * rng.standard_normal(leaf.shape)
        return jnp.asarray(np.asarray(leaf) + np.asarray(noise, leaf.dtype))

    return jax.tree.map(disturbed, drawn_params(config, seed))


def quantized(params: ModelParams, bits: int) -> ModelParams:
    """The parameters as they load with dtype `int8` or `int4`."""
    layers = jax.tree.map(lambda w: quantize(np.asarray(w), bits) if w.ndim > 1 else w,
                          params.layers)  # fmt: skip
    head = None if params.head is None else quantize(np.asarray(params.head), bits)
    return params._replace(layers=layers, head=head)


def random_inputs(step: Step, seed: int = 0) -> Arrays:
    """Inputs of a step: every row sees itself, and about half of the others."""
    rng = np.random.default_rng(seed)
    inputs = {name: rng.standard_normal(shape).astype("f4") for name, shape in step.inputs.items()}
    if "bias" in inputs:
        rows, columns = inputs["bias"].shape
        seen = rng.random((rows, columns)) < 0.5
        seen[np.arange(rows), columns - rows + np.arange(rows)] = True
        inputs["bias"] = np.where(seen, 0, HIDDEN_SCORE).astype("f4")
        angles = rng.uniform(0, 6, inputs["cos"].shape)
        inputs |= {"cos": np.cos(angles).astype("f4"), "sin": np.sin(angles).astype("f4")}
    return inputs


def float_weights(step: Step, params: ModelParams) -> Arrays:
    """The step's weights as float32, quantized ones dequantized."""
    weights = InMemory(params)
    return {name: _wide(*pieces_of(weights, name)) for name in step.weights}


def stored_weights(step: Step, params: ModelParams, specs: Mapping[str, LoweredWeight]) -> Arrays:
    """The weights that a file with these stored numbers represents, computed in plain numpy."""
    return {
        name: _rounded(weight, specs[name]) for name, weight in float_weights(step, params).items()
    }


def _wide(piece: np.ndarray | QuantArray) -> np.ndarray:
    wide = dequantize(piece, np.float32) if isinstance(piece, QuantArray) else piece
    return np.asarray(wide, np.float32)


def _rounded(weight: np.ndarray, spec: LoweredWeight) -> np.ndarray:
    if spec.bits == 32:
        return weight
    groups = weight.reshape(len(weight), -1, spec.group or weight.shape[1])
    limit = 2 ** (spec.bits - 1) - 1
    scale = np.abs(groups).max(axis=-1, keepdims=True) / limit
    integers = np.rint(groups / scale)
    if spec.group is not None:
        scale = scale.astype(np.float16).astype(np.float32)
    return (integers * scale).reshape(weight.shape)


def expected_outputs(step: Step, weights: Arrays, inputs: Arrays) -> Arrays:
    """The outputs of the step's function on XLA, compiled without optimization."""
    lowered = jax.jit(step.function).lower(weights, inputs)
    outputs = lowered.compile({"xla_backend_optimization_level": 0})(weights, inputs)
    return {name: np.asarray(array) for name, array in outputs.items()}


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, relative to the largest number."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())
