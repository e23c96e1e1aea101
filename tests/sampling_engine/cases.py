"""Small samplers, and the engines that run them."""

import numpy as np

from llada_jax.sampling_engine.host import Decisions, StepInputs, run_sampler, store_logits
from llada_jax.sampling_engine.instructions import Instruction
from llada_jax.sampling_engine.sampler_program import compile_sampler
from llada_jax.sampling_engine.sampling import EngineConfig, Sampling


def program(text: str) -> list[Instruction]:
    """Instructions as `render` writes them."""
    lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
    return [Instruction(name, tuple(int(o.lstrip("gpf")) for o in rest)) for name, *rest in lines]


def exact_engine(vlen: int = 32, **settings) -> EngineConfig:
    """Float32 throughout."""
    return EngineConfig(vlen=vlen, vector_format="float32", fp_words=256, **settings)


def run(sampling: Sampling, engine: EngineConfig, inputs: StepInputs, format="float32"):
    """The decisions of the machine."""
    hbm = store_logits(sampling, engine.vlen, inputs.logits, format)
    return run_sampler(compile_sampler(sampling, engine), inputs, hbm)


def assert_same(found: Decisions, wanted: Decisions) -> None:
    for name in ("tokens", "predictions", "transfer"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
