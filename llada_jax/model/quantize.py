"""Quantized weights: signed integers with a scale per output row or per group of inputs.

int8 has one scale per output row and multiplies int8 by int8: activations are quantized per row of
the input while the model runs (symmetric, absmax), the product is summed in int32. It is the fast
form on CPUs with int8 dot products. int4 has one scale per group of 32 inputs (the group of GGUF's
Q4_0) and is dequantized to the activations' dtype before the product.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int

Bits = Literal[4, 8]
INT4_GROUP = 32
SMALLEST = 1e-30  # scale of a row of zeros, with a finite reciprocal
_CHUNK_ELEMENTS = 1 << 22


class QuantArray(NamedTuple):
    """Integers and their scales; value = integer * scale of its group along the last axis."""

    values: Int[Array, "*out In"]
    scale: Float[Array, "*out G"]


class AdaptedWeight(NamedTuple):
    """A frozen weight and a trained addition of low rank: base + up @ down (LoRA).

    With a gate, rows where it is False are multiplied with the base alone.
    """

    base: Float[Array, "Out In"] | QuantArray
    down: Float[Array, "rank In"]
    up: Float[Array, "Out rank"]
    gate: Bool[Array, "*rows 1"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WeightShard:
    """A device's part of a matrix on a mesh. A product with part of the inputs, or with some
    experts, is summed over `axes`; without axes, the part has some of the outputs."""

    weight: "Float[Array, '...'] | QuantArray"
    axes: tuple[str, ...] = field(metadata={"static": True})


RowProduct = Callable[[Float[Array, "*rows In"]], Float[Array, "*rows Out"]]
"""A function that multiplies rows with a matrix, for products outside JAX."""
Weight = Float[Array, "..."] | QuantArray | WeightShard | AdaptedWeight | RowProduct


def is_quantized(leaf: object) -> bool:
    """Returns whether a leaf of a tree of weights is a `QuantArray`."""
    return isinstance(leaf, QuantArray)


def quantize(weight: np.ndarray, bits: Bits, group: int | None = None) -> QuantArray:
    """Quantizes [..., In] by the largest magnitude; scales are float32, one for `group` inputs.

    The group is a whole row by default for int8, and `INT4_GROUP` for int4. Works through the rows
    in pieces, so that it never holds a float32 copy of the whole weight. Raises ValueError if `In`
    is not a multiple of the group.
    """
    length: int = weight.shape[-1]
    group = group or (length if bits == 8 else INT4_GROUP)
    if length % group:
        raise ValueError(f"int{bits} weight has {length} inputs; allowed: a multiple of {group}")
    limit = 2 ** (bits - 1) - 1
    rows = weight.reshape(-1, length)
    values = np.empty(rows.shape, np.int8 if bits == 8 else ml_dtypes.int4)
    scale = np.empty((rows.shape[0], length // group), np.float32)
    step = max(1, _CHUNK_ELEMENTS // length)
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        groups = rows[part].astype(np.float32).reshape(-1, length // group, group)
        absmax = np.abs(groups).max(axis=-1)
        scale[part] = np.where(absmax > 0, absmax, 1.0) / limit
        integers = np.rint(groups / scale[part][..., None]).astype(values.dtype)
        values[part] = integers.reshape(-1, length)
    scale = scale.reshape(*weight.shape[:-1], -1)
    return QuantArray(jnp.asarray(values.reshape(weight.shape)), jnp.asarray(scale))


def dequantize(weight: QuantArray, dtype: DTypeLike) -> Float[Array, "*out In"]:
    """Returns the weight as floats."""
    values, scale = weight
    groups = values.reshape(*scale.shape, -1).astype(dtype) * scale[..., None].astype(dtype)
    return groups.reshape(values.shape)


class PairedInt4(NamedTuple):
    """Matrices of int4, two numbers in a byte, the earlier one in its low bits.

    XLA's CPU passes int4 into a loop as a byte each, so it would unpack all matrices of a mixture's
    experts for each product with a few of them.
    """

    bytes: Int[Array, "E Out In/2"]
    scale: Float[Array, "E Out G"]


def with_paired_int4(params: Any) -> Any:
    """Returns the tree with `PairedInt4` in place of stacked int4 matrices, for programs that read
    them in a loop."""

    def paired(leaf: Any) -> Any:
        if not (is_quantized(leaf) and leaf.values.dtype == jnp.int4 and leaf.values.ndim == 3):
            return leaf
        pairs = leaf.values.reshape(*leaf.values.shape[:-1], -1, 2)
        return PairedInt4(jax.lax.bitcast_convert_type(pairs, jnp.int8), leaf.scale)

    return jax.tree.map(paired, params, is_leaf=is_quantized)


def linear(x: Float[Array, "*rows In"], weight: Weight) -> Float[Array, "*rows Out"]:
    """Returns `x @ weight.T` of a weight [Out, In], summed in float32, in the dtype of `x`.

    With a weight narrower than `x` the product is rounded to the weight's dtype, as in
    mixed-precision training. Sums over a `WeightShard` of the inputs are completed over the mesh
    before they are scaled or rounded, so int8 sums are exact. Barriers keep XLA from fusing across
    a `WeightShard`, so that no rounding depends on the mesh.
    """
    if callable(weight):
        return weight(x)
    if isinstance(weight, AdaptedWeight):
        out = linear(x, weight.base)
        adapted = out + linear(linear(x, weight.down), weight.up)
        return adapted if weight.gate is None else jnp.where(weight.gate, adapted, out)
    if isinstance(weight, WeightShard):
        x = jax.lax.optimization_barrier(x)
        return jax.lax.optimization_barrier(_linear(x, weight.weight, weight.axes))
    is_narrow = jax.tree.leaves(weight)[0].dtype.itemsize < 4
    if is_narrow and x.size == x.shape[-1] and jax.default_backend() == "cpu":
        # XLA's CPU multiplies a single row in a scalar loop, which takes 6 times as long as two
        # rows in int8, and twice as long in bfloat16.
        rows = jnp.pad(x.reshape(1, -1), ((0, 1), (0, 0)))
        return _linear(rows, weight)[0].reshape(*x.shape[:-1], -1)
    return _linear(x, weight)


def _linear(
    x: Float[Array, "*rows In"], weight: Any, axes: tuple[str, ...] = ()
) -> Float[Array, "*rows Out"]:
    if isinstance(weight, QuantArray) and weight.values.dtype == jnp.int8:
        return _int8_linear(x, weight, axes)
    if isinstance(weight, QuantArray):
        weight = dequantize(weight, x.dtype)
    if weight.dtype != x.dtype and not axes:
        # Rounding the product to the narrow type lets XLA's CPU take its fast narrow kernel.
        return jnp.einsum("...i,oi->...o", x.astype(weight.dtype), weight).astype(x.dtype)
    narrow = x.astype(weight.dtype)
    out = jnp.einsum("...i,oi->...o", narrow, weight, preferred_element_type=jnp.float32)
    return (jax.lax.psum(out, axes) if axes else out).astype(x.dtype)


def along_last(vector: Float[Array, " n"], x: Float[Array, "*rows n"]) -> Float[Array, "*ones n"]:
    """Returns a vector with as many axes as `x`, to be combined with the last one of `x`."""
    return jnp.expand_dims(vector, range(x.ndim - 1))


def _int8_linear(
    x: Float[Array, "*rows In"], weight: QuantArray, axes: tuple[str, ...]
) -> Float[Array, "*rows Out"]:
    absmax = jnp.abs(x).max(axis=-1, keepdims=True).astype(jnp.float32)
    absmax = jax.lax.pmax(absmax, axes) if axes else absmax
    scale = jnp.maximum(absmax, SMALLEST) / 127
    # XLA turns a division into either form, depending on the program: other bits on other meshes.
    integers = jnp.rint(x.astype(jnp.float32) * (1 / scale)).astype(jnp.int8)
    dot = jnp.einsum("...i,oi->...o", integers, weight.values, preferred_element_type=jnp.int32)
    dot = jax.lax.psum(dot, axes) if axes else dot
    return (dot.astype(jnp.float32) * scale * along_last(weight.scale[..., 0], x)).astype(x.dtype)
