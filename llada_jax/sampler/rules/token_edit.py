"""The rule of LLaDA2.1 (arXiv 2602.08676): tokens of the block are edited until nothing changes."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.config import require_choice, require_counts, require_numbers
from llada_jax.sampler.rules.rule import Decision, Observation, Rescore, Rule, RuleState, rule


@rule(name="token_edit")
class TokenEdit(Rule):
    """Commits confident tokens, and replaces one by another that the model is confident of.

    Attributes:
      edit_unmask: `token_edit`: commit tokens whose confidence reaches it.
      edit_replace: `token_edit`: replace a committed token by another one whose confidence reaches
        it.
      edit_steps: `token_edit`: forwards that may follow the last mask of a block, while they change
        tokens.
    """

    needs = frozenset({"probability"})
    revises = True
    max_remasks = None

    edit_unmask: float = 0.7
    edit_replace: float = 0.5
    edit_steps: int = 16
    rescore: Rescore = "shadow"

    def __post_init__(self) -> None:
        require_numbers(self, "edit_unmask", "edit_replace", above=0, most=1)
        require_choice("rescore", self.rescore, Rescore)
        require_counts(self, "edit_steps", least=0)

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        return seen.reaches(self.edit_unmask)

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        differs = seen.rescored & (seen.predicted != seen.token)
        replace = differs & (seen.confidence >= self.edit_replace)
        decision = Decision(
            commit=seen.with_progress(self.accept(seen)),
            replace=replace,
            confidence=jnp.where(differs & ~replace, seen.probability, seen.confidence),
        )
        return decision, state
