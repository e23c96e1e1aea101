"""The state of decoding: tokens, the status of each position, and progress by sequence.

A sequence of the batch starts with its prompt at position 0 and ends where its generation ends;
shorter sequences are padded on the right. So a position is at once the index into the canvas, into
the cache and into RoPE, whatever the other sequences of the batch hold, and each sequence decodes
as it would alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.constraint.reach import TextSpans
from llada_jax.types import KVCache, Scores

PAD, PROMPT, MASKED, VISIBLE, STABLE = range(5)
"""Status of a position. A committed token is visible while it may still change, then stable."""


class RuleState(NamedTuple):
    """A rule's memory: trees of arrays with the batch as first axis.

    Attributes:
      row: Kept for as long as the sequence is decoded.
      block: Reset to what `init` returned whenever a sequence moves to another block.
    """

    row: Any = ()
    block: Any = ()


class PreviousScores(NamedTuple):
    """Hidden states of the block's positions when they were last scored, for divergences."""

    hidden: Float[Array, "B C D"]
    known: Bool[Array, "B C"]


class TopTokens(NamedTuple):
    """The k most probable ids of each position and their log-probabilities, the best one first; -1
    and -inf if there are fewer."""

    ids: Int[Array, "*positions k"]
    logprobs: Float[Array, "*positions k"]


class RuleMemory(NamedTuple):
    """Everything that is kept for the rule: its state, and the data that its `needs` require."""

    state: RuleState
    initial_block: Any  # `state.block` as `init` returned it
    previous: PreviousScores | None = None  # for rules that need divergences
    drafts: Scores | None = None  # the last scores of each position, for rules that need drafts
    remasks: Int[Array, "B L"] | None = None  # how often each position was masked again


class DecodeState(NamedTuple):
    """The state of decoding a batch of B sequences on canvases of L positions."""

    tokens: Int[Array, "B L"]
    status: Int[Array, "B L"]  # PAD, PROMPT, MASKED, VISIBLE or STABLE
    confidence: Float[Array, "B L"]  # of committed tokens, when they were last scored; else 0
    filled: Bool[Array, "B L"]  # became EOS without a prediction, because the sequence had stopped
    end: Int[Array, " B"]  # one past the last position that exists
    origin: Int[Array, " B"]  # first position of block 0
    block: Int[Array, " B"]  # the current block
    block_step: Int[Array, " B"]  # forwards that the current block has had
    block_masks: Int[Array, " B"]  # masks that the current block had at its start
    unmasked_steps: Int[Array, " B"]  # forwards since the current block has no masks
    n_cached: Int[Array, " B"]  # positions before it have keys and values in the cache
    nfe: Int[Array, " B"]  # forwards so far (number of function evaluations)
    done: Bool[Array, " B"]
    fault: Int[Array, " B"]  # position of the first score that is not finite; -1 for none
    key: Key[Array, " B"]
    cache: KVCache
    rule: RuleMemory
    constraint: TextSpans | None = None  # where the constrained text is
    draft: Any = ()  # the drafter's memory
    top: TopTokens | None = None
    """Of the forward that committed each token, or last scored each mask, [B, L, k]; None if it was
    not requested."""

    @property
    def masked(self) -> Bool[Array, "B L"]:
        """Marks masks."""
        return self.status == MASKED

    @property
    def committed(self) -> Bool[Array, "B L"]:
        """Marks committed tokens, visible and stable ones."""
        return self.status >= VISIBLE

    @property
    def positions(self) -> Int[Array, "1 L"]:
        """Returns all positions, in order."""
        return jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None, :]

    def in_span(self, start: Int[Array, " B"], stop: Int[Array, " B"]) -> Bool[Array, "B L"]:
        """Marks the positions from `start` up to, not including, `stop`."""
        return (self.positions >= start[:, None]) & (self.positions < stop[:, None])

    def block_start(self, block_length: int) -> Int[Array, " B"]:
        """Returns the first position of each sequence's current block."""
        return self.origin + self.block * block_length

    def block_stop(self, block_length: int) -> Int[Array, " B"]:
        """Returns one past the last position of each sequence's current block."""
        return jnp.minimum(self.block_start(block_length) + block_length, self.end)

    def block_positions(self, block_length: int) -> Int[Array, "B C"]:
        """Returns the positions of each sequence's current block."""
        start = self.block_start(block_length)
        return start[:, None] + jnp.arange(block_length, dtype=jnp.int32)[None, :]

    def blocks(self, block_length: int, positions: Array | None = None) -> Int[Array, "B R"]:
        """Returns the block of each of these positions, or of all; negative in the prompt."""
        at = self.positions if positions is None else positions
        return (at - self.origin[:, None]) // block_length

    def masks_left(self, block_length: int) -> Int[Array, " B"]:
        """Returns how many masks the current block has."""
        start = self.block_start(block_length)
        inside = self.in_span(start, start + block_length)
        return (inside & self.masked).sum(axis=1, dtype=jnp.int32)

    def noise_keys(
        self, positions: Int[Array, "B C"], *, in_order: bool = False
    ) -> Key[Array, "B C"]:
        """Returns a random key for each position in the forward that is under way; with `in_order`
        in the forward that would predict it if each one predicted one token."""
        forward = jnp.broadcast_to(self.nfe[:, None], positions.shape)
        if in_order:
            prompt = (self.status == PROMPT).sum(axis=1, keepdims=True, dtype=jnp.int32)
            forward = positions - prompt + 1
        fold_each = jax.vmap(jax.vmap(jax.random.fold_in))
        keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(self.key, forward)
        return fold_each(keys, positions)

    def with_tokens(
        self,
        positions: Int[Array, "B C"],
        tokens: Int[Array, "B C"],
        confidence: Float[Array, "B C"],
        write: Bool[Array, "B C"],
        status: Int[Array, "B C"],
        mask_id: int,
    ) -> "DecodeState":
        """Returns the state with tokens written at `positions` where `write` is true.

        A predicted [MASK] (`predict_mask`) leaves its position masked.
        """
        batch, length = jnp.arange(self.tokens.shape[0])[:, None], self.tokens.shape[1]
        slots = jnp.where(write & (tokens != mask_id), positions, length)

        def scatter(old: Array, new: Array) -> Array:
            return old.at[batch, slots].set(new.astype(old.dtype), mode="drop")

        return self._replace(
            tokens=scatter(self.tokens, tokens),
            status=scatter(self.status, status),
            confidence=scatter(self.confidence, confidence),
        )

    def with_stable(self, where: Bool[Array, "B L"]) -> "DecodeState":
        """Returns the state with the tokens in `where` stable."""
        return self._replace(status=jnp.where(where, jnp.int8(STABLE), self.status))

    def with_eos(self, where: Bool[Array, "B L"], eos_id: int | None) -> "DecodeState":
        """Returns the state with EOS in `where`: sequences that have stopped before it."""
        tokens = jnp.where(where, jnp.int32(eos_id), self.tokens)
        return self._replace(tokens=tokens, filled=self.filled | where).with_stable(where)

    def with_masks(self, where: Bool[Array, "B L"], mask_id: int) -> "DecodeState":
        """Returns the state with masks in `where`, in place of tokens."""
        return self._replace(
            tokens=jnp.where(where, jnp.int32(mask_id), self.tokens),
            status=jnp.where(where, jnp.int8(MASKED), self.status),
            confidence=jnp.where(where, jnp.float32(0), self.confidence),
        )


def take(array: Array, positions: Int[Array, "B R"]) -> Array:
    """Returns entries of [B, L, ...] at each sequence's positions: [B, R, ...].

    Positions out of range are clipped.
    """
    return jax.vmap(lambda line, at: jnp.take(line, at, axis=0, mode="clip"))(array, positions)


def choose(where: Bool[Array, "*leading"], one: Array, other: Array) -> Array:
    """Selects entries of `one` or `other` by a condition on the leading axes."""
    return jnp.where(where.reshape(*where.shape, *[1] * (one.ndim - where.ndim)), one, other)


def put(positions: Int[Array, "B R"], values: Array, length: int, nothing: int = 0) -> Array:
    """Scatters values [B, R, ...] to their positions in [B, length, ...], filled with `nothing`.

    Positions from `length` on are dropped.
    """
    batch = jnp.arange(positions.shape[0])[:, None]
    empty = jnp.full((positions.shape[0], length, *values.shape[2:]), nothing, values.dtype)
    return empty.at[batch, positions].set(values, mode="drop")
