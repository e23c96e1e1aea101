"""Products of rows with the matrix of their group, for the experts of a mixture.

On a CPU, XLA's `ragged_dot` multiplies all rows by all matrices. Here rows are sorted by group, and
a loop multiplies tiles of a few rows by one matrix each, so the work is proportional to the rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from llada_jax.model.quantize import (
    PairedInt4,
    QuantArray,
    Weight,
    dequantize,
    is_quantized,
    linear,
    with_paired_int4,
)

MOST_ROWS = 32  # of a tile: beyond, arithmetic costs more than reading the matrix


def grouped_product(
    rows: Float[Array, "T In"], weights: Weight, group_sizes: Int[Array, " E"]
) -> Float[Array, "T Out"]:
    """Returns each row times the transposed matrix of its group, summed in float32.

    Args:
      rows: Sorted by group: the first `group_sizes[0]` of group 0, and so on.
      weights: [E, Out, In], a matrix for each group. int4 matrices are unpacked one at a time, and
        once for all rows of the group.
    """
    weights = with_paired_int4(weights)
    if isinstance(weights, PairedInt4) or is_quantized(weights):
        return product_by_tile(rows, weights, group_sizes, tile_rows(len(rows), len(group_sizes)))
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


class _Tile(NamedTuple):
    """`rows` rows of one group; the rows after them belong to other groups."""

    group: Int[Array, ""]
    start: Int[Array, ""]
    rows: Int[Array, ""]


def _each_tile(
    size: int,
    group_sizes: Int[Array, " E"],
    of_group: Callable[[Int[Array, ""]], Any],
    with_tile: Callable[[_Tile, Any, Array], Array],
    out: Array,
) -> Array:
    """Passes `out` through tiles of up to `size` rows, group after group. `of_group` makes the
    input of a group's tiles once, and not for groups without rows."""
    starts, n_tiles = jnp.cumsum(group_sizes) - group_sizes, -(-group_sizes // size)
    with_rows = jnp.argsort(group_sizes == 0, stable=True)

    def with_group(number: Int[Array, ""], out: Array) -> Array:
        group = with_rows[number]
        group_input = of_group(group)

        def step(index: Int[Array, ""], out: Array) -> Array:
            done = size * index
            tile = _Tile(group, starts[group] + done, group_sizes[group] - done)
            return with_tile(tile, group_input, out)

        return jax.lax.fori_loop(0, n_tiles[group], step, out)

    return jax.lax.fori_loop(0, (group_sizes > 0).sum(), with_group, out)


def product_by_tile(
    rows: Float[Array, "T In"], weights: Any, group_sizes: Int[Array, " E"], size: int
) -> Float[Array, "T Out"]:
    """Computes `grouped_product` by tiles of `size` rows. The tile of the next group overwrites
    rows beyond the end of a group; rows of no group get any value."""
    padded = jnp.pad(rows, [(0, size), (0, 0)])

    def matrix(group: Int[Array, ""]) -> Weight:
        if isinstance(weights, PairedInt4):
            # Without the barrier XLA unpacks number by number again for every tile.
            return jax.lax.optimization_barrier(_unpacked(weights, group, rows.dtype))
        return jax.tree.map(lambda leaf: leaf[group], weights)

    def with_tile(tile: _Tile, matrix: Weight, out: Float[Array, "t Out"]) -> Array:
        inputs = jax.lax.dynamic_slice_in_dim(padded, tile.start, size)
        return jax.lax.dynamic_update_slice_in_dim(out, linear(inputs, matrix), tile.start, axis=0)

    empty = jnp.zeros((len(padded), jax.tree.leaves(weights)[0].shape[1]), rows.dtype)
    return _each_tile(size, group_sizes, matrix, with_tile, empty)[: len(rows)]


def _unpacked(
    weights: PairedInt4, group: Int[Array, ""], dtype: DTypeLike
) -> Float[Array, "Out In"]:
    pairs = weights.bytes[group]
    values = jnp.stack([(pairs << 4) >> 4, pairs >> 4], axis=-1).reshape(len(pairs), -1)
    return dequantize(QuantArray(values, weights.scale[group]), dtype)


def _outer_by_tile(
    rows: Float[Array, "T In"], gradient: Float[Array, "T Out"], group_sizes: Int[Array, " E"]
) -> Float[Array, "E Out In"]:
    """Adds up each group's products of a row's gradient with the row, in float32."""
    size = tile_rows(len(rows), len(group_sizes))
    padded = [jnp.pad(array, [(0, size), (0, 0)]) for array in (gradient, rows)]

    def with_tile(tile: _Tile, _: None, total: Float[Array, "E Out In"]) -> Array:
        out, inputs = (jax.lax.dynamic_slice_in_dim(array, tile.start, size) for array in padded)
        out = jnp.where(jnp.arange(size)[:, None] < tile.rows, out, 0)
        product = jnp.matmul(out.T, inputs, preferred_element_type=jnp.float32)
        return total.at[tile.group].add(product)

    empty = jnp.zeros((len(group_sizes), gradient.shape[1], rows.shape[1]), jnp.float32)
    return _each_tile(size, group_sizes, lambda group: None, with_tile, empty)


def tile_rows(n_rows: int, n_groups: int) -> int:
    """Returns the rows of a tile: a power of two, about twice the average rows of a group."""
    return min(MOST_ROWS, max(4, 1 << (2 * n_rows // n_groups - 1).bit_length()))


@jax.custom_vjp
def _differentiable_tiles(rows, weights, group_sizes):
    """Computes `product_by_tile`, with a gradient, which JAX does not derive for its loops."""
    return product_by_tile(rows, weights, group_sizes, tile_rows(len(rows), len(weights)))


def _forward(rows, weights, group_sizes):
    return _differentiable_tiles(rows, weights, group_sizes), (rows, weights, group_sizes)


def _backward(inputs, gradient):
    rows, weights, group_sizes = inputs
    of_rows = _differentiable_tiles(gradient, weights.swapaxes(1, 2), group_sizes)
    return of_rows, _outer_by_tile(rows, gradient, group_sizes).astype(weights.dtype), None


_differentiable_tiles.defvjp(_forward, _backward)
