"""The rule of LLaDA's own sampler (arXiv 2502.09992): a fixed number of tokens in each step."""

from llada_jax.sampler.rules.rule import Decision, Observation, Rule, RuleState, ranks, rule


@rule(name="quota")
class Quota(Rule):
    """Commits as many tokens as the linear schedule of `steps` gives the step, best first."""

    may_wait = True  # the schedule may give a step nothing to do

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        return Decision(commit=ranks(seen.priority, seen.masked) < seen.quota[:, None]), state
