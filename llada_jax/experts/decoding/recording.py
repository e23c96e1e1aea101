"""Which experts every row of a forward took, and the routing trace of a run of such forwards."""

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
    """The routing of M routed layers, or of one; T rows of the whole batch, A layers ahead."""

    experts: Int[Array, "*M T k"]
    scores: Float[Array, "*M T E"]
    foreseen: Int[Array, "*M A T k"]
    """What the gates of the A layers that follow choose on this layer's input."""


@partial(jax.jit, static_argnums=1)
def recorded(
    params: ModelParams, config: ModelConfig, rows: Rows, cache: KVCache
) -> tuple[RowsOut, RoutingRecord]:
    """Runs `forward_rows` and gives the routing, too. Rows that are not live are routed as well."""
    taken: list[RoutingRecord] = []

    def run(layer: Layer, config: ModelConfig, *inputs: Any) -> LayerOut:
        *_, cached = inputs

        def ffn(x: Float[Array, "B R D"], *of_layer: Any) -> Float[Array, "B R D"]:
            if isinstance(layer.ffn, Experts):
                taken.append(routed(params, x, config, cached.index)[1])
            return feed_forward_half(x, *of_layer)

        return run_layer(layer, config, *inputs, ffn=ffn)

    out = forward_rows(params, config, rows, cache, run)
    return out, jax.tree.map(lambda *layers: jnp.stack(layers), *taken)


def routed(
    params: ModelParams, x: Float[Array, "B R D"], config: ModelConfig, index: int
) -> tuple[Routing, RoutingRecord]:
    """Returns the routing of layer `index` for its input, and the record of it.

    The experts of the layers after it are foreseen by their own gates on the same input.
    """
    ffn, moe = params.layers[index].ffn, config.moe
    assert isinstance(ffn, Experts) and moe is not None
    flat = x.reshape(-1, x.shape[-1])
    routing = route(flat, ffn, moe)
    following = [layer.ffn for layer in params.layers[index + 1 : index + 1 + LOOK_AHEAD]]
    seen = [route(flat, each, moe).experts for each in following if isinstance(each, Experts)]
    nothing = jnp.full((len(flat), moe.experts_per_token), ABSENT, jnp.int32)
    foreseen = jnp.stack([*seen, *[nothing] * (LOOK_AHEAD - len(seen))])
    return routing, RoutingRecord(routing.experts, router_scores(flat, ffn, moe), foreseen)


def changed_rows(rows: Rows, before: Rows | None) -> Bool[np.ndarray, " T"]:
    """Marks rows that do not repeat a row of the forward before: same position, same token."""
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
    """Returns the trace of a run, whose records and rows are in NumPy.

    Rows before a canvas row's current block count as part of it, those after it are drafts; the
    blocks begin at its `origin`. Raises ValueError for router scores that are NaN.
    """
    records, rows = zip(*steps, strict=True)
    live = [each.live.reshape(-1) for each in rows]
    most = max(map(len, live))

    def padded(values: np.ndarray, otherwise: int, axis: int = -1) -> np.ndarray:
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, most - values.shape[axis])
        return np.pad(values, widths, constant_values=otherwise)

    def taken(name: str) -> np.ndarray:
        """Stacks experts [..., T, k] of `most` rows; those that are not live are absent."""
        every = [getattr(record, name) for record in records]
        chosen = [np.where(on[:, None], each, ABSENT) for each, on in zip(every, live, strict=True)]
        return np.stack([padded(each, ABSENT, axis=-2) for each in chosen]).astype(np.int16)

    paired = zip(rows, current_block, strict=True)
    blocks = [_blocks(*each, origin, block_length) for each in paired]
    changed = map(changed_rows, rows, [None, *rows[:-1]])
    scores = [each.scores[:, on].mean(axis=1) for each, on in zip(records, live, strict=True)]
    return RoutingTrace(
        experts=taken("experts"),
        scores=np.stack(scores),
        foreseen=taken("foreseen"),
        changed=np.stack([padded(each, True) for each in changed]),
        block=np.stack([padded(each, each.min()) for each in blocks]).astype(np.int32),
        committed=np.asarray(committed, np.int32),
        settings=settings,
    )


def _blocks(
    rows: Rows, current: Int[np.ndarray, " B"], origin: Int[np.ndarray, " B"], block_length: int
) -> Int[np.ndarray, " T"]:
    """Returns each row's block. Guided decoding runs a canvas row twice, in the same block."""
    copies = len(rows.positions) // len(current)
    now, start = np.tile(current, copies)[:, None], np.tile(origin, copies)[:, None]
    block = np.maximum((rows.positions - start) // block_length, now)
    return np.where(rows.live, block, now).reshape(-1)
