"""Scores as text, from result rows alone: a line for each way of decoding."""

from collections.abc import Iterator, Mapping, Sequence

import jax

from experiments.evaluate.result_rows import (
    BROUGHT_BACK,
    EQUAL_FORWARDS,
    EQUAL_ROWS,
    REGIME,
    comparison_rows,
    tally_rows,
)
from experiments.harness.results import ResultRow, aligned, traces
from llada_jax.config import SamplerConfig
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.regime import PUBLISHED, UNITS

MATCH = "exact match (95 %)"
SPEED = {
    "forwards": ("nfe", ".2f"),
    "forwards/block": ("nfe_per_block", ".2f"),
    "row-forwards": ("row_forwards", ".0f"),
    "tokens/forward": ("tpf", ".2f"),
}
"""Columns, and what they show of which result rows."""
DIFFERENCE, P_VALUE = "points of difference (95 %)", "McNemar p"
NUMBERS = (MATCH, *SPEED)
"""Columns of numbers, which are aligned to the right."""


def score_cells(rows: Mapping[str, ResultRow], name: str) -> dict[str, str]:
    """Gives the cells of one way of decoding.

    Args:
      rows: by name, among them `<name>/exact_match` and those of `SPEED`; a cell is empty without.
    """
    match = rows[f"{name}/exact_match"]
    return {
        MATCH: f"{100 * match.value:.1f} % ({_interval(match, '.1f')})",
        **{
            column: f"{row.value:{form}}" if (row := rows.get(f"{name}/{what}")) else ""
            for column, (what, form) in SPEED.items()
        },
    }


def difference_cells(rows: Sequence[ResultRow]) -> dict[str, str]:
    """Gives the cells of a difference to a baseline; none without rows."""
    found = {row.name.rpartition("/")[2]: row for row in rows}
    if not found:
        return {}
    return {DIFFERENCE: _points(found["difference"]), P_VALUE: f"{found['p_value'].value:.2g}"}


def side_by_side(found: Mapping[str, Evaluation]) -> list[dict[str, str]]:
    """Gives a line for each way of decoding, with its difference to the first on the same items."""
    first = next(iter(found.values()))
    return [
        {
            "": name,
            **score_cells({row.name: row for row in tally_rows(name, each.tally)}, name),
            **difference_cells(comparison_rows(first, each)),
        }
        for name, each in found.items()
    ]


def thresholds_of(sampler: SamplerConfig) -> str:
    """Returns what it compares confidence with: `0.7, 0.9`; nothing where it commits by number."""
    return ", ".join(f"{number:.4g}" for number in jax.tree.leaves(sampler.rule))


def suite_tables(
    suite: str,
    decoders: Mapping[str, SamplerConfig],
    tasks: Sequence[str],
    results: Sequence[ResultRow],
) -> str:
    """Writes a line for each decoder over all tasks; then its exact match on each task.

    Args:
      decoders: by name; the first one is what the others are compared with.
      results: rows of the suite, whose names begin with its own.
    """
    rows = {row.name: row for row in results}
    baseline = next(iter(decoders))
    against = f"points against {baseline} (95 %)"
    here = f"{suite}/{baseline}/phone/"
    phones = [name.removeprefix(here) for name in rows if name.startswith(here)]
    over_all = [
        {
            "decoder": name,
            "thresholds": thresholds_of(sampler),
            **score_cells(rows, f"{suite}/{name}"),
            against: _points(rows.get(f"{suite}/{name}/against/{baseline}/difference")),
            **{soc: f"{rows[f'{suite}/{name}/phone/{soc}'].value:.2f} s" for soc in phones},
        }
        for name, sampler in decoders.items()
    ]

    def share(name: str, task: str) -> str:
        return f"{100 * rows[f'{suite}/{name}/{task}/exact_match'].value:.1f} %"

    by_task = [{"decoder": name} | {task: share(name, task) for task in tasks} for name in decoders]
    match = rows[f"{suite}/{baseline}/exact_match"]
    parts = [
        f"{suite}: {match.items} items of {', '.join(tasks)}; {match.n} different questions",
        aligned(over_all, (*NUMBERS, against, *phones)),
    ]
    if len(tasks) > 1:
        found = {task: rows[f"{suite}/{baseline}/{task}/exact_match"].n for task in tasks}
        questions = ", ".join(f"{task} {n}" for task, n in found.items())
        parts += ["", f"exact match by task (questions: {questions})", aligned(by_task, tasks)]
    parts += _equal_quality_table(suite, list(decoders), rows)
    parts += _regime_table(suite, list(decoders), rows)
    return "\n".join([*parts, *traces(results)])


def _equal_quality_table(
    suite: str, decoders: Sequence[str], rows: Mapping[str, ResultRow]
) -> Iterator[str]:
    """Yields a line for each decoder that is beside thresholds; nothing without."""
    columns = {
        "row-forwards (95 %)": EQUAL_ROWS,
        "forwards (95 %)": EQUAL_FORWARDS,
        "brought back (95 %)": BROUGHT_BACK,
    }
    lines = [
        {
            "decoder": name,
            **{
                column: f"{100 * row.value:.0f} % ({_interval(row, '.0f')})" if row else ""
                for column, what in columns.items()
                for row in [rows.get(f"{suite}/{name}/{what}")]
            },
        }
        for name in decoders
        if f"{suite}/{name}/{EQUAL_ROWS}" in rows
    ]
    if lines:
        yield from (
            "",
            "of what a threshold of equal quality costs, and of what the first one loses",
        )
        yield aligned(lines, tuple(columns))


def _regime_table(
    suite: str, decoders: Sequence[str], rows: Mapping[str, ResultRow]
) -> Iterator[str]:
    """Yields the regime card: a line for each decoder, and one for LLaDA-8B; nothing without."""
    own = {d: {what: rows.get(f"{suite}/{d}/{REGIME}/{what}") for what in UNITS} for d in decoders}
    if not any(any(card.values()) for card in own.values()):
        return
    lines = {d: {k: f"{r.value:.2f}" if r else "" for k, r in c.items()} for d, c in own.items()}
    paper = {what: f"{PUBLISHED[what][0]:.2f}" if what in PUBLISHED else "" for what in UNITS}
    yield from ("", "regime (docs/quality.md says what each column is)")
    table = [{"decoder": name, **card} for name, card in {**lines, "LLaDA-8B": paper}.items()]
    yield aligned(table, tuple(UNITS))


def _points(row: ResultRow | None) -> str:
    """Writes a difference in points."""
    return "" if row is None else f"{100 * row.value:+.1f} ({_interval(row, '+.1f')})"


def _interval(row: ResultRow, form: str) -> str:
    return " to ".join(f"{100 * bound:{form}}" for bound in row.interval or ())
