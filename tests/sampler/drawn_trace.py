"""A synthetic trace, made without a model: each forward scores all masks and commits one."""

from dataclasses import asdict

import numpy as np

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.record import Event
from llada_jax.sampler.trace import Trace
from llada_jax.testing import TOY, VOCAB

PROMPT = 3


def drawn_trace(forwards: int, block_length: int) -> Trace:
    draw = np.random.default_rng(0)
    step, place = np.nonzero(np.triu(np.ones((forwards, forwards), bool)))
    zeros = np.zeros((forwards, 1), np.int32)
    length = PROMPT + forwards
    sampler = SamplerConfig.from_flat(gen_length=forwards, block_length=block_length, cache="dual")
    pieces = {str(each): f" t{each}" for each in range(VOCAB)} | {"5": "</script><b>"}
    return Trace(
        rows=np.full(forwards, length),
        live_rows=zeros + length,
        shadow_rows=zeros,
        draft_rows=zeros,
        refreshed=zeros,
        head_rows=zeros + forwards,
        cache_length=zeros,
        block=np.arange(forwards)[:, None] // block_length,
        seconds=np.full(forwards, 0.01),
        event_step=step,
        event_row=np.zeros(len(step), int),
        event_position=PROMPT + place,
        event_token=np.where(place == step, 5, draw.integers(VOCAB, size=len(step))),
        event_confidence=draw.random(len(step)),
        event_kind=np.where(place == step, Event.COMMIT, Event.SCORE),
        prompt_lengths=np.array([PROMPT]),
        tokens=np.full((1, length), 5),
        settings={
            "sampler": sampler.as_dict(), "model": asdict(TOY), "infill": False, "pieces": pieces,
        },
    )  # fmt: skip
