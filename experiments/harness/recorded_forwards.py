"""Forwards of a decoding run, recorded for static quantization."""

from collections.abc import Sequence

import llada_jax as lj
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.program import CompiledOnDemand
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.recorded_inputs import Inputs, Recorder
from llada_jax.backend.session import Session
from llada_jax.build.denoisers import score_rules
from llada_jax.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids

_MULTIPLE = 32


def record_forwards(
    model: lj.Model, questions: Sequence[str], sampler: SamplerConfig, limit: int
) -> list[Inputs]:
    """Records inputs of the first `limit` float32 forwards, in one shape that holds them all.
    Raises ValueError where the model has no tokenizer."""
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer; allowed: precisions fp16 and int8 alone")
    encode = model.tokenizer.encode_chat
    prompts = [encode([{"role": "user", "content": question}]) for question in questions]
    length = max(map(len, prompts)) + sampler.gen_length
    length = -(-length // _MULTIPLE) * _MULTIPLE
    program = CompiledOnDemand(model.config, model.params, LiteRT())
    recorder = Recorder(program, Bucket(length, length), limit)
    sampler = with_ids(sampler, model.config)
    denoiser = Session(recorder, score_rules(sampler)).denoiser()
    for prompt in prompts:
        decode(denoiser, None, model.config, [prompt], sampler, loop="host")
    (samples,) = recorder.samples.values()
    return samples
