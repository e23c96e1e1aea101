"""The window interface: the rows of the next forward, and the part of the cache that it may read.

A window returns a span of positions for each sequence, or any set of them as a mask. Sets of
different size share one compiled forward: surplus rows are padding, and the number of rows is
rounded up to a bucket.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.config import LatencyTable
from llada_jax.sampler.policy import Policy, make_policy
from llada_jax.sampler.state import DecodeState, put, take


class Span(NamedTuple):
    """Positions from `start` up to, not including, `stop`."""

    start: Int[Array, " B"]
    stop: Int[Array, " B"]


class RowSet(NamedTuple):
    """The positions that a forward runs, in order: a span, or the marked positions of a mask."""

    start: Int[Array, " B"]
    stop: Int[Array, " B"]
    mask: Bool[Array, "B L"] | None = None

    @property
    def count(self) -> Int[Array, " B"]:
        if self.mask is None:
            return self.stop - self.start
        return self.mask.sum(axis=1, dtype=jnp.int32)

    def includes(self, positions: Int[Array, "... T"]) -> Bool[Array, "B T"]:
        """Marks which of these positions run; the same for all, [1, T], or [B, T]."""
        if self.mask is None:
            return (positions >= self.start[:, None]) & (positions < self.stop[:, None])
        every = jnp.broadcast_to(positions, (self.mask.shape[0], positions.shape[-1]))
        return take(self.mask, every)

    def row_of(self, positions: Int[Array, "B T"]) -> Int[Array, "B T"]:
        """Returns the row of each position, 0 or more; arbitrary for positions that do not run."""
        if self.mask is None:
            return jnp.maximum(positions - self.start[:, None], 0)
        row = jnp.cumsum(self.mask, axis=1, dtype=jnp.int32) - 1
        return jnp.maximum(take(row, jnp.broadcast_to(positions, self.mask.shape)), 0)

    def positions(self, n_rows: int) -> Int[Array, "B R"]:
        """Returns the position of each row; beyond `count` rows are padding."""
        index = jnp.arange(n_rows, dtype=jnp.int32)[None, :]
        if self.mask is None:
            return self.start[:, None] + index
        length = self.mask.shape[1]
        at = first_flags(self.mask, n_rows)
        return jnp.where(at < length, at, length + index)  # padding repeats no position


@dataclass(frozen=True)
class WindowContext:
    """What a window knows of the settings and the rule."""

    block_length: int
    shift: int
    """How many positions before a token the row is that predicts it; 0 or 1."""
    min_commits: int
    """Most masks that a step commits however unsure the model is."""
    latency_table: LatencyTable | None
    """Milliseconds of a forward by its rows, if they are known."""
    refresh_rows: int
    """Most tokens outside the window that one forward refreshes."""
    shadows: bool
    """Whether each rescored token takes an extra row."""
    rescorable: Any = None  # Bool[Array, "B L"]
    """Visible tokens that the rule wants scored again; None before decoding begins."""


class CanvasLayout(NamedTuple):
    """Lengths that are known before anything is compiled."""

    length: int  # L: the longest sequence, padded
    prompt_length: int  # of the longest prompt, padded; 0 for infilling
    n_blocks: int  # of the sequence with most blocks


class Window(Policy):
    """Decides which positions a forward runs."""

    cache: ClassVar[str] = "custom"
    """How configurations spell the kind of cache: `none`, `prefix`, `dual` or `blockwise`."""
    caches: ClassVar[bool] = True
    """Whether keys and values are kept at all."""
    caches_finished: ClassVar[bool] = False
    """Whether only finished tokens are cached, so that rows see no masked suffix, and visible
    tokens may leave the window."""
    drafts: ClassVar[bool] = False
    """Whether the window reaches into later blocks, with drafts as predictions."""
    slides: ClassVar[bool] = False
    """Whether `after_step` moves the start of the current block."""
    runs_later_blocks: ClassVar[bool] = False
    """Whether the window may contain positions after the current block."""
    draft_threshold: float | None = None
    """Confidence at which drafts are accepted; None for the drafts that the rule accepts."""

    def check(self, context: WindowContext) -> None:
        """Raises ValueError if the window cannot work with these settings."""

    def positions(self, state: DecodeState, context: WindowContext) -> Span | Bool[Array, "B L"]:
        """Returns the positions that the next forward runs: a span, or any set as a mask.

        They include the masks of the current block, and whatever before it is not yet cached.
        """
        raise NotImplementedError

    def cached_after(
        self, state: DecodeState, rows: RowSet, context: WindowContext
    ) -> Int[Array, " B"]:
        """Returns the position before which the cache may be read after the forward of `rows`."""
        return state.end if self.caches else state.n_cached

    def after_step(self, state: DecodeState, context: WindowContext) -> DecodeState:
        """Returns the state after a decision, with the current block of the next step."""
        return state

    def sizes(self, layout: CanvasLayout, context: WindowContext) -> tuple[int, ...]:
        """Returns numbers of positions to compile for, ascending; the last one holds every set."""
        return doubling(context.block_length, layout.length)

    def max_visible(self, length: int, context: WindowContext) -> int:
        """Returns the most positions of a set that may be visible, the prompt aside."""
        return length

    def attention_order(
        self, state: DecodeState, positions: Int[Array, "B R"], context: WindowContext
    ) -> Int[Array, "B R"] | None:
        """Returns an order of positions in which a row sees only its own and lower ones, though
        the model would see all; None if it sees all.

        If finished blocks are cached without what follows them, blocks are in order, and the
        prompt comes before all of them.
        """
        if not self.caches_finished:
            return None
        return jnp.maximum(state.blocks(context.block_length, positions), -1)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def window(cls: Any = None, *, name: str | None = None, cache: str = "custom") -> Any:
    """Makes a class with a function `positions` a window: a frozen dataclass. A sweep over its
    `float` fields compiles once.

    Args:
      cls: The class, if the decorator is used without parentheses.
      name: How configurations spell it; by default `module:Class`, which can be imported.
      cache: How configurations spell its cache.

    Raises:
      TypeError: The class has no function `positions`.
    """
    if cls is None:
        return lambda decorated: window(decorated, name=name, cache=cache)
    if not callable(getattr(cls, "positions", None)):
        raise TypeError(
            f"window {cls.__name__} has no positions; allowed: positions(self, state, context)"
        )
    made = make_policy(cls, Window, name)
    made.cache = cache
    return made


def first_flags(flags: Bool[Array, "B M"], size: int) -> Int[Array, "B S"]:
    """Returns the positions of the first `size` flags, in order, then M."""
    length = flags.shape[1]
    slot = jnp.where(flags, jnp.cumsum(flags, axis=1, dtype=jnp.int32) - 1, size)
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), flags.shape)
    return put(slot, index, size, nothing=length)


def doubling(smallest: int, largest: int) -> tuple[int, ...]:
    """Returns `smallest`, its doublings below `largest`, and `largest`."""
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= 2
    return (*sizes, largest)
