"""Products of rows with the matrix of the group that they belong to: experts of a mixture."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.model.quantize import QuantArray, Weight, is_quantized, linear

MOST_ROWS = 32
"""Rows of a tile at most: then what a product costs is its arithmetic, not reading a matrix."""


def grouped_product(
    rows: Float[Array, "T In"], weights: Weight, group_sizes: Int[Array, " E"]
) -> Float[Array, "T Out"]:
    """Returns each row times the transposed matrix of its group, summed in float32.

    Args:
      rows: sorted by group: the first `group_sizes[0]` of group 0, and so on.
      weights: [E, Out, In], a matrix for each group. Of quantized ones, one matrix is unpacked at a
        time, as `linear` does it.

    On a CPU the work is proportional to the rows, as XLA's own `ragged_dot` is not: there it
    multiplies all rows by all matrices. Gradients are those of `ragged_dot`.
    """
    if is_quantized(weights):
        return tile_by_tile(rows, weights, group_sizes)
    return jax.lax.platform_dependent(
        rows, weights, group_sizes, cpu=_differentiable_tiles, default=_at_once
    )


def _at_once(
    rows: Float[Array, "T In"], weights: Float[Array, "E Out In"], group_sizes: Int[Array, " E"]
) -> Float[Array, "T Out"]:
    out = jax.lax.ragged_dot(
        rows, weights.swapaxes(1, 2), group_sizes, preferred_element_type=jnp.float32
    )
    return out.astype(rows.dtype)


def tile_by_tile(
    rows: Float[Array, "T In"],
    weights: Weight,
    group_sizes: Int[Array, " E"],
    size: int | None = None,
) -> Float[Array, "T Out"]:
    """Multiplies tiles of `size` rows, by default what `tile_rows` says. What a tile has beyond its
    group is overwritten by the tile of the next group, and after the last group it is anything."""
    n_groups, n_out = (weights.values if isinstance(weights, QuantArray) else weights).shape[:2]
    size = size or tile_rows(len(rows), n_groups)
    starts = jnp.cumsum(group_sizes) - group_sizes
    n_tiles = -(-group_sizes // size)
    stops = jnp.cumsum(n_tiles)
    padded = jnp.pad(rows, [(0, size), (0, 0)])

    def with_tile(number: Int[Array, ""], out: Float[Array, "t Out"]) -> Float[Array, "t Out"]:
        group = jnp.searchsorted(stops, number, side="right")
        start = starts[group] + size * (number - stops[group] + n_tiles[group])
        tile = jax.lax.dynamic_slice_in_dim(padded, start, size)
        matrix = jax.tree.map(lambda leaf: leaf[group], weights)
        return jax.lax.dynamic_update_slice_in_dim(out, linear(tile, matrix), start, axis=0)

    empty = jnp.zeros((len(padded), n_out), rows.dtype)
    return jax.lax.fori_loop(0, stops[-1], with_tile, empty)[: len(rows)]


def tile_rows(n_rows: int, n_groups: int) -> int:
    """Returns how many rows a tile has: a power of two, about twice what a group has on average."""
    return min(MOST_ROWS, max(4, 1 << (2 * n_rows // n_groups - 1).bit_length()))


@jax.custom_vjp
def _differentiable_tiles(rows, weights, group_sizes):
    """Is `tile_by_tile`, whose loop has no gradient of its own."""
    return tile_by_tile(rows, weights, group_sizes)


def _forward(rows, weights, group_sizes):
    return tile_by_tile(rows, weights, group_sizes), (rows, weights, group_sizes)


def _backward(inputs, gradient):
    rows, weights, group_sizes = inputs
    _, pull = jax.vjp(lambda rows, weights: _at_once(rows, weights, group_sizes), rows, weights)
    return *pull(gradient), None


_differentiable_tiles.defvjp(_forward, _backward)
