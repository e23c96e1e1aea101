"""Path planning (P2, arXiv 2502.03540) as Open-dCoder decodes with it.

Each step scores every token of the block again, and a linear schedule says how many positions are
masks after it: the ones with the lowest confidence, whether they were masks or tokens before.
"""

from llada_jax.sampler.rules.rule import Decision, Observation, Rule, RuleState, ranks, rule


@rule(name="p2")
class PathPlanning(Rule):
    """Keeps the tokens of the highest confidence, as many as the schedule of `steps` allows.

    The confidence of a committed token is the probability of the best token at its position, which
    its own row predicts and which never replaces it.
    """

    may_wait = True  # a step may commit as many tokens as it masks again
    revises = True
    max_remasks = None
    rescore = "token"

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        n_masks = seen.masked.sum(axis=1) - seen.quota  # after this step
        candidates = seen.masked | seen.committed
        masks = candidates & (ranks(-seen.confidence, candidates) < n_masks[:, None])
        return Decision(commit=seen.masked & ~masks, remask=masks), state
