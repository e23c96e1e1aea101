"""The training loop: a run that is killed at any moment resumes with bit-identical results.

A run folder contains `checkpoints/` (orbax) and `metrics.jsonl`. There is no other state: batches
and masks follow from the seed and the step. When a run resumes, metrics later than the last
complete checkpoint are deleted, because they will be written again.

On a mesh, batches are divided along the axis `data`, matrices and their moments along `model`; XLA
inserts the communication. Each process makes the whole batch, and uses its devices' rows.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp
from tqdm import tqdm

from llada_jax.config import LoopConfig, ModelConfig, TrainConfig, require
from llada_jax.io import atomic
from llada_jax.model.architecture.parameters import named_specs
from llada_jax.model.finite import require_finite_tree
from llada_jax.model.mesh import mesh_of, require_divides, shardings
from llada_jax.model.params import ModelParams, parameter_name
from llada_jax.on_mesh import DATA
from llada_jax.training.data import ExampleSource, TrainingBatch, batches
from llada_jax.training.objectives import Objective
from llada_jax.training.state import (
    MASKED,
    create_state,
    learning_rate,
    make_train_step,
    trained_params,
)

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
    """Trains to `config.steps`, from the last checkpoint in `folder` or from the beginning.

    Args:
      source: Examples by index; a pure function.
      evaluate: Called every `config.evaluate_every` steps; its results are added to the metrics.
      parent: Float32 parameters to start from instead of `config.start`. With `config.lora` they
        are not changed, and may have any dtype or be quantized.
      objective: The loss; LLaDA's by default.
      mesh: Devices with axes `data` and `model`, of all processes; each process calls this
        function. A checkpoint can be resumed on any other mesh.

    Returns the state; with `config.lora` its parameters are adapters (see `state.trained_params`).

    Raises:
      ValueError: The checkpoint is past `config.steps`, or does not fit the configuration.
      FloatingPointError: A loss or a gradient is NaN or infinite. The step is not logged, evaluated
        or saved; earlier checkpoints are kept.
    """
    state = create_state(model, config, parent)
    if mesh is not None:
        state = place_state(state, model, config, mesh)
        if parent is not None and mesh_of(parent) is None:
            parent = jax.device_put(parent, NamedSharding(mesh, PartitionSpec()))
    placement = None if mesh is None else jax.tree.map(lambda leaf: leaf.sharding, state)
    train_step = make_train_step(model, config, objective, parent, placement)
    eos_id = model.eos_id
    assert eos_id is not None

    def stream(start: int) -> Iterator[TrainingBatch]:
        made = batches(source, config, eos_id, start)
        return made if mesh is None else (place_batch(mesh, batch) for batch in made)

    def scores(params: Any) -> Mapping[str, float]:
        return {} if evaluate is None else evaluate(trained_params(params, config, parent))

    return advance(
        folder, config, state, train_step, stream, learning_rate(config), scores, progress
    )


def advance(
    folder: str | Path,
    config: LoopConfig,
    state: TrainState,
    train_step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]],
    stream: Callable[[int], Iterator[Any]],
    schedule: optax.Schedule,
    evaluate: Callable[[Any], Mapping[str, float]],
    progress: bool = True,
) -> TrainState:
    """Trains any state to `config.steps`, from the last checkpoint in `folder` or from `state`.

    Args:
      train_step: Returns the next state and metrics of one step.
      stream: `stream(start)` yields the batches of steps after the first `start` ones.
      schedule: The learning rate by step, for the metrics.
      evaluate: As for `train`, of the state's parameters.

    Returns and raises as `train`.
    """
    folder = Path(folder).absolute()  # orbax does not accept relative paths
    require_steps(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    # orbax's own policies do not match its protocol's type, hence Any.
    keep: Any = ocp.training.preservation_policies.LatestN(config.keep_checkpoints)
    # Each checkpoint is written under a temporary name, then renamed; leftovers are deleted here.
    with ocp.training.Checkpointer(
        str(folder / CHECKPOINT_FOLDER), preservation_policy=keep, cleanup_tmp_directories=True
    ) as checkpointer:
        if checkpointer.latest is not None:
            state = state.replace(**checkpointer.load(abstract_state=checkpoint_content(state)))
        start = np.asarray(state.step).item()
        is_first = jax.process_index() == 0
        if is_first:  # rows later than the checkpoint will be written again
            kept = [row for row in read_metrics(folder) if row["step"] <= start]
            lines = "".join(json.dumps(row) + "\n" for row in kept)
            atomic.write_text(folder / METRICS_FILE, lines)
        recent: list[dict[str, jax.Array]] = []
        began = time.perf_counter()
        numbers = range(start + 1, config.steps + 1)
        bar = tqdm(numbers, initial=start, total=config.steps, disable=not progress)
        for step, batch in zip(bar, stream(start), strict=False):
            state, step_metrics = train_step(state, batch)
            recent.append(step_metrics)
            logged = _due(step, config.log_every, config.steps)
            saved = _due(step, config.checkpoint_every, config.steps)
            if logged or saved:
                _require_finite(recent, step)
            if logged:
                row = {"step": step, "learning_rate": np.asarray(schedule(step)).item()}
                seconds, rows = time.perf_counter() - began, jax.device_get(recent)
                row |= {name: float(np.mean([r[name] for r in rows])) for name in rows[0]}
                row["seconds_per_step"] = seconds / len(rows)
                began += seconds
                if _due(step, config.evaluate_every, config.steps):
                    row |= evaluate(state.params)
                    began = time.perf_counter()
                if is_first:
                    atomic.append_text(folder / METRICS_FILE, json.dumps(row) + "\n")
                recent.clear()
            if saved:
                require_finite_tree(f"after step {step}", state.params)
                checkpointer.save(step, checkpoint_content(state))
                atomic.sync(folder / CHECKPOINT_FOLDER / str(step))
    return state


def place_state(
    state: TrainState, model: ModelConfig, config: TrainConfig, mesh: Mesh
) -> TrainState:
    """Returns the state on a mesh: matrices and their moments divided, adapters and scalars
    replicated.

    Raises ValueError for a batch that does not divide by the axis `data`, and for a model that does
    not divide by the other axes.
    """
    groups = mesh.shape[DATA]
    require(
        config.batch_size % groups == 0,
        f"batch_size is {config.batch_size} on a mesh of data={groups}; allowed: a multiple of "
        f"{groups}",
    )
    placement: dict[str, NamedSharding] = {}
    if config.lora is None:
        require_divides(model, mesh, None)
        specs = named_specs(model).items()
        placement = {f".{name}": shardings(spec, mesh, None) for name, spec in specs}
    replicated = NamedSharding(mesh, PartitionSpec())

    def put(path: Any, leaf: Any) -> Any:
        # A parameter's path ends with its name, and so do the paths of its moments.
        name = f".{parameter_name(path)}"
        matches = (placement[key] for key in placement if name.endswith(key))
        return jax.device_put(leaf, next(matches, replicated))

    return jax.tree.map_with_path(put, state)


def place_batch(mesh: Mesh, batch: TrainingBatch) -> TrainingBatch:
    """Returns the batch with its rows divided along the axis `data`."""
    rows_sharding = NamedSharding(mesh, PartitionSpec(DATA))

    def put(rows: Any) -> Any:
        return jax.make_array_from_callback(rows.shape, rows_sharding, lambda part: rows[part])

    return TrainingBatch(*map(put, batch))


def checkpoint_content(state: TrainState) -> dict[str, Any]:
    """Returns the part of the state that is saved in a checkpoint."""
    return {"step": state.step, "params": state.params, "opt_state": state.opt_state}


def require_steps(folder: str | Path, config: LoopConfig) -> None:
    """Raises ValueError if the last checkpoint of a run is past `config.steps`; does not change the
    folder."""
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


def read_metrics(folder: str | Path, name: str = METRICS_FILE) -> list[dict[str, Any]]:
    """Reads the complete rows of a run's metrics, or of a model's log; [] if there is no file."""
    path = Path(folder) / name
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # an interrupted row has no final newline


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)


def _require_finite(recent: list[dict[str, jax.Array]], last: int) -> None:
    """Raises FloatingPointError for the first of the steps up to `last` with a NaN or infinity."""
    for step, row in enumerate(jax.device_get(recent), last - len(recent) + 1):
        bad = [f"{name} is {value}" for name, value in row.items() if not np.isfinite(value)]
        if bad:
            raise FloatingPointError(
                f"training stops at step {step}: {', '.join(bad)}; allowed: finite numbers (the "
                "last checkpoint before it is kept)"
            )
