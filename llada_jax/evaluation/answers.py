"""A model's answers to the items of a task."""

from collections.abc import Mapping
from functools import cache

import jax.monitoring

from llada_jax import build
from llada_jax.build import Model
from llada_jax.config import Loop, SamplerConfig
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import Generation, GenerationBatch
from llada_jax.evaluation.task import Item
from llada_jax.sampler.trace import Trace

COMPILED = "/jax/core/compile/backend_compile_duration"


def answer_items(
    model: Model,
    items: Mapping[int, Item],
    sampler: SamplerConfig,
    *,
    backend: str = "xla",
    seed: int = 0,
    loop: Loop | None = None,
    refresh_on: Model | None = None,
) -> tuple[GenerationBatch, Trace]:
    """Decodes items, given by their place, at once; the place and `seed` make an item's own seed.

    An answer ends with its first token that ends a text or a turn. Backend, loop, `refresh_on` and
    errors are those of `llada_jax.generate`.
    """
    assert model.tokenizer is not None
    chats = [[{"role": "user", "content": item.question}] for item in items.values()]
    compiled_before = _compilations().count
    result = build.generate(
        model,
        [model.tokenizer.encode_chat(chat) for chat in chats],
        sampler,
        backend=backend,
        seed=[seed + index for index in items],
        trace=True,
        loop=loop,
        refresh_on=refresh_on,
    )
    assert result.trace is not None
    generations = []
    columns = zip(result.generated, result.answers, result.text, result.nfe, strict=True)
    for (index, item), (tokens, answer, text, nfe) in zip(items.items(), columns, strict=True):
        length = min(len(answer) + 1, len(tokens))  # with the token that ends it
        generations.append(Generation(index, item, text, tokens.tolist(), length, int(nfe)))
    compiled = _compilations().count > compiled_before
    return GenerationBatch(generations, result.seconds, compiled, environment()), result.trace


class _Counter:
    """Counts the programs that JAX compiled, or read from its compile cache."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        self.count += event == COMPILED


@cache
def _compilations() -> _Counter:
    counter = _Counter()
    jax.monitoring.register_event_duration_secs_listener(counter)
    return counter
