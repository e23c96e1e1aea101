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
from llada_jax.evaluation.graded import Evaluation
from llada_jax.evaluation.trajectory import PUBLISHED, UNITS
from llada_jax.sampler.config import SamplerConfig

MATCH = "exact match (95 %)"
SPEED = {
    "forwards": ("nfe", ".2f"),
    "forwards/block": ("nfe_per_block", ".2f"),
    "row-forwards": ("row_forwards", ".0f"),
    "tokens/forward": ("tpf", ".2f"),
}
"""Columns, and what they show of which result rows."""
DIFFERENCE, P_VALUE = "points of difference (95 %)", "McNemar p"


def score_cells(rows: Mapping[str, ResultRow], name: str) -> dict[str, str]:
    """Gives the cells of one way of decoding, from rows by name, among them `<name>/exact_match`
    and those of `SPEED`; a cell is empty without."""
    return {
        MATCH: _points(rows[f"{name}/exact_match"], ".1f", " %"),
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
    return {
        DIFFERENCE: _points(found["difference"], "+.1f"),
        P_VALUE: f"{found['p_value'].value:.2g}",
    }


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
    """Writes a line for each decoder over all tasks; then its exact match on each task. The first
    decoder is what the others are compared with; names of rows begin with the suite's."""
    rows = {row.name.removeprefix(f"{suite}/"): row for row in results}
    baseline = next(iter(decoders))
    against = f"points against {baseline} (95 %)"
    here = f"{baseline}/phone/"
    phones = [name.removeprefix(here) for name in rows if name.startswith(here)]
    over_all = [
        {
            "decoder": name,
            "thresholds": thresholds_of(sampler),
            **score_cells(rows, name),
            against: _points(rows.get(f"{name}/against/{baseline}/difference"), "+.1f"),
            **{soc: f"{rows[f'{name}/phone/{soc}'].value:.2f} s" for soc in phones},
        }
        for name, sampler in decoders.items()
    ]

    def share(name: str, task: str) -> str:
        return f"{100 * rows[f'{name}/{task}/exact_match'].value:.1f} %"

    by_task = [{"decoder": name} | {task: share(name, task) for task in tasks} for name in decoders]
    match = rows[f"{baseline}/exact_match"]
    parts = [
        f"{suite}: {match.items} items of {', '.join(tasks)}; {match.n} different questions",
        aligned(over_all, (MATCH, *SPEED, against, *phones)),
    ]
    if len(tasks) > 1:
        found = {task: rows[f"{baseline}/{task}/exact_match"].n for task in tasks}
        questions = ", ".join(f"{task} {n}" for task, n in found.items())
        parts += ["", f"exact match by task (questions: {questions})", aligned(by_task, tasks)]
    parts += _equal_quality_table(list(decoders), rows)
    parts += _regime_table(list(decoders), rows)
    return "\n".join([*parts, *traces(results)])


def _equal_quality_table(decoders: Sequence[str], rows: Mapping[str, ResultRow]) -> Iterator[str]:
    """Yields a line for each decoder that is beside thresholds; nothing without."""
    columns = {
        "row-forwards (95 %)": EQUAL_ROWS,
        "forwards (95 %)": EQUAL_FORWARDS,
        "brought back (95 %)": BROUGHT_BACK,
    }
    lines = [
        {"decoder": name}
        | {
            column: _points(rows.get(f"{name}/{what}"), ".0f", " %")
            for column, what in columns.items()
        }
        for name in decoders
        if f"{name}/{EQUAL_ROWS}" in rows
    ]
    if lines:
        told = "of what a threshold of equal quality costs, and of what the first one loses"
        yield from ("", told, aligned(lines, tuple(columns)))


def _regime_table(decoders: Sequence[str], rows: Mapping[str, ResultRow]) -> Iterator[str]:
    """Yields the regime card: a line for each decoder, and one for LLaDA-8B; nothing without."""
    known = {
        (name, what): rows[row].value
        for name in decoders
        for what in UNITS
        if (row := f"{name}/{REGIME}/{what}") in rows
    }
    if not known:
        return
    known |= {("LLaDA-8B", what): value for what, (value, _) in PUBLISHED.items()}
    table = [
        {"decoder": name}
        | {w: f"{known[name, w]:.2f}" if (name, w) in known else "" for w in UNITS}
        for name in (*decoders, "LLaDA-8B")
    ]
    told = "regime (docs/quality.md says what each column is)"
    yield from ("", told, aligned(table, tuple(UNITS)))


def _points(row: ResultRow | None, form: str, unit: str = "") -> str:
    """Writes a share with its interval, in points; nothing without one."""
    if row is None:
        return ""
    interval = " to ".join(f"{100 * bound:{form}}" for bound in row.interval or ())
    return f"{100 * row.value:{form}}{unit} ({interval})"
