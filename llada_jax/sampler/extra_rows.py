"""Extra rows, beside the window's: shadows, and refreshes of tokens that it left behind.

They follow the window's rows in the same forward, and no row of the window sees them. So with them
or without them, the window's own results are the same.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.sampler.canvas import put

SHADOW, REFRESH, PROBE, NOTHING, WINDOW = range(5)
"""What a row is.

- SHADOW feeds [MASK] at a position whose token it does not see: what would stand there?
- REFRESH feeds a token that left the window, for its key and value; it sees the cache and itself.
- PROBE is the shadow of such a token.
"""


class ExtraRows(NamedTuple):
    """Which positions have a row of which kind."""

    kinds: Bool[Array, "B 3 L"]  # shadow, refresh, probe

    def at(self, kind: int) -> Bool[Array, "B L"]:
        """Returns the positions that have a row of this kind."""
        return self.kinds[:, kind]

    @property
    def slots(self) -> Int[Array, "B 3 L"]:
        """The place of each row behind the window's; that of the one before where there is none."""
        flat = self.kinds.reshape(self.kinds.shape[0], -1)
        return (jnp.cumsum(flat, axis=1, dtype=jnp.int32) - 1).reshape(self.kinds.shape)


def extra_rows(
    shadow: Bool[Array, "B L"] | None = None,
    refresh: Bool[Array, "B L"] | None = None,
    probe: Bool[Array, "B L"] | None = None,
    *,
    like: Array,
) -> ExtraRows:
    """Returns extra rows of these kinds, for canvases of the shape of `like`."""
    none = jnp.zeros(like.shape, bool)
    kinds = [none if kind is None else kind for kind in (shadow, refresh, probe)]
    return ExtraRows(jnp.stack(kinds, axis=1))


def packed(flags: Bool[Array, "B M"], size: int) -> Int[Array, "B S"]:
    """Returns where the first `size` flags are, in order. M stands where there is none."""
    length = flags.shape[1]
    slot = jnp.where(flags, jnp.cumsum(flags, axis=1, dtype=jnp.int32) - 1, size)
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), flags.shape)
    return put(slot, index, size, nothing=length)
