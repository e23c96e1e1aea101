"""Records the experts chosen for every row, and builds the routing trace of a run.

Recording evaluates the routers a second time on the input of each layer, and the gates of later
layers on the same input, to measure how well they predict (HybriMoE, arXiv 2504.05897, section
IV-C). The forward pass itself is unchanged.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.experts.routing import ABSENT, LOOK_AHEAD, RoutingTrace
from llada_jax.model.forward import LayerOut, feed_forward_half, forward_rows, run_layer
from llada_jax.model.moe import Routing, route, router_scores
from llada_jax.model.params import Experts, Layer, ModelParams
from llada_jax.types import KVCache, Rows, RowsOut


class RoutingRecord(NamedTuple):
    """The routing of M routed layers, or of one; T rows of the whole batch, A later layers."""

    experts: Int[Array, "*M T k"]
    scores: Float[Array, "*M T E"]
    foreseen: Int[Array, "*M A T k"]
    """The choices of the next A layers' gates for this layer's input."""


@partial(jax.jit, static_argnums=1)
def forward_with_routing(
    params: ModelParams, config: ModelConfig, rows: Rows, cache: KVCache
) -> tuple[RowsOut, RoutingRecord]:
    """Runs `forward_rows`, and also returns the routing. Includes rows that are not live."""
    records: list[RoutingRecord] = []

    def run(layer: Layer, config: ModelConfig, *inputs: Any) -> LayerOut:
        *_, cached = inputs

        def ffn(x: Float[Array, "B R D"], *rest: Any) -> Float[Array, "B R D"]:
            if isinstance(layer.ffn, Experts):
                records.append(route_layer(params, x, config, cached.index)[1])
            return feed_forward_half(x, *rest)

        return run_layer(layer, config, *inputs, ffn=ffn)

    out = forward_rows(params, config, rows, cache, run)
    return out, jax.tree.map(lambda *layers: jnp.stack(layers), *records)


def route_layer(
    params: ModelParams, x: Float[Array, "B R D"], config: ModelConfig, index: int
) -> tuple[Routing, RoutingRecord]:
    """Returns the routing of layer `index` for its input `x`, and its record.

    The experts of later layers are predicted by their own gates on the same input.
    """
    ffn, moe = params.layers[index].ffn, config.moe
    assert isinstance(ffn, Experts) and moe is not None
    flat = x.reshape(-1, x.shape[-1])
    routing = route(flat, ffn, moe)
    following = [layer.ffn for layer in params.layers[index + 1 : index + 1 + LOOK_AHEAD]]
    predicted = [route(flat, ffn, moe).experts for ffn in following if isinstance(ffn, Experts)]
    absent = jnp.full((len(flat), moe.experts_per_token), ABSENT, jnp.int32)
    foreseen = jnp.stack([*predicted, *[absent] * (LOOK_AHEAD - len(predicted))])
    return routing, RoutingRecord(routing.experts, router_scores(flat, ffn, moe), foreseen)


def changed_rows(rows: Rows, before: Rows | None) -> Bool[np.ndarray, " T"]:
    """Marks rows that do not repeat a row of the previous pass with the same position and token."""
    if before is None or before.tokens.shape != rows.tokens.shape:
        return np.ones(rows.tokens.size, bool)
    same = (rows.tokens == before.tokens) & (rows.positions == before.positions)
    return ~np.asarray(same & rows.live & before.live).reshape(-1)


def trace_of_steps(
    steps: Sequence[tuple[RoutingRecord, Rows]],
    *,
    current_block: Int[np.ndarray, "S B"],
    committed: Int[np.ndarray, " S"],
    origin: Int[np.ndarray, " B"],
    block_length: int,
    settings: dict[str, Any],
) -> RoutingTrace:
    """Builds the trace of a run from records and rows in NumPy.

    Rows before a canvas row's current block count as part of it, rows after it are drafts; blocks
    begin at the canvas row's `origin`. Raises ValueError for router scores that are NaN.
    """
    records, rows = zip(*steps, strict=True)
    live = [step_rows.live.reshape(-1) for step_rows in rows]
    n_rows = max(map(len, live))

    def pad(values: np.ndarray, fill: int, axis: int = -1) -> np.ndarray:
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, n_rows - values.shape[axis])
        return np.pad(values, widths, constant_values=fill)

    def stack_experts(name: str) -> np.ndarray:
        """Stacks experts [..., T, k], padded to `n_rows` rows; rows that are not live are
        absent."""
        chosen = [
            np.where(is_live[:, None], getattr(record, name), ABSENT)
            for record, is_live in zip(records, live, strict=True)
        ]
        return np.stack([pad(experts, ABSENT, axis=-2) for experts in chosen]).astype(np.int16)

    steps_and_blocks = zip(rows, current_block, strict=True)
    blocks = [_blocks(*pair, origin, block_length) for pair in steps_and_blocks]
    changed = map(changed_rows, rows, [None, *rows[:-1]])
    scores = [
        record.scores[:, is_live].mean(axis=1)
        for record, is_live in zip(records, live, strict=True)
    ]
    return RoutingTrace(
        experts=stack_experts("experts"),
        scores=np.stack(scores),
        foreseen=stack_experts("foreseen"),
        changed=np.stack([pad(rows_changed, True) for rows_changed in changed]),
        block=np.stack([pad(block, block.min()) for block in blocks]).astype(np.int32),
        committed=np.asarray(committed, np.int32),
        settings=settings,
    )


def _blocks(
    rows: Rows, current: Int[np.ndarray, " B"], origin: Int[np.ndarray, " B"], block_length: int
) -> Int[np.ndarray, " T"]:
    """Returns each row's block. Guided decoding runs every canvas row twice, in the same block."""
    copies = len(rows.positions) // len(current)
    now, start = np.tile(current, copies)[:, None], np.tile(origin, copies)[:, None]
    block = np.maximum((rows.positions - start) // block_length, now)
    return np.where(rows.live, block, now).reshape(-1)
