"""Makes training batches; a batch is a pure function of the seed and the step.

A canvas is a prompt and an answer region, padded with EOS so that the model learns where answers
end. Two properties vary, so that every state of the sampler's windows occurs in training:

- The end of the canvas. With a fixed length the model would learn to count from the end.
- The masks. In addition to LLaDA's masking of the whole region at random, some canvases are masked
  as a block-wise decoder sees them: earlier blocks are clean, one block is partly masked, and after
  it come only masks, or nothing (a window without masked suffix).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import TrainConfig


class Example(NamedTuple):
    """Token ids of a prompt and of its answer, including the token that ends the answer."""

    prompt: Sequence[int]
    answer: Sequence[int]
    gen_length: int | None = None
    """Maximum length of the answer region, or None for the configuration's."""


ExampleSource = Callable[[int], Example]
"""Returns the example with an index, 0 and up without end; a pure function."""


class TrainingBatch(NamedTuple):
    """Canvases padded on the right to the same length."""

    tokens: Int[np.ndarray, "B L"]  # unmasked
    live: Bool[np.ndarray, "B L"]  # the canvas without padding
    target: Bool[np.ndarray, "B L"]  # may be masked, and is predicted if so
    hidden: Bool[np.ndarray, "B L"]  # always masked, never predicted


_Canvas = tuple[Int[np.ndarray, " L"], slice, slice]
"""Tokens, the slice that may be masked, and the slice that is always masked."""


def batches(
    source: ExampleSource, config: TrainConfig, eos_id: int, first_step: int = 0
) -> Iterator[TrainingBatch]:
    """Yields the batches of steps `first_step`, `first_step + 1` and so on, without end."""
    group, index = divmod(first_step, config.group_steps)
    while True:
        yield from _group(source, config, eos_id, group)[index:]
        group, index = group + 1, 0


def _group(
    source: ExampleSource, config: TrainConfig, eos_id: int, group: int
) -> list[TrainingBatch]:
    """Makes the batches of `group_steps` steps together, so that canvases of similar length share a
    batch and little of it is padding."""
    rng = np.random.default_rng([config.seed, group])
    size = config.batch_size * config.group_steps
    canvases = [
        _canvas(source(index), config, eos_id, rng)
        for index in range(group * size, (group + 1) * size)
    ]
    canvases.sort(key=lambda canvas: len(canvas[0]))
    parts = [canvases[i : i + config.batch_size] for i in range(0, size, config.batch_size)]
    rng.shuffle(parts)
    for part in parts:
        rng.shuffle(part)
    return [_stack(part, config.length_multiple) for part in parts]


def _canvas(
    example: Example, config: TrainConfig, eos_id: int, rng: np.random.Generator
) -> _Canvas:
    start, answer = len(example.prompt), len(example.answer)
    max_length = min(example.gen_length or config.max_gen_length, config.max_gen_length)
    if answer > max_length:
        raise ValueError(f"an answer has {answer} tokens; allowed: up to {max_length}")
    gen_length = int(rng.integers(answer, max_length + 1))
    first, last = 0, gen_length
    if config.objective == "finetune" and rng.random() < config.block_share:
        # Includes the block after an answer that fills its last block; it contains only EOS.
        first = int(rng.integers(answer // config.block_length + 1)) * config.block_length
        first = min(first, max_length - config.block_length)
        last = first + config.block_length
        gen_length = last if rng.random() < config.cut_share else max(last, gen_length)
    tokens = np.full(start + gen_length, eos_id, np.int32)
    tokens[:start] = example.prompt
    shown = min(answer, gen_length)
    tokens[start : start + shown] = example.answer[:shown]
    if config.objective == "pretrain":
        return tokens, slice(0, start + gen_length), slice(0, 0)
    return tokens, slice(start + first, start + last), slice(start + last, start + gen_length)


def _stack(canvases: Sequence[_Canvas], length_multiple: int) -> TrainingBatch:
    longest = max(len(tokens) for tokens, _, _ in canvases)
    shape = len(canvases), -(-longest // length_multiple) * length_multiple
    tokens = np.zeros(shape, np.int32)
    live, target, hidden = (np.zeros(shape, bool) for _ in range(3))
    for row, (canvas, targets, hides) in enumerate(canvases):
        tokens[row, : len(canvas)] = canvas
        live[row, : len(canvas)] = True
        target[row, targets] = True
        hidden[row, hides] = True
    return TrainingBatch(tokens, live, target, hidden)
