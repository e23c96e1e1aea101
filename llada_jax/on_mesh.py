"""Running the functions of one device's part of a model on all devices of a mesh at once.

The axis `data` divides a batch among groups of devices if its size divides the batch; otherwise
each group runs the whole batch. Within a group the devices hold parts of the parameters, and the
functions of a part do the sums and gathers over the other axes (`jax.shard_map`).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from llada_jax.types import Denoiser, HeadRequest, KVCache, Params, RowsOut

DATA, EXPERT, MODEL = "data", "expert", "model"


@dataclass(frozen=True, kw_only=True)
class MeshDenoiser(Denoiser):
    """A model on a mesh. Its functions take whole arrays; a loop runs `part` on each device.

    Attributes:
      mesh: The devices.
      part: The functions as a device runs them on its part.
      specs: The `PartitionSpec` of each parameter.
    """

    mesh: Mesh
    part: Denoiser
    specs: Params

    def replicated(self, state: Any) -> Any:
        """Returns a state that was made on one device, with its arrays on every device of the mesh.

        If several processes share the mesh, all have made the same state.
        """
        sharding = NamedSharding(self.mesh, P())

        def put(leaf: Any) -> Any:
            if sharding.is_fully_addressable:
                return jax.device_put(leaf, sharding)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

        return jax.tree.map(put, state._replace(cache=None))._replace(cache=state.cache)

    def run_loop(
        self, loop: Callable[..., tuple[Any, ...]], decoding: Any, state: Any, until: Any, most: Any
    ) -> tuple[Any, ...]:
        """Runs a decoding loop once in each group of `data`, for the group's sequences.

        Groups take as many steps as their sequences need, in their own buckets. The steps are
        counted as if all groups had run together: the rows of a forward are the largest number of
        any group.
        """
        axis = batch_axis(self.mesh, state.tokens.shape[0])
        groups = self.mesh.shape[DATA] if axis else 1

        def in_group(decoding: Any, *arguments: Any) -> Any:
            decoding = replace(decoding, denoiser=self.part)
            state, records, rows, steps = loop(decoding, *arguments)
            return state, records, rows[None], steps[None]

        state_specs = batch_specs(state, axis)
        run = jax.shard_map(
            in_group,
            mesh=self.mesh,
            in_specs=(replace(decoding, spec=P(), params=self.specs), state_specs, P(), P()),
            out_specs=(state_specs, P(None, axis), P(DATA), P(DATA)),
            check_vma=False,
        )
        results = run(decoding, state, -(-until // groups), most)
        state, records, rows, steps = _gathered(self.mesh, results)
        return state, records, rows.max(axis=0), steps.max()


def batch_axis(mesh: Mesh, batch: int) -> str | None:
    """Returns the axis that divides a batch, or None if its size does not divide it."""
    return None if batch % mesh.shape[DATA] else DATA


def batch_specs(tree: Any, axis: str | None) -> Any:
    """Returns each array's `PartitionSpec`: the batch on `axis`, key-value heads on `model`."""
    cached, written = P(axis, MODEL), P(axis, None, MODEL)

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, KVCache):
            return KVCache(cached, cached)  # pyright: ignore
        if isinstance(leaf, RowsOut):
            return RowsOut(P(axis), written, written)  # pyright: ignore
        if isinstance(leaf, HeadRequest):
            arrays = [field.name for field in fields(leaf) if "static" not in field.metadata]
            rows = {name: P(axis) for name in arrays if getattr(leaf, name) is not None}
            return replace(leaf, **rows | {"class_of": leaf.class_of and P()})
        return P(axis)

    return jax.tree.map(spec, tree, is_leaf=lambda leaf: isinstance(leaf, _RECORDS))


_RECORDS = (KVCache, RowsOut, HeadRequest)


def _gathered(mesh: Mesh, tree: Any) -> Any:
    """Returns records with whole arrays on every device, except keys and values."""

    def gather(leaf: Any) -> Any:
        if isinstance(leaf, KVCache):
            return leaf
        if isinstance(leaf, RowsOut):
            return leaf._replace(hidden=gather(leaf.hidden))
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P()))

    return jax.tree.map(gather, tree, is_leaf=lambda leaf: isinstance(leaf, _RECORDS))


def on_all_devices(
    mesh: Mesh,
    params_specs: Params,
    function: Callable[..., Any],
    returns: type[RowsOut] | None = None,
) -> Callable[..., Any]:
    """Returns `function(params, *arrays)` of a device's part as a function of whole arrays.

    Args:
      params_specs: The `PartitionSpec` of each parameter.
      returns: The record that the function returns, if some of its arrays do not start with the
        batch axis.
    """

    def run(params: Params, *arguments: Any) -> Any:
        axis = batch_axis(mesh, jax.tree.leaves(arguments)[0].shape[0])
        outputs = batch_specs(RowsOut(None, None, None), axis) if returns else P(axis)  # pyright: ignore
        inputs = (params_specs, *(batch_specs(argument, axis) for argument in arguments))
        sharded = jax.shard_map(
            function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )
        return _gathered(mesh, sharded(params, *arguments))

    return run
