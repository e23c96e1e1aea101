"""The set-up of a run: the shape of a model and a sampler's settings, as one value."""

from dataclasses import dataclass, field
from typing import Literal

import jax

from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.constraint.reach import Grammar
from llada_jax.sampler.rules.own import OwnRule
from llada_jax.sampler.rules.rule import Rule
from llada_jax.sampler.windows.window import Window, doubling

KeptScores = Literal[False, "scores", "margins"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Setup:
    """A model's shape, which is static, and settings whose numbers are leaves."""

    model: ModelConfig = field(metadata={"static": True})
    config: SamplerConfig
    measures: bool = field(default=False, metadata={"static": True})
    """Whether the backend's head measures what is asked beside the scores."""
    keeps_scores: KeptScores = field(default=False, metadata={"static": True})
    """Whether the record of a step has every score of its forward, or its margins as well."""
    grammar: Grammar | None = None  # the texts that are allowed; None: all

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
        """How many positions before a token its prediction stands."""
        return int(self.model.shift_logits)

    @property
    def whole_block(self) -> int | None:
        """The model's block, where a window runs every row of it; drafts reach into a part."""
        return None if self.window.drafts else self.model.block_length

    @property
    def seeds(self) -> bool:
        """Whether the first token of a block is committed before the rest of it is run."""
        if self.model.causal == "finished":
            return True
        blocks = self.shift > 0 and self.whole_block is not None
        return blocks and self.window.leaves_tokens and self.rule.forces_progress

    @property
    def own_rule(self) -> OwnRule | None:
        """The rule where it is a user's own."""
        return self.rule if isinstance(self.rule, OwnRule) else None

    def needs(self, *names: str) -> bool:
        """Returns whether a rule of one's own needs any of these."""
        return self.own_rule is not None and not self.own_rule.needs.isdisjoint(names)

    @property
    def doubts(self) -> bool:
        """Whether committed tokens are scored again, by a rule of the package."""
        return self.rule.revises and self.own_rule is None

    @property
    def shadows(self) -> bool:
        """Whether visible tokens of the window are scored by rows of their own."""
        return self.rule.revises and self.rule.rescore == "shadow"

    @property
    def may_differ(self) -> bool:
        """Whether a rule may decide otherwise than to commit what it is shown as predicted."""
        return self.rule.revises or self.own_rule is not None

    def most_extra_rows(self, length: int) -> int:
        """Returns the most rows that stand beside the window, in a canvas of `length`."""
        config, by_rows = self.config, self.config.refreshes and not self.config.has_worker
        refreshed = by_rows * 2 * self.rule.refresh_rows
        return self.shadows * self.window.most_rows(config, length) + refreshed

    def most_asked(self, length: int) -> int:
        """Returns the most positions that one step scores."""
        config, window = self.config, self.window
        most_rows = window.most_rows(config, length)
        asked = most_rows if window.drafts else config.block_length
        if self.needs("drafts") and window.chosen_by["cache"] in ("none", "prefix"):
            asked = length  # of these windows, later blocks are a part
        asked += self.rule.revises * most_rows
        asked += config.refreshes * self.rule.refresh_rows
        return min(asked, length)

    def head_sizes(self, length: int) -> tuple[int, ...]:
        """Returns how many positions a forward's head may score, ascending; the last holds all."""
        most = self.most_asked(length)
        if not self.config.selective_logits:
            return (most,)
        return doubling(max(1, self.config.block_length // 4), most)

    def most_steps(self, n_blocks: int) -> int:
        """Returns how many forwards a canvas of so many blocks may take."""
        return n_blocks * self.rule.block_steps(self.config) + self.rule.end_steps
