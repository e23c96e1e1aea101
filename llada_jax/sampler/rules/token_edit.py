"""The rule of LLaDA2.1 (arXiv 2602.08676): tokens of the block are edited until nothing changes."""

from jaxtyping import Array, Bool, Int

from llada_jax.config import SamplerConfig, require_choice, require_counts, require_numbers
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.canvas import Canvas
from llada_jax.sampler.rules.rule import Rescore, Rescored, RevisingRule


class TokenEdit(RevisingRule, accept="token_edit"):
    """Commits sure tokens, and replaces one by another that the model is sure of.

    Attributes:
      edit_unmask: `token_edit`: commit tokens whose confidence reaches it.
      edit_replace: `token_edit`: replace a committed token by another one whose confidence reaches
        it.
      edit_steps: `token_edit`: forwards that may follow the last mask of a block, while they change
        tokens.
    """

    edit_unmask: float = 0.7
    edit_replace: float = 0.5
    edit_steps: int = 16
    rescore: Rescore = "shadow"

    def __post_init__(self) -> None:
        require_numbers(self, "edit_unmask", "edit_replace", above=0, most=1)
        require_choice("rescore", self.rescore, Rescore)
        require_counts(self, "edit_steps", least=0)

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        return candidates.reach(self.edit_unmask)

    def revise(self, canvas: Canvas, rescored: Rescored) -> Canvas:
        other = rescored.other(canvas)
        replaced = rescored.at & other & (rescored.scores.confidence >= self.edit_replace)
        return rescored.changed(canvas, replaced)

    def block_steps(self, config: SamplerConfig) -> int:
        return config.block_length + self.edit_steps

    def quiet(self, steady: Int[Array, " B"], edited: Bool[Array, " B"]) -> Bool[Array, " B"]:
        """Ends a block after a forward without edits."""
        return ((steady > 1) & ~edited) | (steady > self.edit_steps)
