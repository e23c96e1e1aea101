"""How functions of a device's part run on all devices of a mesh at once.

The axis `data` shares out a batch where it divides it; else each of its groups runs the whole
batch. A part's functions say themselves what is summed or gathered over the other axes.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from llada_jax.types import Asked, KVCache, OnMesh, Params, RowsOut

DATA, EXPERT, MODEL = "data", "expert", "model"


def batch_axis(mesh: Mesh, batch: int) -> str | None:
    """Returns the axis that shares out a batch; None where it does not divide it."""
    return None if batch % mesh.shape[DATA] else DATA


def places(tree: Any, axis: str | None) -> Any:
    """Returns where the arrays of records lie: batches on an axis, key-value heads on `model`."""
    cached = P(None, axis, None, MODEL)

    def place(leaf: Any) -> Any:
        if isinstance(leaf, KVCache):
            return KVCache(cached, cached)  # pyright: ignore
        if isinstance(leaf, RowsOut):
            return RowsOut(P(axis), cached, cached)  # pyright: ignore
        if isinstance(leaf, Asked):
            given = [each.name for each in fields(leaf) if "static" not in each.metadata]
            rows = {name: P(axis) for name in given if getattr(leaf, name) is not None}
            return replace(leaf, **rows | {"class_of": leaf.class_of and P()})
        return P(axis)

    return jax.tree.map(place, tree, is_leaf=lambda leaf: isinstance(leaf, _RECORDS))


_RECORDS = (KVCache, RowsOut, Asked)


def everywhere(mesh: Mesh, tree: Any) -> Any:
    """Returns records whose arrays every device has whole, but for keys and values."""

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, KVCache):
            return leaf
        if isinstance(leaf, RowsOut):
            return leaf._replace(hidden=whole(leaf.hidden))
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P()))

    return jax.tree.map(whole, tree, is_leaf=lambda leaf: isinstance(leaf, _RECORDS))


def on_all(
    mesh: Mesh, params: Params, function: Callable[..., Any], gives: type[RowsOut] | None = None
) -> Callable[..., Any]:
    """Returns `function(params, of the batch, ...)` of a device's part as one of whole arrays.

    Args:
      params: where the parameters lie.
      gives: the record that the function returns, where not all of its arrays begin with a batch.
    """

    def whole(given: Params, *arguments: Any) -> Any:
        axis = batch_axis(mesh, jax.tree.leaves(arguments)[0].shape[0])
        out = places(RowsOut(None, None, None), axis) if gives else P(axis)  # pyright: ignore
        taken = (params, *(places(each, axis) for each in arguments))
        run = jax.shard_map(function, mesh=mesh, in_specs=taken, out_specs=out, check_vma=False)
        return everywhere(mesh, run(given, *arguments))

    return whole


def loop_on_all(
    place: OnMesh, loop: Callable[..., tuple[Any, ...]], decoding: Any, canvas: Any, *bounds: Any
) -> tuple[Any, ...]:
    """Runs a decoding loop, until so many rows are done or for so many steps, once in each group of
    `data`, for the group's own rows of the canvas.

    Groups take as many steps as their rows need, in buckets of their own. The steps of all count
    as if they had begun together: the rows of a forward are those of the group that had most.
    """
    mesh, (until, most) = place.mesh, bounds
    axis = batch_axis(mesh, canvas.tokens.shape[0])
    groups = mesh.shape[DATA] if axis else 1

    def in_group(decoding: Any, *given: Any) -> Any:
        own = replace(decoding, denoiser=place.part)
        canvas, records, rows, steps = loop(own, *given)
        return canvas, records, rows[None], steps[None]

    of_canvas = places(canvas, axis)
    run = jax.shard_map(
        in_group,
        mesh=mesh,
        in_specs=(replace(decoding, spec=P(), params=place.params), of_canvas, P(), P()),
        out_specs=(of_canvas, P(None, axis), P(DATA), P(DATA)),
        check_vma=False,
    )
    found = run(decoding, canvas, -(-until // groups), most)
    canvas, records, rows, steps = everywhere(mesh, found)
    return canvas, records, rows.max(axis=0), steps.max()


def begun_on(place: OnMesh, canvas: Any) -> Any:
    """Returns a canvas that begins on one device as one that is on the whole mesh; of several
    processes, all have begun the same."""
    where = NamedSharding(place.mesh, P())

    def put(leaf: Any) -> Any:
        if where.is_fully_addressable:
            return jax.device_put(leaf, where)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
        here = np.asarray(leaf)
        return jax.make_array_from_callback(here.shape, where, lambda index: here[index])

    return jax.tree.map(put, canvas._replace(cache=None))._replace(cache=canvas.cache)
