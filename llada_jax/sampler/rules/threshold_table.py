"""A threshold that depends on the position in the block and on the block's step.

`llada_jax.evaluation.risk` fits the table and calibrates the shift. As a flat name the rule is
`accept="llada_jax.sampler.rules.threshold_table:ThresholdTable"`.
"""

import jax.numpy as jnp

from llada_jax.config import require
from llada_jax.sampler.rules.rule import Decision, Observation, Rule, RuleState, rule


@rule
class ThresholdTable(Rule):
    """Commits tokens whose confidence p has log-odds, log(p / (1 - p)), above `shift` + offset.

    Attributes:
      shift: Log-odds of the threshold: 0 for 0.5, 2.2 for 0.9. Infinity commits one token per
        forward.
      offsets: An offset for each step of a block and position in it. Later steps use the last row.
        A single column is for all positions.
    """

    shift: float
    offsets: tuple[tuple[float, ...], ...] = ((0.0,),)

    def __post_init__(self) -> None:
        rows = tuple(map(tuple, self.offsets))  # a JSON file has lists
        object.__setattr__(self, "offsets", rows)
        widths = {len(row) for row in rows}
        require(
            len(widths) == 1 and 0 not in widths,
            f"offsets has rows of {sorted(widths)} columns; allowed: 1 or more rows of one length",
        )

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        table = jnp.asarray(self.offsets, jnp.float32)
        width, block = table.shape[1], seen.masked.shape[1]
        require(
            width in (1, block),
            f"offsets has {width} columns; allowed: 1, or block_length ({block})",
        )
        confidence = seen.confidence.astype(jnp.float32)
        odds = jnp.log(confidence) - jnp.log1p(-confidence)
        bounds = self.shift + table[jnp.minimum(seen.step, len(table) - 1)]
        # "above", so that an infinite shift also keeps a confidence that was rounded to 1
        return Decision(commit=seen.with_progress(seen.masked & (odds > bounds))), state
