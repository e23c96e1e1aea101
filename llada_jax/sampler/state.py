"""The canvas: tokens, what is known about each position, and where each row of the batch stands.

A canvas row starts with its prompt at position 0 and ends where its generation ends; shorter rows
are padded on the right. So a position is at once the index into the canvas, into the cache and into
RoPE, whatever the other rows of the batch hold, and every row decodes as it would alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.constraint.reach import Placed
from llada_jax.types import KVCache, Scores

LENGTH_MULTIPLE = 32
"""Canvases are padded to such a length, so that prompts of similar length share compiled programs.
It is also the height of a tile of the NPU's matrix unit."""

PAD, PROMPT, MASKED, VISIBLE, STABLE = range(5)
"""State of a position. A committed token is visible while it may still change, then stable."""


class Canvas(NamedTuple):
    """The state of decoding. Each row of the batch is a state machine of its own."""

    tokens: Int[Array, "B L"]
    state: Int[Array, "B L"]
    confidence: Float[Array, "B L"]  # of committed tokens, when they were last scored; else 0
    filled: Bool[Array, "B L"]  # became EOS without a prediction, because the row had stopped
    end: Int[Array, " B"]  # one past the last position that exists
    origin: Int[Array, " B"]  # where block 0 starts
    block: Int[Array, " B"]  # the current block
    block_step: Int[Array, " B"]  # forwards that the current block has had
    block_masks: Int[Array, " B"]  # masks that the current block had at its start
    steady_steps: Int[Array, " B"]  # forwards since the current block has no masks
    accepted: Int[Array, " B"]  # tokens that the last step committed, of the current block
    settled: Int[Array, " B"]  # positions before it have keys and values in the cache
    nfe: Int[Array, " B"]
    latest: Scores | None  # the last scores of each position, [B, L], for rules that need drafts
    rule_state: Any  # what a user's own rule remembers; None for others
    remasks: Int[Array, "B L"] | None  # how often masked again; None for rules that do not ask
    text: Placed | None  # where a constraint's text lies; None without one
    done: Bool[Array, " B"]
    fault: Int[Array, " B"]  # where the first score was that is no finite number; -1: none
    key: Key[Array, " B"]
    cache: KVCache

    @property
    def masked(self) -> Bool[Array, "B L"]:
        """Marks masks."""
        return self.state == MASKED

    @property
    def positions(self) -> Int[Array, " L"]:
        """Returns all positions, in order."""
        return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)

    def in_span(self, start: Int[Array, " B"], stop: Int[Array, " B"]) -> Bool[Array, "B L"]:
        """Marks the positions from `start` up to, not including, `stop`."""
        return (self.positions >= start[:, None]) & (self.positions < stop[:, None])

    def block_start(self, block_length: int) -> Int[Array, " B"]:
        """Returns the first position of each row's current block."""
        return self.origin + self.block * block_length

    def block_stop(self, block_length: int) -> Int[Array, " B"]:
        """Returns one past the last position of each row's current block."""
        return jnp.minimum(self.block_start(block_length) + block_length, self.end)

    def block_positions(self, block_length: int) -> Int[Array, "B C"]:
        """Returns the positions of each row's current block."""
        start = self.block_start(block_length)
        return start[:, None] + jnp.arange(block_length, dtype=jnp.int32)

    def blocks(self, block_length: int, positions: Array | None = None) -> Int[Array, "B R"]:
        """Returns the block of each of these positions, or of all; negative in the prompt."""
        at = self.positions[None] if positions is None else positions
        return (at - self.origin[:, None]) // block_length

    def masks_left(self, block_length: int) -> Int[Array, " B"]:
        """Returns how many masks the current block has."""
        start = self.block_start(block_length)
        inside = self.in_span(start, start + block_length)
        return (inside & self.masked).sum(axis=1, dtype=jnp.int32)

    def noise_keys(self, positions: Int[Array, "B C"]) -> Key[Array, "B C"]:
        """Returns a random key for each position in the forward that is under way."""
        keys = jax.vmap(jax.random.fold_in)(self.key, self.nfe)
        return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(keys, positions)

    def committed(
        self,
        positions: Int[Array, "B C"],
        tokens: Int[Array, "B C"],
        confidence: Float[Array, "B C"],
        transfer_mask: Bool[Array, "B C"],
        state: Int[Array, "B C"],
        mask_id: int,
    ) -> "Canvas":
        """Returns the canvas with tokens written where `transfer_mask` says, in their new states.

        A predicted [MASK] (`predict_mask`) leaves its position masked.
        """
        batch, length = jnp.arange(self.tokens.shape[0])[:, None], self.tokens.shape[1]
        slots = jnp.where(transfer_mask & (tokens != mask_id), positions, length)

        def write(old: Array, new: Array) -> Array:
            return old.at[batch, slots].set(new.astype(old.dtype), mode="drop")

        return self._replace(
            tokens=write(self.tokens, tokens),
            state=write(self.state, state),
            confidence=write(self.confidence, confidence),
        )

    def stable(self, where: Bool[Array, "B L"]) -> "Canvas":
        """Returns the canvas with some of its tokens stable as they are."""
        return self._replace(state=jnp.where(where, jnp.int8(STABLE), self.state))

    def ended(self, where: Bool[Array, "B L"], eos_id: int | None) -> "Canvas":
        """Returns the canvas with EOS at some positions, whose rows have stopped before them."""
        tokens = jnp.where(where, jnp.int32(eos_id), self.tokens)
        return self._replace(tokens=tokens, filled=self.filled | where).stable(where)

    def masked_again(self, where: Bool[Array, "B L"], mask_id: int | None) -> "Canvas":
        """Returns the canvas with masks in place of some tokens."""
        assert mask_id is not None
        return self._replace(
            tokens=jnp.where(where, jnp.int32(mask_id), self.tokens),
            state=jnp.where(where, jnp.int8(MASKED), self.state),
            confidence=jnp.where(where, jnp.float32(0), self.confidence),
        )


class CanvasLayout(NamedTuple):
    """Where prompts and blocks lie: plain integers, known before anything is compiled."""

    length: int  # L: the longest row, padded
    prompt_length: int  # of the longest prompt, padded; 0 for infilling
    n_blocks: int  # of the row that has most


def new_canvas(
    prompts: Sequence[np.ndarray],
    config: SamplerConfig,
    model: ModelConfig,
    keys: Key[Array, " B"],
    cache: KVCache,
    length: int,
    *,
    infill: bool,
) -> Canvas:
    """Returns a canvas of `length` that starts with the prompts, with [MASK] where tokens are to
    come.

    With `infill` the masks in the prompts are the holes, and nothing is appended.
    """
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    origin, end = bounds_of(lengths, config, model, infill=infill)
    batch = len(prompts)
    tokens = np.full((batch, length), config.mask_id, np.int32)
    state = np.full((batch, length), PAD, np.int8)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
        state[row, : len(prompt)] = PROMPT
        state[row, len(prompt) : end[row]] = MASKED
    if infill:
        state = np.where((state == PROMPT) & (tokens == config.mask_id), MASKED, state)
    first = np.argmax(state == MASKED, axis=1)
    block = (first - origin) // config.block_length
    in_block = (np.arange(length) - origin[:, None]) // config.block_length == block[:, None]
    masked = state == MASKED
    counters = ("block_step", "steady_steps", "accepted", "settled", "nfe")
    remasks = latest = None
    if "drafts" in getattr(config.rule, "needs", ()):
        none = [np.zeros(tokens.shape, config.parity.confidence_dtype) for _ in range(3)]
        latest = Scores(np.full_like(tokens, -1), *none)  # pyright: ignore
    if config.rule.counts_remasks:
        remasks = np.zeros_like(tokens)
    fields: dict[str, Any] = dict(
        {name: np.zeros(batch, np.int32) for name in counters},  # one each: loops donate them
        tokens=tokens,
        state=state.astype(np.int8),
        confidence=np.zeros((batch, length), np.float32),
        filled=np.zeros((batch, length), bool),
        end=end,
        origin=origin,
        block=block.astype(np.int32),
        block_masks=(masked & in_block).sum(axis=1, dtype=np.int32),
        latest=latest,
        remasks=remasks,
        done=~masked.any(axis=1),
        fault=np.full(batch, -1, np.int32),
    )
    return Canvas(**jax.device_put(fields), rule_state=None, text=None, key=keys, cache=cache)


def bounds_of(
    lengths: np.ndarray, config: SamplerConfig, model: ModelConfig, *, infill: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns where block 0 of each row starts, and one past the row's last position.

    Blocks count from the end of the prompt (LLaDA). Where the model's attention is block-causal
    they are aligned to absolute positions: the first one may hold the prompt's tail (LLaDA2), and
    the generation ends with a block. That is only known whole, so what is too long is cut off at
    the end.
    """
    if infill:
        return np.zeros_like(lengths), lengths
    end, block = lengths + config.gen_length, model.block_length
    if block is None:
        return lengths, end
    return lengths - lengths % config.block_length, -(-end // block) * block


def layout_of(
    lengths: np.ndarray, config: SamplerConfig, model: ModelConfig, *, infill: bool
) -> CanvasLayout:
    """Returns the `CanvasLayout` of prompts of these lengths."""
    origin, end = bounds_of(lengths, config, model, infill=infill)
    n_blocks = -(-(end - origin) // config.block_length)
    return CanvasLayout(
        length=_padded(int(end.max())),
        prompt_length=0 if infill else _padded(int(lengths.max())),
        n_blocks=int(n_blocks.max()),
    )


def _padded(length: int) -> int:
    return -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def take(array: Array, positions: Int[Array, "B R"]) -> Array:
    """Returns entries of [B, L, ...] at each row's positions, [B, R, ...]; out of range clips."""
    return jax.vmap(lambda line, at: jnp.take(line, at, axis=0, mode="clip"))(array, positions)


def choose(where: Bool[Array, "*leading"], one: Array, other: Array) -> Array:
    """Returns one array in some places of its leading axes, and the other in the rest."""
    return jnp.where(where.reshape(*where.shape, *[1] * (one.ndim - where.ndim)), one, other)


def put(positions: Int[Array, "B R"], values: Array, length: int, nothing: int = 0) -> Array:
    """Returns [B, length, ...] with values [B, R, ...] at each row's positions, and `nothing`
    elsewhere; what is from `length` on is dropped."""
    batch = jnp.arange(positions.shape[0])[:, None]
    empty = jnp.full((positions.shape[0], length, *values.shape[2:]), nothing, values.dtype)
    return empty.at[batch, positions].set(values, mode="drop")
