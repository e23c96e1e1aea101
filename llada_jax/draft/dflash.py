"""A DFlash drafter in the decoding loop (arXiv 2602.06036, `network` has the formulas).

Each forward of the target adds the keys and values of its rows to the drafter's context, at their
positions. Rows of drafts that the target then rejects are overwritten by later forwards, and until
then no block sees them: like the target's cache, the context ends at the anchor.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import ModelConfig
from llada_jax.draft.files import require_target
from llada_jax.draft.network import (
    Context,
    DFlashConfig,
    DFlashParams,
    context_rows,
    draft_block,
    draft_head,
)
from llada_jax.model.forward import forward_rows
from llada_jax.model.params import ModelParams, Weight
from llada_jax.rows import write_at
from llada_jax.sampler.drafters.drafter import DraftView
from llada_jax.sampler.rules.rule import Sizes
from llada_jax.types import KVCache, Rows, RowsOut


@partial(jax.tree_util.register_dataclass, data_fields=("params", "head"), meta_fields=("config",))
@dataclass(frozen=True, eq=False)
class DFlash:
    """A drafter for one target: a pytree whose leaves are the arrays of `params` and `head`."""

    config: DFlashConfig
    params: DFlashParams
    head: Weight | None = None
    """The rows of the target's head that it uses, from `attached`: gathered once, because each
    draft would otherwise copy as many bytes as the product reads."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's layers, from 0, whose outputs `observe` reads."""
        return self.config.taps

    @property
    def block_length(self) -> int:
        """Rows of a block that it was trained with: the anchor and its drafts."""
        return self.config.block_length

    def attached(self, target: ModelConfig, params: ModelParams, fingerprint: str | None) -> Self:
        """Returns the drafter, ready to draft for a target. Raises ValueError if it was made for
        another one."""
        require_target(self.config, target, fingerprint)
        return replace(self, head=draft_head(self.params, params.embedding, params.head))

    def cut_to(self, block_length: int) -> Self:
        """Returns itself: `draft` runs as many rows as a block has."""
        return self

    def forward_rows(
        self, target: ModelParams, model: ModelConfig, rows: Rows, cache: KVCache
    ) -> RowsOut:
        """Runs rows of the target, and returns the outputs of its layers `taps` as well."""
        return forward_rows(target, model, rows, cache, taps=self.taps)

    def init(self, sizes: Sizes) -> Context:
        """Returns an empty context for canvases of `sizes.canvas` positions."""
        shape = (sizes.batch, self.config.n_kv_heads, sizes.canvas, self.config.head_dim)
        dtype = self.params.norm.dtype
        pairs = [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in self.params.layers]
        return tuple(pairs)

    def observe(self, context: Context, rows: Rows, out: RowsOut) -> Context:
        """Returns the context with the rows of a forward."""
        assert out.taps is not None
        taps = out.taps.astype(self.params.norm.dtype)
        new = context_rows(self.params, self.config, taps, rows.positions)
        slots = jnp.where(rows.written, rows.positions, context[0][0].shape[2])  # else dropped
        return jax.tree.map(
            lambda old, added: write_at(slots, old, added.swapaxes(1, 2)), context, new
        )

    def draft(self, target: ModelParams, view: DraftView, count: int) -> Int[Array, "B count"]:
        """Returns the most probable tokens after each anchor."""
        assert self.head is not None, "attached to its target"
        at = jnp.arange(view.tokens.shape[1], dtype=jnp.int32)[None, :]
        anchor = jnp.take_along_axis(view.tokens, view.anchor[:, None], axis=1)[:, 0]
        return draft_block(
            self.params,
            self.config,
            target.embedding,
            self.head,
            view.memory,
            at < view.anchor[:, None],
            anchor,
            view.anchor,
            count,
        )
