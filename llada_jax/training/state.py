"""The training state, its optimizer, and the compiled step that advances it.

A step computes an objective's loss in the configured dtypes, adds the router losses of a mixture of
experts, and updates float32 parameters, or only the adapters with LoRA. The random numbers of a
step follow from the seed and the step's index, so that an interrupted run resumes with identical
results.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from optax import contrib

from llada_jax.config import ModelConfig, TrainConfig, require
from llada_jax.model.forward import forward, run_layer
from llada_jax.model.lora import init_adapters, merge_adapters, with_adapters
from llada_jax.model.params import ModelParams, init_params
from llada_jax.model.quantize import dequantize, is_quantized
from llada_jax.training.copying import with_copying_heads
from llada_jax.training.data import TrainingBatch
from llada_jax.training.loss import RouterLosses
from llada_jax.training.objectives import Masked, Objective, Reader

MASKED = Masked()


def create_state(
    model: ModelConfig, config: TrainConfig, parent: ModelParams | None = None
) -> TrainState:
    """Returns the state before the first step, from `parent` or else from `config.start`. With
    `config.lora` it contains adapters only, and the parent is kept separately.

    Raises ValueError for a model without [MASK] or EOS, with shifted outputs or causal attention,
    for adapters without a parent, and for rematerialization of a mixture of experts.
    """
    require(model.mask_id is not None, "mask_id is None; allowed: a token id")
    require(model.eos_id is not None, "eos_id is None; allowed: a token id")
    require(not model.shift_logits, "shift_logits is True; allowed: False")
    require(model.causal is None, f"causal is {model.causal!r}; allowed: None")
    require(
        not config.remat or model.moe is None,
        # RouterLosses collects values during the pass; a second run of a layer would add them again
        "remat is True for a mixture of experts, whose routers are listened to; allowed: False",
    )
    params: Any
    if config.lora is not None:
        require(parent is not None, "lora is set without a parent; allowed: with a model to adapt")
        params = init_adapters(model, config.lora, jax.random.key(config.seed))
    elif parent is not None:
        params = jax.tree.map(jnp.copy, parent)  # the train step donates its buffers
    else:
        params = init_params(model, jax.random.key(config.seed))
        if config.start == "copying":
            params = with_copying_heads(params, model, config.seed)
    state = TrainState.create(apply_fn=forward, params=params, tx=make_optimizer(config))
    return state.replace(step=jnp.zeros((), jnp.int32))


def trained_params(params: Any, config: TrainConfig, parent: ModelParams | None) -> ModelParams:
    """Returns the model of a state's parameters; adapters are merged into the parent."""
    if config.lora is None or parent is None:
        return params
    return merge_adapters(parent, params, config.lora)


def make_train_step(
    model: ModelConfig,
    config: TrainConfig,
    objective: Objective = MASKED,
    parent: ModelParams | None = None,
    placement: Any = None,
) -> Any:
    """Compiles `(state, batch) -> (state, metrics)`, once per canvas length.

    The random corruption of a batch is a pure function of the seed and the step; an objective may
    also use the parameters for it.

    Args:
      parent: The base of adapters; parameters in any dtype, or quantized ones, which are used as
        floats, because rounding activations would stop the gradient.
      placement: The shardings of the state on a mesh; the step preserves them.
    """
    base = parent if config.lora is not None else None

    def loss_of(
        params: Any, base: ModelParams | None, batch: Any, key: jax.Array
    ) -> tuple[jax.Array, dict]:
        # `batch` is a TrainingBatch of JAX arrays
        if config.lora is not None and base is not None:
            params = with_adapters(base, params, config.lora)
        cast = _cast_params(params, config)
        routers = RouterLosses(batch.live)
        run = partial(run_layer, ffn=routers)
        if config.remat:  # keep only each layer's input for the gradient
            run = jax.checkpoint(run, static_argnums=1)

        def predict(tokens: jax.Array) -> jax.Array:
            return forward(cast, model, tokens, batch.live, run)

        def infer(tokens: jax.Array, live: jax.Array) -> jax.Array:
            return forward(jax.lax.stop_gradient(cast), model, tokens, live)

        reader = Reader(model, predict, infer, config.min_mask_probability)
        total, metrics = objective(reader, batch, key)
        if model.moe is not None:
            balance = routers.mean()
            total += config.balance_weight * balance.balance + config.router_z_weight * balance.z
            metrics |= {"router_balance": balance.balance, "router_z": balance.z}
        return total, metrics

    def train_step(
        state: TrainState, batch: TrainingBatch, base: ModelParams | None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        loss_and_gradient = jax.value_and_grad(loss_of, has_aux=True)
        (_, metrics), gradient = loss_and_gradient(state.params, base, batch, key)
        metrics["gradient_norm"] = optax.tree.norm(gradient)
        return state.apply_gradients(grads=gradient), metrics

    options: dict[str, Any] = {} if placement is None else {"out_shardings": (placement, None)}
    compiled = jax.jit(train_step, donate_argnums=0, **options)
    return lambda state, batch: compiled(state, batch, base)


def _cast_params(params: ModelParams, config: TrainConfig) -> ModelParams:
    """Casts the layers' matrices to `matmul_dtype` and all else to `activation_dtype`; quantized
    matrices become floats."""

    def cast(path: tuple[Any, ...], leaf: Any) -> Any:
        in_layer = path[0].name == "layers"
        matrices = config.matmul_dtype if in_layer else config.activation_dtype
        if is_quantized(leaf):
            return dequantize(leaf, matrices)
        return leaf.astype(matrices if leaf.ndim > 1 else config.activation_dtype)

    return jax.tree.map_with_path(cast, params, is_leaf=is_quantized)


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """Returns a rate that rises linearly, is constant, and falls to zero at the last step."""
    return optax.join_schedules(
        [
            optax.linear_schedule(0.0, config.peak_lr, config.warmup_steps),
            optax.constant_schedule(config.peak_lr),
            optax.linear_schedule(config.peak_lr, 0.0, config.decay_steps),
        ],
        [config.warmup_steps, config.steps - config.decay_steps],
    )


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Returns AdamW or Muon after clipping the global gradient norm; only matrices decay. With
    `accumulate`, an update uses the mean gradient of that number of steps.

    Muon (Jordan 2024) is for the matrices of the layers, scaled so that its updates are as large as
    Adam's (Liu et al., arXiv 2502.16982); Adam is for embedding, head and norms.
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
    """Returns the dimensions over which Muon multiplies; None for parameters that Adam updates."""

    def dimensions(path: tuple[Any, ...], leaf: jax.Array) -> contrib.MuonDimensionNumbers | None:
        in_layer = path[0].name == "layers" and leaf.ndim > 1
        return contrib.MuonDimensionNumbers(leaf.ndim - 1, leaf.ndim - 2) if in_layer else None

    return jax.tree.map_with_path(dimensions, params)
