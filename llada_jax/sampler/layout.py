"""Where prompts and blocks are on the canvas, and the state before the first forward."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from llada_jax.config import ModelConfig
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.state import MASKED, PAD, PROMPT, DecodeState, RuleMemory
from llada_jax.sampler.windows.window import CanvasLayout
from llada_jax.types import KVCache

LENGTH_MULTIPLE = 32
"""Canvases are padded to such a length, so that prompts of similar length share compiled programs.
It is also the height of a tile of the NPU's matrix unit."""


def new_state(
    prompts: Sequence[np.ndarray],
    config: SamplerConfig,
    model: ModelConfig,
    keys: Key[Array, " B"],
    cache: KVCache,
    length: int,
    *,
    infill: bool,
) -> DecodeState:
    """Returns the state of canvases of `length` that start with the prompts, followed by masks.

    With `infill` the masks in the prompts are the holes, and nothing is appended. The rule has no
    memory yet.
    """
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    origin, end = sequence_bounds(
        lengths, config.gen_length, config.block_length, model.block_length, infill=infill
    )
    batch = len(prompts)
    tokens = np.full((batch, length), config.mask_id, np.int32)
    status = np.full((batch, length), PAD, np.int8)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
        status[row, : len(prompt)] = PROMPT
        status[row, len(prompt) : end[row]] = MASKED
    if infill:
        status = np.where((status == PROMPT) & (tokens == config.mask_id), MASKED, status)
    masked = status == MASKED
    block = (np.argmax(masked, axis=1) - origin) // config.block_length
    in_block = (np.arange(length) - origin[:, None]) // config.block_length == block[:, None]
    counters = ("block_step", "unmasked_steps", "n_cached", "nfe")
    fields: dict[str, Any] = dict(
        {name: np.zeros(batch, np.int32) for name in counters},  # one array each: loops donate them
        tokens=tokens,
        status=status.astype(np.int8),
        confidence=np.zeros((batch, length), np.float32),
        filled=np.zeros((batch, length), bool),
        end=end,
        origin=origin,
        block=block.astype(np.int32),
        block_masks=(masked & in_block).sum(axis=1, dtype=np.int32),
        done=~masked.any(axis=1),
        fault=np.full(batch, -1, np.int32),
    )
    no_memory: Any = None
    memory = RuleMemory(no_memory, no_memory)
    return DecodeState(**jax.device_put(fields), key=keys, cache=cache, rule=memory)


def sequence_bounds(
    lengths: np.ndarray,
    gen_length: int,
    block_length: int,
    model_block: int | None,
    *,
    infill: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first position of block 0 and one past the last position of each sequence.

    Blocks count from the end of the prompt (LLaDA). If the model's attention is block-causal, they
    are aligned to absolute positions: the first one may hold the prompt's tail (LLaDA2), and the
    generation ends with a whole block. Its length is only known then, so the surplus is cut off at
    the end.

    Args:
      lengths: Tokens of each prompt, [B].
      model_block: The block length of the model's attention, or None if it is not block-causal.
    """
    if infill:
        return np.zeros_like(lengths), lengths
    end = lengths + gen_length
    if model_block is None:
        return lengths, end
    return lengths - lengths % block_length, -(-end // model_block) * model_block


def layout_of(
    lengths: np.ndarray, config: SamplerConfig, model: ModelConfig, *, infill: bool
) -> CanvasLayout:
    """Returns the `CanvasLayout` of prompts of these lengths."""
    origin, end = sequence_bounds(
        lengths, config.gen_length, config.block_length, model.block_length, infill=infill
    )
    n_blocks = -(-(end - origin) // config.block_length)
    return CanvasLayout(
        length=_padded(int(end.max())),
        prompt_length=0 if infill else _padded(int(lengths.max())),
        n_blocks=int(n_blocks.max()),
    )


def _padded(length: int) -> int:
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
