"""The training loop: a run that is killed at any moment resumes, bit for bit.

A run folder holds `checkpoints/` (orbax) and `metrics.jsonl`. Nothing else is state: batches and
masks follow from the seed and the step, and metrics written after the last whole checkpoint are
dropped when the run resumes, so that they are written again.

On a mesh a batch lies on the axis `data`, matrices and their moments on `model`; XLA puts in what
devices must tell each other. Each process makes the whole batch, and keeps its devices' rows.
"""

import json
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp
from tqdm import tqdm

from llada_jax.config import ModelConfig, TrainConfig, require
from llada_jax.io import atomic
from llada_jax.model.architecture.parameters import named_specs
from llada_jax.model.finite import require_finite_tree
from llada_jax.model.mesh import mesh_of, require_divides, shardings
from llada_jax.model.params import ModelParams, parameter_name
from llada_jax.on_mesh import DATA
from llada_jax.training.data import ExampleSource, TrainingBatch, batches
from llada_jax.training.objectives import Objective
from llada_jax.training.state import MASKED, create_state, learning_rate, make_train_step, trained

METRICS_FILE = "metrics.jsonl"
CHECKPOINT_FOLDER = "checkpoints"

Evaluate = Callable[[ModelParams], Mapping[str, float]]


def train(
    folder: str | Path,
    model: ModelConfig,
    config: TrainConfig,
    source: ExampleSource,
    evaluate: Evaluate | None = None,
    progress: bool = True,
    parent: ModelParams | None = None,
    objective: Objective = MASKED,
    mesh: Mesh | None = None,
) -> TrainState:
    """Trains to `config.steps` from the last checkpoint in `folder`, or from the beginning.

    Args:
      source: examples by index, a pure function.
      evaluate: called every `config.evaluate_every` steps; its numbers join the metrics.
      parent: float32 parameters to begin with, in place of what `config.start` says; with
        `config.lora` in any dtype or quantized, since they are adapted and stay as they are.
      objective: what is learnt; LLaDA's loss by default.
      mesh: devices with axes `data` and `model` that share the work, all processes' together; each
        process calls this. A checkpoint goes on on any other mesh.

    Returns the state, whose parameters are adapters with `config.lora` (`state.trained`).

    Raises:
      ValueError: the checkpoint is past `config.steps`, or does not fit the configuration.
      FloatingPointError: a loss or a gradient is NaN or infinite. What the step left is not
        logged, scored or saved; the checkpoints before it stay.
    """
    folder = Path(folder).absolute()  # orbax takes no relative paths
    require_steps(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    # orbax's policies do not fit its own protocol, hence Any.
    keep: Any = ocp.training.preservation_policies.LatestN(config.keep_checkpoints)
    # Each checkpoint is written under a temporary name, then renamed; leftovers are swept here.
    with ocp.training.Checkpointer(
        str(folder / CHECKPOINT_FOLDER), preservation_policy=keep, cleanup_tmp_directories=True
    ) as checkpointer:
        state = create_state(model, config, parent)
        if mesh is not None:
            state, parent = on_mesh(state, model, config, mesh), parent_on(mesh, parent)
        places = None if mesh is None else jax.tree.map(lambda leaf: leaf.sharding, state)
        if checkpointer.latest is not None:
            state = state.replace(**checkpointer.load(abstract_state=arrays_of(state)))
        start = np.asarray(state.step).item()
        is_first = jax.process_index() == 0
        if is_first:
            keep_metrics(folder, start)
        train_step = make_train_step(model, config, objective, parent, places)
        schedule = learning_rate(config)
        assert model.eos_id is not None
        stream = islice(batches(source, config, model.eos_id, start), config.steps - start)
        recent: list[dict[str, jax.Array]] = []
        began = time.perf_counter()
        for step, batch in enumerate(
            tqdm(stream, initial=start, total=config.steps, disable=not progress), start + 1
        ):
            placed = batch if mesh is None else batch_on(mesh, batch)
            state, of_step = train_step(state, placed)
            recent.append(of_step)
            logged = _due(step, config.log_every, config.steps)
            saved = _due(step, config.checkpoint_every, config.steps)
            if logged or saved:
                _require_finite(recent, step)
            if logged:
                row = {"step": step, "learning_rate": np.asarray(schedule(step)).item()}
                seconds, rows = time.perf_counter() - began, jax.device_get(recent)
                row |= {name: float(np.mean([each[name] for each in rows])) for name in rows[0]}
                row["seconds_per_step"] = seconds / len(rows)
                began += seconds
                if evaluate is not None and _due(step, config.evaluate_every, config.steps):
                    row |= evaluate(trained(state.params, config, parent))
                    began = time.perf_counter()
                if is_first:
                    atomic.append_text(folder / METRICS_FILE, json.dumps(row) + "\n")
                recent.clear()
            if saved:
                require_finite_tree(f"after step {step}", state.params)
                checkpointer.save(step, arrays_of(state))
                atomic.sync(folder / CHECKPOINT_FOLDER / str(step))
    return state


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


def arrays_of(state: TrainState) -> dict[str, Any]:
    """Returns what a checkpoint holds."""
    return {"step": state.step, "params": state.params, "opt_state": state.opt_state}


def require_steps(folder: str | Path, config: TrainConfig) -> None:
    """Raises ValueError where the last checkpoint of a run is past `config.steps`; changes nothing
    in its folder."""
    checkpoints = Path(folder).absolute() / CHECKPOINT_FOLDER
    if not checkpoints.is_dir():
        return
    with ocp.training.Checkpointer(str(checkpoints)) as checkpointer:
        last = checkpointer.latest
    require(
        last is None or last.step <= config.steps,
        f"steps is {config.steps}; allowed: {last.step if last else 0} or more, where the last "
        "checkpoint stands",
    )


def keep_metrics(folder: Path, last_step: int) -> None:
    """Keeps the whole rows of a run's metrics up to a step, and drops the rest."""
    kept = [row for row in read_metrics(folder) if row["step"] <= last_step]
    atomic.write_text(folder / METRICS_FILE, "".join(json.dumps(row) + "\n" for row in kept))


def read_metrics(folder: str | Path, name: str = METRICS_FILE) -> list[dict[str, Any]]:
    """Reads the whole rows of a run's metrics, or of a model's log; none where it has none yet."""
    path = Path(folder) / name
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # what follows the last newline is half a row


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)


def _require_finite(recent: list[dict[str, jax.Array]], last: int) -> None:
    """Raises FloatingPointError that names the first of the steps up to `last` without numbers."""
    for step, row in enumerate(jax.device_get(recent), last - len(recent) + 1):
        bad = [f"{name} is {value}" for name, value in row.items() if not np.isfinite(value)]
        if bad:
            raise FloatingPointError(
                f"training stops at step {step}: {', '.join(bad)}; allowed: finite numbers (the "
                "last checkpoint before it is kept)"
            )
