"""Training on a mesh of devices: a batch on its axis `data`, matrices and their moments on `model`.

XLA puts in what devices must tell each other (automatic axes). A batch is a pure function of seed
and step, whatever the mesh: each process makes all of it and keeps the rows of its own devices.
"""

from typing import Any

import jax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from llada_jax.config import ModelConfig, TrainConfig, require
from llada_jax.model.architecture.parameters import named_specs
from llada_jax.model.mesh import mesh_of, require_divides, shardings
from llada_jax.model.params import ModelParams, parameter_name
from llada_jax.on_mesh import DATA
from llada_jax.training.data import TrainingBatch


def on_mesh(state: TrainState, model: ModelConfig, config: TrainConfig, mesh: Mesh) -> TrainState:
    """Returns a state whose arrays lie on the mesh: matrices and their moments in parts, adapters
    and numbers whole on each device.

    Raises ValueError for a batch that does not fill the axis `data`, and for what the other axes do
    not divide.
    """
    groups = mesh.shape[DATA]
    require(
        config.batch_size % groups == 0,
        f"batch_size is {config.batch_size} on a mesh of data={groups}; allowed: a multiple of "
        f"{groups}",
    )
    places: dict[str, NamedSharding] = {}
    if config.lora is None:
        require_divides(model, mesh, None)
        specs = named_specs(model).items()
        places = {f".{name}": shardings(spec, mesh, None) for name, spec in specs}
    whole = NamedSharding(mesh, PartitionSpec())

    def put(path: Any, leaf: Any) -> Any:
        """Puts a parameter, or a moment of it, whose path ends with its name."""
        name = f".{parameter_name(path)}"
        return jax.device_put(leaf, next((places[e] for e in places if name.endswith(e)), whole))

    return jax.tree.map_with_path(put, state)


def parent_on(mesh: Mesh, parent: ModelParams | None) -> ModelParams | None:
    """Returns parameters that stay as they are, whole on each device unless they lie on a mesh."""
    if parent is None or mesh_of(parent) is not None:
        return parent
    return jax.device_put(parent, NamedSharding(mesh, PartitionSpec()))


def batch_on(mesh: Mesh, batch: TrainingBatch) -> TrainingBatch:
    """Returns a batch in parts of its rows, one for each group of the axis `data`."""
    place = NamedSharding(mesh, PartitionSpec(DATA))

    def put(rows: Any) -> Any:
        return jax.make_array_from_callback(rows.shape, place, lambda part: rows[part])

    return TrainingBatch(*map(put, batch))
