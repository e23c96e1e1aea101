"""The rule of LLaDA's own sampler (arXiv 2502.09992): a fixed number of tokens in each step."""

from jaxtyping import Array, Bool

from llada_jax.config import SamplerConfig
from llada_jax.sampler.candidates import Candidates, ranks
from llada_jax.sampler.rules.rule import Rule, scheduled


class Quota(Rule, accept="quota"):
    """Commits as many tokens as the linear schedule of `steps` says, best first."""

    forces_progress = False  # the schedule may give a step nothing to do
    no_drafts = "accepts no draft"

    def label(self, config: SamplerConfig) -> str:
        return f"{config.steps} steps"

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        rank = ranks(candidates.priority, candidates.open)
        return candidates.open & (rank < candidates.quota[:, None])

    def most_due(self, config: SamplerConfig) -> int:
        return scheduled(config)

    def block_steps(self, config: SamplerConfig) -> int:
        return config.steps_per_block
