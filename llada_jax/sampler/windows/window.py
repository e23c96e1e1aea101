"""What every window is: which rows the next forward runs, and what it may read from the cache.

A window is one span of positions for each batch row. Spans of different length share one compiled
forward: rows beyond a span are padding, and the number of rows is rounded up to a bucket.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.sampler.canvas import Canvas, CanvasLayout
from llada_jax.sampler.policy_pytree import Policy


class Span(NamedTuple):
    """Positions from `start` up to, not including, `stop`."""

    start: Int[Array, " B"]
    stop: Int[Array, " B"]

    @property
    def length(self) -> Int[Array, " B"]:
        return self.stop - self.start


class Window(Policy):
    """Decides which positions a forward runs.

    Its functions take the sampler's settings, of which it is a part, and `shift`, how many
    positions before a token its prediction stands.
    """

    caches: ClassVar[bool] = True  # keeps keys and values at all
    leaves_tokens: ClassVar[bool] = False  # caches finished tokens alone: a visible one may leave
    drafts: ClassVar[bool] = False  # reaches into later blocks
    slides: ClassVar[bool] = False  # blocks begin where it says, not where the one before ends

    def check(self, config: SamplerConfig) -> None:
        """Raises ValueError where the window cannot work with the rest of the settings."""

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        """Returns the positions that the next forward must run."""
        raise NotImplementedError

    def settled(self, canvas: Canvas, config: SamplerConfig, span: Span) -> Int[Array, " B"]:
        """Returns the position before which, after the forward of `span`, the cache may be read."""
        return canvas.end

    def moved(self, canvas: Canvas, config: SamplerConfig) -> Canvas:
        """Returns the canvas after a decision, with its current block where the next step has
        it."""
        return canvas

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        """Returns lengths that spans round up to, ascending; the last one holds every span."""
        raise NotImplementedError

    def most_rows(self, config: SamplerConfig, length: int) -> int:
        """Returns the most positions of a span that may be visible, the prompt aside."""
        return 2 * config.block_length

    def attention_order(
        self, canvas: Canvas, positions: Int[Array, "B R"], config: SamplerConfig
    ) -> Int[Array, "B R"] | None:
        """Returns the order between positions where a row sees only its own and lower ones, though
        the model would see all; None where it sees all.

        Where finished blocks are cached without what follows them, blocks are in order, and the
        prompt comes before all of them.
        """
        if not self.leaves_tokens:
            return None
        return jnp.maximum(canvas.blocks(config.block_length, positions), -1)


def doubling(smallest: int, largest: int) -> tuple[int, ...]:
    """Returns `smallest`, its doublings below `largest`, and `largest`."""
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= 2
    return (*sizes, largest)


def buckets_for(
    config: SamplerConfig, layout: CanvasLayout, model: ModelConfig, extra_rows: int = 0
) -> tuple[int, ...]:
    """Returns the row counts of the forwards that a window needs, ascending.

    One more row where outputs are shifted: a block's first token is predicted one position earlier.
    Where attention is causal between blocks, they are run whole. At most `extra_rows` stand beside.
    """
    shift, block = int(model.shift_logits), model.block_length
    sizes = config.window.sizes(layout, config, shift)
    if block is not None and not config.window.drafts:
        sizes = {-(-size // block) * block for size in sizes} | {2 * block}
    buckets = {min(size + shift, layout.length) for size in sizes}
    if extra_rows:
        buckets |= set(doubling(config.block_length, max(buckets) + extra_rows))
    return tuple(sorted(buckets))
