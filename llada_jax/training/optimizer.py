"""Optimizer and learning-rate schedule."""

from typing import Any

import jax
import optax
from optax import contrib

from llada_jax.config import TrainConfig


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """Makes a rate that rises linearly, stays, and falls to zero whenever time is up."""
    return optax.join_schedules(
        [
            optax.linear_schedule(0.0, config.peak_lr, config.warmup_steps),
            optax.constant_schedule(config.peak_lr),
            optax.linear_schedule(config.peak_lr, 0.0, config.decay_steps),
        ],
        [config.warmup_steps, config.steps - config.decay_steps],
    )


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Makes AdamW or Muon behind a clip of the global gradient norm; matrices alone decay. With
    `accumulate`, a mean gradient of so many steps makes the update of the last of them.

    Muon (Jordan 2024) takes the matrices of the layers, scaled so that its updates are as large as
    Adam's (Liu et al., arXiv 2502.16982); Adam takes embedding, head and norms.
    """
    rate = learning_rate(config)

    def schedule(updates: Any) -> Any:
        return rate(updates * config.accumulate)

    if config.optimizer == "muon":
        step = contrib.muon(
            schedule,
            weight_decay=config.weight_decay,
            consistent_rms=0.2,
            muon_weight_dimension_numbers=_layer_matrices,
        )
    else:
        step = optax.adamw(schedule, b2=0.98, weight_decay=config.weight_decay, mask=_matrices)
    clipped = optax.chain(optax.clip_by_global_norm(config.clip_norm), step)
    if config.accumulate == 1:
        return clipped
    return optax.MultiSteps(clipped, config.accumulate).gradient_transformation()


def _matrices(params: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def _layer_matrices(params: Any) -> Any:
    """Tells which dimensions Muon multiplies over; None where Adam takes the parameter."""

    def dimensions(path: tuple[Any, ...], leaf: jax.Array) -> contrib.MuonDimensionNumbers | None:
        in_layer = path[0].name == "layers" and leaf.ndim > 1
        return contrib.MuonDimensionNumbers(leaf.ndim - 1, leaf.ndim - 2) if in_layer else None

    return jax.tree.map_with_path(dimensions, params)
