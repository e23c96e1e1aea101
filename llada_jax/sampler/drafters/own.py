"""Drafts from a network that was trained for the model and loaded with it."""

from typing import Any

from jaxtyping import Array, Int

from llada_jax.sampler.drafters.drafter import Drafter, DraftView, drafter
from llada_jax.sampler.rules.rule import Sizes
from llada_jax.types import Params, Rows, RowsOut


@drafter(name="own")
class Own(Drafter):
    """Drafts with the model's own drafter (`Model.drafter`), which reads states of the model."""

    def init(self, params: Params, sizes: Sizes) -> Any:
        return params.drafter.init(sizes)

    def observe(self, params: Params, memory: Any, rows: Rows, out: RowsOut) -> Any:
        return params.drafter.observe(memory, rows, out)

    def draft(self, params: Params, view: DraftView, count: int) -> Int[Array, "B count"]:
        return params.drafter.draft(params, view, count)
