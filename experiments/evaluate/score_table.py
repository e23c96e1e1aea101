"""Text tables of scores, one line for each decoder, made from result rows and counts."""

from collections.abc import Iterator, Mapping, Sequence

import jax

from experiments.evaluate.result_rows import REGIME
from experiments.harness.results import ResultRow, traces
from llada_jax.evaluation.comparison import MATCH, SPEED, STRICT, points, score_cells
from llada_jax.evaluation.tally import Tally
from llada_jax.evaluation.trajectory import PUBLISHED, UNITS
from llada_jax.sampler.config import SamplerConfig
from llada_jax.table import aligned


def thresholds_of(sampler: SamplerConfig) -> str:
    """Returns the numbers of the rule, `0.7, 0.9`; empty if it commits a fixed number of tokens."""
    return ", ".join(f"{number:.4g}" for number in jax.tree.leaves(sampler.rule))


def suite_tables(
    suite: str,
    decoders: Mapping[str, SamplerConfig],
    tasks: Sequence[str],
    results: Sequence[ResultRow],
    tallies: Mapping[str, Tally],
) -> str:
    """Returns the tables of a suite: each decoder over all tasks, compared with the first one; its
    exact and strict match on each task; decoding regimes if known.
    `tallies` count the answers of each decoder to all tasks."""
    rows = {row.name.removeprefix(f"{suite}/"): row for row in results}
    baseline = next(iter(decoders))
    against = f"points against {baseline} (95 %)"
    strictly = f"strict {against}"
    prefix = f"{baseline}/phone/"
    phones = [name.removeprefix(prefix) for name in rows if name.startswith(prefix)]
    over_all = [
        {
            "decoder": name,
            "thresholds": thresholds_of(sampler),
            **score_cells(tallies[name]),
            against: _points(rows.get(f"{name}/against/{baseline}/difference")),
            strictly: _points(rows.get(f"{name}/against/{baseline}/strict/difference")),
            **{soc: f"{rows[f'{name}/phone/{soc}'].value:.2f} s" for soc in phones},
        }
        for name, sampler in decoders.items()
    ]

    def shares(name: str, task: str) -> str:
        matches = (rows.get(f"{name}/{task}/{kind}") for kind in ("exact_match", "strict_match"))
        return " / ".join(f"{100 * match.value:.1f} %" for match in matches if match)

    by_task = [
        {"decoder": name} | {task: shares(name, task) for task in tasks} for name in decoders
    ]
    match = rows[f"{baseline}/exact_match"]
    parts = [
        f"{suite}: {match.items} items of {', '.join(tasks)}; {match.n} different questions",
        aligned(over_all, (MATCH, STRICT, *SPEED, against, strictly, *phones)),
    ]
    if len(tasks) > 1:
        counts = {task: rows[f"{baseline}/{task}/exact_match"].n for task in tasks}
        questions = ", ".join(f"{task} {n}" for task, n in counts.items())
        parts += [
            "",
            f"exact / strict match by task (questions: {questions})",
            aligned(by_task, tasks),
        ]
    parts += _regime_table(list(decoders), rows)
    return "\n".join([*parts, *traces(results)])


def _regime_table(decoders: Sequence[str], rows: Mapping[str, ResultRow]) -> Iterator[str]:
    """Yields a table of decoding regimes, with a line for LLaDA-8B, if any decoder has one."""
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
    title = "regime (docs/quality.md explains each column)"
    yield from ("", title, aligned(table, tuple(UNITS)))


def _points(row: ResultRow | None) -> str:
    """Formats a difference with its interval in points; empty for None."""
    return "" if row is None else points(row.value, row.interval or (), "+.1f")
