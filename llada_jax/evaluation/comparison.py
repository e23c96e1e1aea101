"""Several decoders on the same items: a table of their scores, costs and differences.

Each decoder is compared with the first one question by question, which needs far fewer items than
comparing separate scores (`metrics.paired`).
"""

from collections.abc import Mapping, Sequence

from llada_jax.config import require
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.metrics import PairedComparison
from llada_jax.evaluation.tally import Tally
from llada_jax.table import Table

MATCH, STRICT = "exact match (95 %)", "strict match (95 %)"
SPEED = {
    "forwards": ("nfe", ".2f"),
    "forwards/block": ("forwards_per_block", ".2f"),
    "row-forwards": ("row_forwards", ".0f"),
    "tokens/forward": ("tpf", ".2f"),
}
"""Columns by name: the attribute of `Tally` and its number format."""
DIFFERENCE, P_VALUE = "points of difference (95 %)", "McNemar p"


class Comparison(Table):
    """Evaluations of several decoders on the same items, with a table that a notebook shows.

    Scores have Wilson's 95 % intervals. Differences are to the first decoder, in points of the
    questions, with Agresti and Min's 95 % interval and McNemar's exact p-value.

    Args:
      evaluations: One for each decoder, by the name that the table shows. They may be of different
        models. `Evaluation.load` reads those of stored runs.

    Attributes:
      evaluations: The same by name, each with its comparison to the first in `against`.
      rows: The table: the cells of each decoder by column, as text.

    Raises ValueError if there are none, and if another one's items differ from the first one's.
    """

    def __init__(self, evaluations: Mapping[str, Evaluation]) -> None:
        require(len(evaluations) > 0, "evaluations is empty; allowed: one or more")
        baseline = next(iter(evaluations.values()))
        self.evaluations = {
            name: evaluation.compared_with(baseline) for name, evaluation in evaluations.items()
        }
        rows = [
            {"": name, **score_cells(evaluation.tally), **difference_cells(evaluation.against)}
            for name, evaluation in self.evaluations.items()
        ]
        rows[0] |= difference_cells(None)  # a difference to itself says nothing
        super().__init__(rows)


def score_cells(tally: Tally) -> dict[str, str]:
    """Returns the cells of one decoder: unknown costs are empty, unknown strict match left out."""
    cells = {MATCH: points(tally.exact_match, tally.interval, ".1f", " %")}
    if tally.strict_match is not None:
        cells[STRICT] = points(tally.strict_match, tally.strict_interval, ".1f", " %")
    for column, (name, form) in SPEED.items():
        cost = getattr(tally, name)
        cells[column] = "" if cost is None else f"{cost:{form}}"
    return cells


def difference_cells(against: PairedComparison | None, otherwise: str = "") -> dict[str, str]:
    """Returns the cells of a difference to a baseline; for None, `otherwise` and an empty cell."""
    if against is None:
        return {DIFFERENCE: otherwise, P_VALUE: ""}
    return {
        DIFFERENCE: points(against.difference, against.interval, "+.1f"),
        P_VALUE: f"{against.p_value:.2g}",
    }


def points(value: float, interval: Sequence[float], form: str, unit: str = "") -> str:
    """Formats a share with its interval in points."""
    bounds = " to ".join(f"{100 * bound:{form}}" for bound in interval)
    return f"{100 * value:{form}}{unit} ({bounds})"
