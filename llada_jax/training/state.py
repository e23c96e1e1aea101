"""Training state and the step that advances it."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from llada_jax.config import ModelConfig, TrainConfig, require
from llada_jax.model.forward import LayerHooks, forward
from llada_jax.model.params import ModelParams, init_params
from llada_jax.training.copying import with_copying_heads
from llada_jax.training.data import TrainingBatch
from llada_jax.training.objectives import Masked, Objective, Reader
from llada_jax.training.optimizer import make_optimizer
from llada_jax.training.routers import RouterLosses

MASKED = Masked()


def create_state(
    model: ModelConfig, config: TrainConfig, parent: ModelParams | None = None
) -> TrainState:
    """Makes the state before the first step, of `parent` or of parameters as `config.start` says.

    Raises ValueError for a model without [MASK] or EOS, or one that shifts its outputs.
    """
    require(model.mask_id is not None, "mask_id is None; allowed: a token id")
    require(model.eos_id is not None, "eos_id is None; allowed: a token id")
    require(not model.shift_logits, "shift_logits is True; allowed: False")
    if parent is not None:
        params = jax.tree.map(jnp.copy, parent)  # the step gives its buffers away
    else:
        params = init_params(model, jax.random.key(config.seed))
        if config.start == "copying":
            params = with_copying_heads(params, model, config.seed)
    return TrainState.create(
        apply_fn=forward,
        params=params,
        tx=make_optimizer(config),
    ).replace(step=jnp.zeros((), jnp.int32))


def make_train_step(model: ModelConfig, config: TrainConfig, objective: Objective = MASKED) -> Any:
    """Compiles `(state, batch) -> (state, metrics)`, once per canvas length.

    What is masked, or corrupted otherwise, is a pure function of the seed, the state's step and, as
    the objective may be, its parameters.
    """

    def loss_of(params: ModelParams, batch: Any, key: jax.Array) -> tuple[jax.Array, dict]:
        # `batch` is a TrainingBatch whose arrays are JAX's
        narrowed = params._replace(layers=_narrowed(params.layers, config.matmul_dtype))
        routers = RouterLosses(batch.live)
        hooks = LayerHooks(feed_forward_of=routers)

        def predict(tokens: jax.Array) -> jax.Array:
            return forward(narrowed, model, tokens, batch.live, hooks=hooks)

        def look(tokens: jax.Array, live: jax.Array) -> jax.Array:
            return forward(jax.lax.stop_gradient(narrowed), model, tokens, live)

        reader = Reader(model, predict, look, config.min_mask_probability)
        total, metrics = objective(reader, batch, key)
        if model.moe is not None:
            balance = routers.mean()
            total += config.balance_weight * balance.balance + config.router_z_weight * balance.z
            metrics |= {"router_balance": balance.balance, "router_z": balance.z}
        return total, metrics

    def train_step(
        state: TrainState, batch: TrainingBatch
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        (_, metrics), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params, batch, key)
        metrics["gradient_norm"] = optax.tree.norm(gradient)
        return state.apply_gradients(grads=gradient), metrics

    return jax.jit(train_step, donate_argnums=0)


def _narrowed(layers: Any, dtype: str) -> Any:
    """Casts the layers' matrices to `dtype`; norms and biases stay as they are."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if leaf.ndim > 1 else leaf, layers)
