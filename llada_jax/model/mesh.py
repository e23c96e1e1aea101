"""A mesh of devices: the part of the parameters and of the KV cache that each device holds.

Three axes. `data` divides the prompts of a batch; each of its groups decodes by itself. `model`
divides attention heads, feed-forward widths and the head's vocabulary (tensor parallelism of
Megatron-LM, arXiv 1909.08053); `expert` and `model` together divide the experts of a mixture, and
each expert stays whole. Norms, routers and the embedding are on every device.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from math import gcd
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from llada_jax.config import MeshConfig, ModelConfig, require
from llada_jax.model import forward as model_forward
from llada_jax.model.architecture.parameters import Axis, ParamSpec, named_specs
from llada_jax.model.forward import shared_layer
from llada_jax.model.head import ScoreRules
from llada_jax.model.layers import attend
from llada_jax.model.measures import measure_own_ids
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import INT4_GROUP, QuantArray, WeightShard, is_quantized
from llada_jax.on_mesh import (
    DATA,
    EXPERT,
    MODEL,
    MeshDenoiser,
    batch_axis,
    batch_specs,
    on_all_devices,
)
from llada_jax.types import Denoiser, HeadRequest, KVCache, Params, RowsOut

PLACES: Mapping[Axis, str | tuple[str, ...]] = {
    "heads": MODEL,
    "kv_heads": MODEL,
    "ffn": MODEL,
    "vocab": MODEL,
    "experts": (EXPERT, MODEL),
}
_NAME_BYTES = 16
_attend_alike = partial(attend, alike=True)


def require_device() -> None:
    """Raises ValueError if JAX finds none of the devices that it is set to use."""
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # JAX asserts that one of the known is there
        raise ValueError(
            f"JAX_PLATFORMS is {jax.config.jax_platforms!r}, and JAX finds no such device here; "
            "allowed: cpu, or an empty value for whatever there is"
        ) from error


def mesh(data: int = 1, model: int = 1, expert: int = 1) -> Mesh:
    """Returns a mesh of the first devices, of all processes, for `llada_jax.load`.

    Raises ValueError for counts below 1, for more devices than exist, and if a process has none of
    them.
    """
    size, devices = MeshConfig(data=data, model=model, expert=expert).devices, jax.devices()
    require(
        size <= len(devices),
        f"a mesh with data={data}, model={model}, expert={expert} takes {size} devices; allowed: "
        f"up to {len(devices)}, which there are",
    )
    processes = {device.process_index for device in devices[:size]}
    require(
        len(processes) == jax.process_count(),
        f"a mesh of {size} devices is on {len(processes)} of {jax.process_count()} processes; "
        f"allowed: one on all, as of {len(devices)} devices",
    )
    axes = {DATA: data, EXPERT: expert, MODEL: model}
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices[:size]
    )


def mesh_for(config: MeshConfig) -> Mesh | None:
    """Returns the mesh of these settings, or None for one device."""
    return mesh(**asdict(config)) if config.devices > 1 else None


def agreed(settings: str, name: Callable[[], str]) -> str:
    """Returns the hexadecimal name that the first process computes; the others do not compute it.

    Raises ValueError in all processes if their settings differ.
    """
    if jax.process_count() == 1:
        return name()
    first = name() if jax.process_index() == 0 else "00" * _NAME_BYTES
    mine = hashlib.sha256(settings.encode()).digest()[:_NAME_BYTES] + bytes.fromhex(first)
    everyone = np.asarray(process_allgather(np.frombuffer(mine, np.uint8)))
    others = np.flatnonzero((everyone[:, :_NAME_BYTES] != everyone[0, :_NAME_BYTES]).any(axis=1))
    require(
        len(others) == 0,
        f"processes {others.tolist()} load something else than process 0; allowed: the same in "
        f"all (here: {settings})",
    )
    return everyone[0, _NAME_BYTES:].tobytes().hex()


def require_divides(config: ModelConfig, mesh: Mesh, dtype: str | None) -> None:
    """Raises ValueError if the mesh does not divide the parameters; the error names the sizes that
    would."""
    model, expert = mesh.shape[MODEL], mesh.shape[EXPERT]
    counts = dict.fromkeys(_shared_out(config, dtype))
    experts = config.moe.n_experts if config.moe else 0
    fits = gcd(*(count for _, count in counts))
    named = ", ".join(f"{count} {what}" for what, count in counts)
    require(fits % model == 0, f"mesh.model is {model}; allowed: {_divisors(fits)} (for {named})")
    require(
        expert == 1 or (experts > 0 and experts // model % expert == 0),
        f"mesh.expert is {expert}; allowed: {_divisors(experts // model) if experts else 1} (for "
        f"{experts} experts and mesh.model={model})",
    )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def _shared_out(config: ModelConfig, dtype: str | None) -> Iterator[tuple[str, int]]:
    """Yields the names and sizes that the axis `model` must divide."""
    yield "vocab", config.vocab_size  # the embedding may also be the head
    for spec in named_specs(config).values():
        for index, (axis, size) in enumerate(zip(spec.axes, spec.shape, strict=True)):
            if axis not in PLACES:
                continue
            count = size // config.head_dim if axis in ("heads", "kv_heads") else size
            yield axis, count
            if dtype == "int4" and spec.quantizable and index == len(spec.shape) - 1:
                yield f"groups of {INT4_GROUP} {axis}", size // INT4_GROUP


def shardings(spec: ParamSpec, mesh: Mesh, dtype: str | None) -> Any:
    """Returns the sharding of a parameter, or of its integers and scales."""
    return jax.tree.map(partial(NamedSharding, mesh), partition_of(spec, dtype))


def partition_of(spec: ParamSpec, dtype: str | None = None) -> Any:
    """Returns the `PartitionSpec` of one parameter, or of its integers and scales. int8 has one
    scale for all inputs, so that no mesh divides it along them."""
    whole = PartitionSpec(*(PLACES.get(axis) for axis in spec.axes))
    if dtype not in ("int8", "int4") or not spec.quantizable:
        return whole
    scale = whole if dtype == "int4" else PartitionSpec(*whole[:-1], None)
    return QuantArray(whole, scale)  # pyright: ignore


def mesh_of(params: Params) -> Mesh | None:
    """Returns the mesh that parameters were loaded onto, or None."""
    leaf = getattr(params, "embedding", None)
    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding) and MODEL in sharding.mesh.axis_names:
        return sharding.mesh  # pyright: ignore[reportReturnType]
    return None


def specs_of(params: ModelParams) -> ModelParams:
    """Returns the `PartitionSpec` of every array of parameters on a mesh."""
    return jax.tree.map(lambda leaf: leaf.sharding.spec, params)


@lru_cache(maxsize=64)
def mesh_denoiser(
    config: ModelConfig, rules: ScoreRules, mesh: Mesh, specs: ModelParams
) -> Denoiser:
    """Returns the model's functions in JAX on a mesh, for parameters with these specs."""
    run = partial(shared_layer, attend_with=_attend_alike)

    def forward_rows(params, rows, cache):
        return model_forward.forward_rows(_as_parts(params, specs), config, rows, cache, run)

    def empty_cache(params, batch, length):
        spec, _ = batch_specs(KVCache(None, None), batch_axis(mesh, batch))  # pyright: ignore
        place = NamedSharding(mesh, spec)
        return model_forward.cache_for(params, config, batch, length, place)

    measure = partial(measure_own_ids, rules=rules)

    def score(params, hidden, noise_keys):
        return measure(params, hidden, noise_keys, HeadRequest()).scores

    on_all = partial(on_all_devices, mesh, specs)
    part = Denoiser(forward_rows, score, empty_cache, measure)  # pyright: ignore
    whole = on_all(forward_rows, RowsOut), on_all(score), empty_cache, on_all(measure)
    return MeshDenoiser(*whole, mesh=mesh, part=part, specs=specs)


def _as_parts(params: ModelParams, specs: ModelParams) -> ModelParams:
    """Marks the layers' matrices that the mesh cuts, with the axes to sum over: the axes of their
    inputs, and of experts."""

    def marked(place: Any, leaf: Any) -> Any:
        where = place.values if isinstance(place, QuantArray) else place
        if len(where) < 2 or not any(where):
            return leaf
        cut = where[0] if len(where) == 3 else where[-1]
        axes: Any = cut if isinstance(cut, tuple) else (cut,) if cut else ()
        return WeightShard(leaf, axes)

    layers = jax.tree.map(marked, specs.layers, params.layers, is_leaf=is_quantized)
    return params._replace(layers=layers)
