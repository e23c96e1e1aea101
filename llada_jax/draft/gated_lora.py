"""A drafter inside its target: LoRA that applies to mask rows only (arXiv 2507.11851).

In the forward that verifies a block, k masks follow each token of the block. A mask attends to the
text up to its token and to the masks before it, and only mask rows use the LoRA matrices. No other
row attends to a mask, so the other rows compute the target itself. When the verification has
accepted some tokens, the masks behind the last accepted one have already drafted the next block: a
cycle takes one forward, of (k + 1)^2 rows for a block of k + 1. (Masks behind the whole draft alone
would take 2k + 1 rows, and there would be nothing to verify after each rejected token.)

The r-th mask behind a token, counted from 1, is at position r after it and predicts the token at
r + 1. The token at position 1, the target's own, is known once drafts are needed. So a small
network of two inputs, the draft before and the state of the mask, precedes the target's head, and
drafts are chosen one after the other. Differences to the paper: one loss, the cross-entropy of
these drafts, and SwiGLU with a residual connection as the network.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import LoraConfig, ModelConfig, require_counts
from llada_jax.draft.blocks import Blocks, weighted_loss
from llada_jax.draft.files import require_target
from llada_jax.draft.network import best_ids, draft_head
from llada_jax.model.forward import cached_layers, forward_canvas, run_layers
from llada_jax.model.layers import feed_forward, rms_norm, rotation
from llada_jax.model.lora import Adapters, init_adapters, with_adapters
from llada_jax.model.params import FeedForward, ModelParams
from llada_jax.model.quantize import Weight
from llada_jax.sampler.drafters.drafter import DraftView
from llada_jax.sampler.rules.rule import Sizes
from llada_jax.sampler.state import take
from llada_jax.types import KVCache, Rows, RowsOut


@dataclass(frozen=True, kw_only=True)
class GatedLoraConfig:
    """The shape of a drafter, and of the target that it belongs to."""

    shape: ModelConfig
    """The target's."""
    lora: LoraConfig
    n_masks: int
    """Masks behind a token: the most drafts of a block."""
    target: str | None = None
    """Fingerprint of the target, or None if it is unknown."""
    n_ids: int | None = None
    """Size of a reduced draft vocabulary, or None if every id can be drafted."""

    def __post_init__(self) -> None:
        require_counts(self, "n_masks", "n_ids")

    @property
    def block_length(self) -> int:
        """Rows of a block: the last certain token and its drafts."""
        return self.n_masks + 1

    @property
    def target_facts(self) -> dict[str, Any]:
        """The fields that a target must have."""
        names = ("vocab_size", "width", "n_layers", "family", "n_heads", "n_kv_heads", "ffn_width")
        return {name: getattr(self.shape, name) for name in names}


class GatedLoraParams(NamedTuple):
    """A drafter's arrays."""

    masks: Float[Array, "k D"]  # inputs of the mask rows, by distance
    adapters: Adapters
    norm: Float[Array, " D"]  # of the embedding of the draft before
    mixer: FeedForward  # of it and the mask's state, [2 D] to [D]
    ids: Int[Array, " V2"] | None = None  # the ids that are drafted; None for all


def init_gated_lora(
    config: GatedLoraConfig, embedding: Float[Array, "V D"], key: Key[Array, ""]
) -> GatedLoraParams:
    """Draws float32 parameters with which LoRA and the mixer add nothing yet, and the masks are as
    large as rows of the target's embedding."""
    of_masks, of_adapters, of_gate, of_up = jax.random.split(key, 4)
    width, scale = config.shape.width, embedding.astype(jnp.float32).std()

    def matrix(key: Key[Array, ""]) -> Float[Array, "D DD"]:
        return (2 * width) ** -0.5 * jax.random.normal(key, (width, 2 * width))

    return GatedLoraParams(
        scale * jax.random.normal(of_masks, (config.n_masks, width)),
        init_adapters(config.shape, config.lora, of_adapters),
        jnp.ones(width),
        FeedForward(matrix(of_gate), matrix(of_up), jnp.zeros((width, width))),
    )


def abstract_gated_lora(config: GatedLoraConfig) -> GatedLoraParams:
    """Returns the parameter tree with a `ShapeDtypeStruct` at each leaf."""

    def init() -> GatedLoraParams:
        params = init_gated_lora(config, jnp.zeros((1, config.shape.width)), jax.random.key(0))
        return params._replace(ids=config.n_ids and jnp.zeros(config.n_ids, jnp.int32))

    return jax.eval_shape(init)


def mask_rows(
    k: int,
    at: Int[Array, "B G"],
    sees_cache: Bool[Array, "B G L"],
    sees_rows: Bool[Array, "B G R"],
) -> tuple[Int[Array, "B Gk"], Bool[Array, "B Gk L"], Bool[Array, "B Gk T"]]:
    """Returns the positions of k masks behind each of G tokens, and the cached positions and rows
    (R others, then the masks: T = R + G * k) that they see: those that their token sees, and the
    masks of their group up to themselves."""
    batch, n_groups = at.shape
    index = jnp.arange(n_groups * k)
    group = (index[:, None] // k == index // k) & (index[:, None] >= index)
    sees = partial(jnp.repeat, repeats=k, axis=1)
    among = jnp.broadcast_to(group, (batch, *group.shape))
    positions = at[..., None] + 1 + jnp.arange(k, dtype=at.dtype)
    rows = jnp.concatenate([sees(sees_rows), among], axis=-1)
    return positions.reshape(batch, -1), sees(sees_cache), rows


def choose_drafts(
    params: GatedLoraParams,
    eps: float,
    embedding: Float[Array, "V D"],
    head: Weight,
    anchors: Int[Array, "B N"],
    states: Float[Array, "B N k D"],
) -> Int[Array, "B N k"]:
    """Returns the most probable drafts after each anchor, each one given the draft before.

    Args:
      anchors: Their tokens.
      states: Of the masks behind the token before each anchor.
    """

    def choose(previous: Array, state: Array) -> tuple[Array, Array]:
        mixed = _mix(params, eps, embedding, previous, state)
        ids = best_ids(params, mixed.astype(embedding.dtype), head).astype(previous.dtype)
        return ids, ids

    _, drafts = jax.lax.scan(choose, anchors, jnp.moveaxis(states, 2, 0))
    return jnp.moveaxis(drafts, 0, 2)


def _mix(
    params: GatedLoraParams,
    eps: float,
    embedding: Float[Array, "V D"],
    previous: Int[Array, "*rows"],
    states: Float[Array, "*rows D"],
) -> Float[Array, "*rows D"]:
    """Returns the head's input: a mask's state, with the token before its draft mixed in."""
    known = rms_norm(embedding[previous], params.norm.astype(embedding.dtype), eps)
    return states + feed_forward(jnp.concatenate([known, states], axis=-1), params.mixer)


def block_states(
    params: GatedLoraParams, config: GatedLoraConfig, target: ModelParams, blocks: Blocks
) -> Float[Array, "B N k D"]:
    """Returns the states of the masks for each anchor. The tokens run as a plain forward of the
    target, which has no gradient, and are the masks' cache."""
    model, k = config.shape, len(params.masks)
    tokens = jnp.asarray(blocks.tokens)
    clean = jax.lax.stop_gradient(forward_canvas(target, model, tokens))
    cache = KVCache(*(tuple(x.swapaxes(1, 2) for x in part) for part in (clean.keys, clean.values)))
    at = jnp.maximum(jnp.asarray(blocks.anchors) - 1, 0)
    sees_cache = jnp.arange(tokens.shape[1]) <= at[..., None]
    positions, *visible = mask_rows(k, at, sees_cache, jnp.zeros((*at.shape, 0), bool))
    adapted = with_adapters(target, params.adapters, config.lora)
    shape = (*at.shape, k, model.width)
    hidden = jnp.broadcast_to(params.masks, shape).reshape(len(at), -1, model.width)
    hidden, _, _ = run_layers(
        adapted.layers,
        model,
        hidden.astype(target.embedding.dtype),
        rotation(model, positions),
        tuple(visible),
        cached_layers(cache),
    )
    return rms_norm(hidden, target.final_norm, model.norm_eps).reshape(shape)


def gated_lora_loss(
    params: GatedLoraParams,
    config: GatedLoraConfig,
    target: ModelParams,
    blocks: Blocks,
    decay: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Returns the cross-entropy of the drafts, given the right token before each, and metrics, as
    `blocks.draft_loss`. It needs no taps."""
    states = block_states(params, config, target, blocks)
    at = jnp.asarray(blocks.anchors)[..., None] + jnp.arange(states.shape[2])
    before = take(jnp.asarray(blocks.tokens), at.reshape(len(at), -1)).reshape(at.shape)
    mixed = _mix(params, config.shape.norm_eps, target.embedding, before, states)
    hidden = mixed.reshape(len(at), -1, mixed.shape[-1])
    return weighted_loss(params, config, hidden, target.embedding, target.head, blocks, decay)


def gated_lora_drafts(
    params: GatedLoraParams, config: GatedLoraConfig, target: ModelParams, blocks: Blocks
) -> Int[Array, "B N k"]:
    """Returns the drafts after each anchor, as decoding makes them."""
    states = block_states(params, config, target, blocks)
    anchors = take(jnp.asarray(blocks.tokens), jnp.maximum(jnp.asarray(blocks.anchors), 0))
    head = draft_head(params, target.embedding, target.head)
    eps = config.shape.norm_eps
    return choose_drafts(params, eps, target.embedding, head, anchors, states)


class Masks(NamedTuple):
    """The memory of the drafter: masks of the last forward behind G = k + 1 tokens."""

    at: Int[Array, "B G"]  # positions of the tokens; -1 for none
    states: Float[Array, "B G k D"]


@partial(jax.tree_util.register_dataclass, data_fields=("params", "head"), meta_fields=("config",))
@dataclass(frozen=True, eq=False)
class GatedLora:
    """A drafter for one target: a pytree whose leaves are the arrays of `params` and `head`."""

    config: GatedLoraConfig
    params: GatedLoraParams
    head: Weight | None = None
    """The rows of the target's head that it uses, from `attached`."""

    taps = ()  # it reads no outputs of layers

    @property
    def block_length(self) -> int:
        """The most rows of a block: the anchor and its drafts."""
        return len(self.params.masks) + 1

    def attached(self, target: ModelConfig, params: ModelParams, fingerprint: str | None) -> Self:
        """Returns the drafter, ready to draft for a target, in its dtype. Raises ValueError if it
        was made for another one."""
        require_target(self.config, target, fingerprint)
        ids, dtype = self.params.ids, params.embedding.dtype
        floats = jax.tree.map(lambda leaf: leaf.astype(dtype), self.params._replace(ids=None))
        own = floats._replace(ids=ids)
        return replace(self, params=own, head=draft_head(own, params.embedding, params.head))

    def cut_to(self, block_length: int) -> Self:
        """Returns the drafter with no more masks than blocks of this length need."""
        masks = self.params.masks[: block_length - 1]
        return replace(self, params=self.params._replace(masks=masks))

    def init(self, sizes: Sizes) -> Masks:
        """Returns the memory before the first forward."""
        k, width = self.params.masks.shape
        states = jnp.zeros((sizes.batch, k + 1, k, width), self.params.masks.dtype)
        return Masks(jnp.full(states.shape[:2], -1, jnp.int32), states)

    def forward_rows(
        self, target: ModelParams, model: ModelConfig, rows: Rows, cache: KVCache
    ) -> RowsOut:
        """Runs rows as the target does, and in the same forward the masks behind the last k + 1 of
        them, whose states are the output's `taps`."""
        k, width = self.params.masks.shape
        batch, n_rows = rows.tokens.shape
        at = jnp.maximum(self._last_rows(rows), 0)
        seen = (take(array, at) for array in (rows.positions, rows.sees_cache, rows.sees_rows))
        positions, sees_cache, sees_rows = mask_rows(k, *seen)
        masks = jnp.broadcast_to(self.params.masks, (batch, at.shape[1], k, width))
        gate = jnp.arange(n_rows + positions.shape[1])[:, None] >= n_rows
        adapted = with_adapters(
            target._replace(drafter=None), self.params.adapters, self.config.lora, gate
        )
        unseen = jnp.pad(rows.sees_rows, ((0, 0), (0, 0), (0, positions.shape[1])))
        join = partial(jnp.concatenate, axis=1)
        hidden, keys, values = run_layers(
            adapted.layers,
            model,
            join([target.embedding[rows.tokens], masks.reshape(batch, -1, width)]),
            rotation(model, join([rows.positions, positions])),
            (join([rows.sees_cache, sees_cache]), join([unseen, sees_rows])),
            cached_layers(cache),
        )
        hidden = rms_norm(hidden, target.final_norm, model.norm_eps)
        states = hidden[:, n_rows:].reshape(masks.shape)
        hidden, keys, values = jax.tree.map(lambda x: x[:, :n_rows], (hidden, keys, values))
        return RowsOut(hidden, tuple(keys), tuple(values), states)

    def _last_rows(self, rows: Rows) -> Int[Array, "B G"]:
        """Returns the last k + 1 live rows, or all if the forward has fewer; negative for none."""
        size = min(self.block_length, rows.tokens.shape[1])
        count = rows.live.sum(axis=1, keepdims=True, dtype=jnp.int32)
        return count - size + jnp.arange(size, dtype=jnp.int32)

    def observe(self, memory: Masks, rows: Rows, out: RowsOut) -> Masks:
        """Returns the masks of a forward."""
        assert out.taps is not None
        last = self._last_rows(rows)
        at = jnp.where(last >= 0, take(rows.positions, jnp.maximum(last, 0)), -1)
        none = self.block_length - last.shape[1]
        return Masks(
            jnp.pad(at, ((0, 0), (0, none)), constant_values=-1),
            jnp.pad(out.taps, ((0, 0), (0, none), (0, 0), (0, 0))),
        )

    def draft(self, target: ModelParams, view: DraftView, count: int) -> Int[Array, "B count"]:
        """Returns the most probable tokens after each anchor, or -1 if the last forward had no
        masks behind the token before it."""
        assert self.head is not None, "attached to its target"
        memory: Masks = view.memory
        behind = memory.at == view.anchor[:, None] - 1
        group = jnp.argmax(behind, axis=1)[:, None]
        anchors = take(view.tokens, view.anchor[:, None])
        states = take(memory.states, group)[:, :, :count]
        eps = self.config.shape.norm_eps
        drafts = choose_drafts(self.params, eps, target.embedding, self.head, anchors, states)
        return jnp.where(behind.any(axis=1, keepdims=True), drafts[:, 0], -1)
