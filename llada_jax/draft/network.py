"""The network of a DFlash drafter (arXiv 2602.06036).

A drafter guesses the next tokens of a frozen autoregressive target in one forward. Its context is
not text but states of the target: the outputs of a few of its layers (taps), joined and projected
by `fc` to one state per position. Each draft layer turns these states into keys and values with its
own matrices. Its rows are the anchor, the last token that is certain but that the target has not
processed, and masks at the positions after it. A row sees the whole context and all rows of its
block, and the target's head predicts the token at the row's own position.

Embedding and head belong to the target. The layers are Qwen3's, so they are the model's own, and
the context takes the place of its cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, require, require_counts
from llada_jax.model.architecture.parameters import ParamSpec
from llada_jax.model.forward import forward_canvas, run_layers, shared_layer
from llada_jax.model.head import first_maximum, head_logits
from llada_jax.model.layers import Attend, CachedLayer, attend, rms_norm, rotate, rotation
from llada_jax.model.params import Attention, Layer, ModelParams, abstract_params, init_params
from llada_jax.model.quantize import Weight, linear

Context = tuple[tuple[Float[Array, "B K L Dh"], Float[Array, "B K L Dh"]], ...]
"""Keys (after norm and RoPE) and values of context positions, one pair a draft layer."""


@dataclass(frozen=True, kw_only=True)
class DFlashConfig:
    """The shape of a drafter, and of the target that it belongs to."""

    shape: ModelConfig
    """The draft layers. Width and vocabulary are the target's."""
    taps: tuple[int, ...]
    """Target layers, counted from 0, whose outputs are the context (`hidden_states[id + 1]` of
    transformers)."""
    block_length: int
    """Rows of a block: the anchor and the masks after it."""
    mask_id: int
    """The row of the target's embedding that stands for a mask."""
    target_layers: int
    target: str | None = None
    """Fingerprint of the target, or None if it is unknown."""
    n_ids: int | None = None
    """Size of a reduced draft vocabulary, or None if every id can be drafted."""

    def __post_init__(self) -> None:
        require_counts(self, "target_layers", "n_ids")
        require_counts(self, "block_length", least=2)
        require_counts(self, "mask_id", least=0, most=self.vocab_size - 1)
        require(
            len(self.taps) > 0 and all(tap in range(self.target_layers - 1) for tap in self.taps),
            # transformers' state after the last layer is already normed
            f"target_layer_ids is {list(self.taps)}; allowed: layers from 0 to "
            f"{self.target_layers - 2}, all but the last",
        )

    @property
    def target_facts(self) -> dict[str, Any]:
        """The fields that a target must have."""
        layers = self.target_layers
        return {"vocab_size": self.vocab_size, "width": self.width, "n_layers": layers}

    @property
    def n_layers(self) -> int:
        """Number of draft layers."""
        return self.shape.n_layers

    @property
    def n_kv_heads(self) -> int:
        """Key-value heads of a draft layer."""
        return self.shape.n_kv_heads

    @property
    def head_dim(self) -> int:
        """Size of a head of a draft layer."""
        return self.shape.head_dim

    @property
    def width(self) -> int:
        """Width of the drafter and of the target."""
        return self.shape.width

    @property
    def vocab_size(self) -> int:
        """Rows of the target's embedding."""
        return self.shape.vocab_size


class DFlashParams(NamedTuple):
    """A drafter's arrays; or, in `drafter_specs`, their descriptions."""

    fc: Weight  # [D, n * D]
    hidden_norm: Float[Array, " D"]
    layers: tuple[Layer, ...]
    norm: Float[Array, " D"]
    ids: Int[Array, " V2"] | None = None  # the ids that are drafted; None for all


def default_taps(target_layers: int, count: int) -> tuple[int, ...]:
    """Returns the published choice of taps: from layer 1 to the third layer before the last, evenly
    spaced and rounded, halves to even; for one tap the middle layer.

    Raises ValueError for fewer than 4 layers, and for more taps than there are layers in between.
    """
    most = target_layers - 3
    require(1 <= count <= most, f"taps is {count}; allowed: 1 to {most} of {target_layers} layers")
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def drafter_specs(config: DFlashConfig) -> DFlashParams:
    """Describes each parameter by a `ParamSpec`; `ids` is None, since it is not trained."""
    width, inputs = config.width, config.width * len(config.taps)
    fc = ParamSpec((width, inputs), ("width", "embedded"), inputs**-0.5, quantizable=True)
    body = abstract_params(config.shape)
    norm: Any = body.final_norm  # descriptions take the places of arrays
    weight: Any = fc
    return DFlashParams(weight, norm, body.layers, norm)


def init_drafter(config: DFlashConfig, key: Key[Array, ""]) -> DFlashParams:
    """Draws float32 parameters: matrices as for a model, norms at one."""
    of_fc, of_layers = jax.random.split(key)
    specs: Any = drafter_specs(config)
    # Without a vocabulary, since the drafter has no embedding.
    shape = config.shape.replace(
        vocab_size=1, tied_embeddings=True, eos_id=None, eot_id=None, pad_id=None, stop_ids=()
    )
    body = init_params(shape, of_layers)
    fc = specs.fc.init_std * jax.random.normal(of_fc, specs.fc.shape)
    return DFlashParams(fc, jnp.ones(config.width), body.layers, body.final_norm)


def start_from_target(
    drafter: DFlashParams, config: DFlashConfig, target: ModelParams
) -> DFlashParams:
    """Returns drawn parameters with the target's last layers and norm in place of the drafter's.

    The fusion passes on the last tap and a part of what was drawn. Training from here reaches a
    loss in a fraction of the steps that it takes from drawn layers.
    """

    def copied(own: Layer, source: Layer) -> Layer:
        matrices = {name: getattr(source.attention, name) for name in Attention._fields[:4]}
        attention = own.attention._replace(**matrices)  # its norms of queries and keys stay
        return source._replace(attention=attention)

    layers = tuple(map(copied, drafter.layers, target.layers[-len(drafter.layers) :]))
    fc: Any = drafter.fc  # an array, since it was drawn
    last = jnp.eye(config.width, fc.shape[1], fc.shape[1] - config.width)
    norms = jnp.stack([layer.attention_norm for layer in layers])
    started = DFlashParams(0.3 * fc + last, norms.mean(axis=0), layers, target.final_norm)
    # Copies, since a training step consumes its input.
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), started)


def tapped(
    params: ModelParams,
    model: ModelConfig,
    tokens: Int[Array, "B L"],
    taps: Sequence[int],
    live: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L n D"]:
    """Returns the outputs of some of a target's layers at every position, before its final norm."""
    outputs = forward_canvas(params, model, tokens, live, taps=taps).taps
    assert outputs is not None
    return outputs


def context_rows(
    params: DFlashParams,
    config: DFlashConfig,
    taps: Float[Array, "B R n D"],
    positions: Int[Array, "B R"],
) -> tuple[tuple[Float[Array, "B K R Dh"], Float[Array, "B K R Dh"]], ...]:
    """Returns the keys (after norm and RoPE) and values of context rows, one pair a draft layer.

    Args:
      taps: Outputs of the target's layers `config.taps`.
      positions: Absolute positions of the rows.
    """
    eps = config.shape.norm_eps
    joined = taps.reshape(*taps.shape[:2], -1).astype(params.norm.dtype)
    states = rms_norm(linear(joined, params.fc), params.hidden_norm, eps)
    angles = rotation(config.shape, positions)
    pairs = []
    for layer in params.layers:
        weights = layer.attention
        key, value = (
            linear(states, matrix).reshape(*states.shape[:2], config.n_kv_heads, config.head_dim)
            for matrix in (weights.key, weights.value)
        )
        assert weights.key_norm is not None
        key = rotate(rms_norm(key, weights.key_norm, eps), angles)
        pairs.append((key.swapaxes(1, 2), value.swapaxes(1, 2)))
    return tuple(pairs)


def run_blocks(
    params: DFlashParams,
    config: DFlashConfig,
    embedding: Float[Array, "V D"],
    tokens: Int[Array, "B R"],
    positions: Int[Array, "B R"],
    context: Context,
    visible: Any,
    attend_with: Attend = attend,
) -> Float[Array, "B R D"]:
    """Returns the states of block rows after the final norm, the input of the target's head.

    Args:
      tokens: Anchors, and `config.mask_id` in all other rows.
      visible: What each row sees, in the form that `attend_with` reads.
    """
    hidden = embedding[tokens].astype(params.norm.dtype)
    caches = [CachedLayer(*pair, index) for index, pair in enumerate(context)]
    angles = rotation(config.shape, positions)
    run = partial(shared_layer, attend_with=attend_with)
    hidden, _, _ = run_layers(params.layers, config.shape, hidden, angles, visible, caches, run)
    return rms_norm(hidden, params.norm, config.shape.norm_eps)


def draft_head(params: Any, embedding: Float[Array, "V D"], head: Weight | None) -> Weight:
    """Returns the rows of the target's head that a drafter with these parameters (`ids`) uses;
    `head` is None if the embedding is the head."""
    weight = embedding if head is None else head
    return weight if params.ids is None else jax.tree.map(lambda leaf: leaf[params.ids], weight)


def draft_block(
    params: DFlashParams,
    config: DFlashConfig,
    embedding: Float[Array, "V D"],
    head: Weight,
    context: Context,
    visible: Bool[Array, "B L"],
    anchor: Int[Array, " B"],
    position: Int[Array, " B"],
    count: int,
) -> Int[Array, "B count"]:
    """Returns the most probable tokens at the `count` positions after an anchor.

    Args:
      head: From `draft_head`.
      context: Keys and values of `context_rows`, by absolute position.
      visible: The context positions before the anchor.
      anchor: Its token, and `position` its absolute position.
      count: At most `config.block_length` - 1.
    """
    most = config.block_length - 1
    require(0 < count <= most, f"count is {count}; allowed: 1 to {most} drafts")
    batch, n_rows = len(anchor), count + 1
    tokens = jnp.full((batch, n_rows), config.mask_id, anchor.dtype).at[:, 0].set(anchor)
    positions = position[:, None] + jnp.arange(n_rows, dtype=position.dtype)
    sees_context = jnp.broadcast_to(visible[:, None], (batch, n_rows, visible.shape[1]))
    sees = sees_context, jnp.ones((batch, n_rows, n_rows), bool)
    hidden = run_blocks(params, config, embedding, tokens, positions, context, sees)
    drafts = hidden[:, 1:].astype(embedding.dtype)
    return best_ids(params, drafts, head)


def best_ids(params: Any, hidden: Float[Array, "B R D"], head: Weight) -> Int[Array, "B R"]:
    """Returns each row's most probable id; the lowest wins ties. `head` is from `draft_head`."""
    _, index = first_maximum(head_logits(hidden, head))
    return index if params.ids is None else params.ids[index]
