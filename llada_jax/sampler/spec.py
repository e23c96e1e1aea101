"""What a run needs to know of a model and a sampler's settings, as one value."""

from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.config import ModelConfig
from llada_jax.constraint.reach import Grammar
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.rules.rule import Rule
from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.windows.window import (
    CanvasLayout,
    Window,
    WindowContext,
    buckets_for,
    doubling,
)

KeptScores = Literal[False, "scores", "margins"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepSpec:
    """A model's shape, which is static, and settings whose numbers are leaves."""

    model: ModelConfig = field(metadata={"static": True})
    config: SamplerConfig
    measures: bool = field(default=False, metadata={"static": True})
    """Whether the backend's head measures what rules and constraints request beside scores."""
    keeps_scores: KeptScores = field(default=False, metadata={"static": True})
    """Whether the record of a step has every score of its forward, or its margins as well."""
    grammar: Grammar | None = None  # the texts that are allowed; None allows all

    @property
    def rule(self) -> Rule:
        return self.config.rule

    @property
    def window(self) -> Window:
        return self.config.window

    @property
    def mask_id(self) -> int:
        assert self.config.mask_id is not None
        return self.config.mask_id

    @property
    def shift(self) -> int:
        """How many positions before a token the row is that predicts it."""
        return int(self.model.shift_logits)

    @property
    def whole_block(self) -> int | None:
        """The model's block, if a window runs every row of it; drafts reach into a part."""
        return None if self.window.drafts else self.model.block_length

    @property
    def starts_blocks_alone(self) -> bool:
        """Whether the first token of a block is committed before the rest of the block is run."""
        if self.model.causal == "finished":
            return True
        blocks = self.shift > 0 and self.whole_block is not None
        return blocks and self.window.caches_finished and not self.rule.may_wait

    def needs(self, *names: str) -> bool:
        """Returns whether the rule needs any of these fields of an observation."""
        return not self.rule.needs.isdisjoint(names)

    @property
    def shadows(self) -> bool:
        """Whether visible tokens of the window are scored by extra rows."""
        return self.rule.revises and self.rule.rescore == "shadow"

    def window_context(self, state: DecodeState | None = None) -> WindowContext:
        """Returns what windows know of the settings, and of the tokens that will be rescored."""
        config, rule = self.config, self.rule
        return WindowContext(
            block_length=config.block_length,
            shift=self.shift,
            min_commits=config.min_commits,
            latency_table=config.latency_table,
            refresh_rows=rule.refresh_rows if config.refreshes else 0,
            shadows=self.shadows,
            rescorable=None if state is None else rule.rescorable(state, config.eos_id),
        )

    def ends(self, state: DecodeState) -> Bool[Array, "B L"]:
        """Marks the tokens at which a sequence stops, if `eos_early_stop` is set."""
        if not self.config.eos_early_stop:
            return jnp.zeros(state.tokens.shape, bool)
        assert self.config.eos_id is not None
        ids = jnp.array([self.config.eos_id, *self.model.stop_ids], jnp.int32)
        return jnp.isin(state.tokens, ids)

    def max_extra_rows(self, length: int) -> int:
        """Returns the most rows outside the window, in a canvas of `length`."""
        by_rows = self.config.refreshes and not self.config.has_worker
        refreshed = by_rows * 2 * self.rule.refresh_rows
        visible = self.window.max_visible(length, self.window_context())
        return self.shadows * visible + refreshed

    def buckets(self, layout: CanvasLayout) -> tuple[int, ...]:
        """Returns the row counts that forwards are compiled for, ascending."""
        extra, context = self.max_extra_rows(layout.length), self.window_context()
        return buckets_for(self.window, layout, context, self.model.block_length, extra)

    def max_queries(self, length: int) -> int:
        """Returns the most positions that one step scores."""
        config, window = self.config, self.window
        visible = window.max_visible(length, self.window_context())
        queries = visible if window.drafts else config.block_length
        if self.needs("drafts") and window.runs_later_blocks:
            queries = length
        queries += self.rule.revises * visible
        queries += config.refreshes * self.rule.refresh_rows
        return min(queries, length)

    def head_sizes(self, length: int) -> tuple[int, ...]:
        """Returns the numbers of positions that a head is compiled for, ascending."""
        most = self.max_queries(length)
        return doubling(max(1, self.config.block_length // 4), most)

    @property
    def max_block_steps(self) -> int:
        """The largest number of forwards that a block may take."""
        if self.rule.may_wait:
            return self.config.steps_per_block
        return self.rule.max_block_steps(self.config.block_length)

    def max_steps(self, n_blocks: int) -> int:
        """Returns the largest number of forwards that a canvas of `n_blocks` may take."""
        return n_blocks * self.max_block_steps + self.rule.end_steps
