"""The paper's tables and figures from the device model: one report, with pictures and errors.

    python -m experiments.reproduce                      # everything
    python -m experiments.reproduce experiment=table6    # one table or figure of conf/experiment
    python -m experiments.reproduce experiment=fig11 hydra.run.dir=outputs/fig11

The run folder gets `report.md` with its pictures, and `results.json`. Values are modelled; `fitted`
says of each whether its reference went into the calibration, which `llada_jax.phone.fit` is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.reproduce.chapter import SOCS, TEXTS, Chapter
from experiments.reproduce.chapter_pictures import draw
from experiments.reproduce.chapters import CHAPTERS
from llada_jax.config import require
from llada_jax.phone.graphs import graphs_of, unknown_so_far
from llada_jax.phone.published_tasks import PublishedTasks


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """What to reproduce. The comments are in conf/reproduce.yaml."""

    chapters: tuple[str, ...]
    runs: int = 24
    pictures: bool = True

    def __post_init__(self) -> None:
        require(bool(self.chapters), "chapters is empty; allowed: at least one")
        for name in self.chapters:
            require(name in CHAPTERS, f"chapter is {name!r}; allowed: {', '.join(CHAPTERS)}")
        require(self.runs > 0, f"runs is {self.runs}; allowed: 1 or more")


def reproduce(config: ReproduceConfig, run: Run) -> None:
    """Computes the chapters, writes the report."""
    world = PublishedTasks(graphs_of("llada_8b"), config.runs)
    run.begin()
    chapters = [CHAPTERS[name](world) for name in config.chapters]
    names = {}
    if config.pictures:
        names = {chapter.name: draw(chapter, run.folder) for chapter in chapters}
    run.write("report.md", report(chapters, names, unknown_so_far()))
    run.finish(run.recorded(row for chapter in chapters for row in chapter.rows))
    print(f"\nreport: {run.folder / 'report.md'}")


def report(
    chapters: Sequence[Chapter], pictures: Mapping[str, str | None], unknown: Sequence[object] = ()
) -> str:
    """Returns Markdown: a summary, warnings, then a section for each table or figure."""
    lines = [
        *TEXTS["about"].splitlines(),
        "",
        *_summary(chapters),
        "",
        *TEXTS["about_choices"].splitlines(),
        "",
        *(f"- {choice}" for choice in TEXTS["choices"]),
    ]
    if unknown:
        lines += ["", "**Warning: operations that the cost model does not know.**", ""]
        lines += [f"- {operation}" for operation in unknown]
    for chapter in chapters:
        lines += ["", f"## {chapter.title}", ""]
        if picture := pictures.get(chapter.name):
            lines += [f"![{chapter.title}]({picture})", ""]
        lines += [*_table(chapter.rows), "", *(f"- {words}" for words in chapter.words)]
    return "\n".join(lines) + "\n"


def _summary(chapters: Sequence[Chapter]) -> list[str]:
    lines = [
        "| | predictions | within 15 % | within 20 % | median error |",
        "|---|---|---|---|---|",
    ]
    for title, rows in _groups(chapters):
        errors = sorted(abs(row.error) for row in rows if row.error is not None and not row.fitted)
        if errors:
            within = [sum(error <= bound for error in errors) for bound in (0.15, 0.20)]
            cells = (title, len(errors), *within, f"{median(errors):.0%}")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _groups(chapters: Sequence[Chapter]) -> Iterator[tuple[str, list[ResultRow]]]:
    """Chapters by title; Figure 11 by phone, since one phone alone was calibrated."""
    for chapter in chapters:
        if chapter.name != "fig11":
            yield chapter.title, chapter.rows
            continue
        for soc in SOCS:
            rows = [row for row in chapter.rows if row.name.startswith(f"fig11/{soc}/")]
            yield f"{chapter.title.split(':')[0]}, {soc}", rows


def _table(rows: Sequence[ResultRow]) -> list[str]:
    lines = [
        "| name | modelled | mean's interval | unit | published | error | fitted | trace |",
        "|---|--:|---|---|--:|--:|---|---|",
    ]
    for row in rows:
        published = "" if row.reference is None else _shown(row.reference)
        error = "" if row.error is None else f"{row.error:+.1%}"
        fitted = "yes" if row.fitted else "no"
        interval = " to ".join(map(_shown, row.interval or ()))
        cells = (row.name, _shown(row.value), interval, row.unit, published, error, fitted)
        lines.append(f"| {' | '.join((*cells, row.trace_source or ''))} |")
    return lines


def _shown(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


main = entry_point("reproduce", reproduce, ReproduceConfig)
