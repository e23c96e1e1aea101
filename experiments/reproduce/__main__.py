"""Reproduces the paper's tables and figures from the device model, in one report with errors.

    python -m experiments.reproduce                      # everything
    python -m experiments.reproduce chapters=[table6]    # one table or figure
    python -m experiments.reproduce chapters=[fig11] hydra.run.dir=outputs/fig11

The run folder gets `report.md` and `results.json`. All values are modelled; `fitted` states for
each whether its reference was used by the fit, which is in tests/phones/fitting.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from experiments.harness.results import ResultRow, cells
from experiments.harness.run import Run, entry_point
from experiments.report.markdown import MarkdownPage
from experiments.reproduce.ablations import fig13a, fig13c, fig14, table6, table7
from experiments.reproduce.calibrated import commits, dynamics, table2
from experiments.reproduce.chapter import SOCS, TEXTS, Chapter, is_close
from experiments.reproduce.fig11 import fig11, fig12, in_typical_session
from experiments.reproduce.parts import genie, held_out, ledger3b, platform
from llada_jax.config import require
from llada_jax.phones.graphs import graphs_of, unknown_so_far
from llada_jax.phones.published_tasks import PublishedTasks
from llada_jax.table import markdown_table

CHAPTERS: Mapping[str, Callable[[PublishedTasks], Chapter]] = {
    chapter.__name__: chapter
    for chapter in (
        *(table2, dynamics, commits, table6, fig11, fig12, table7, fig13a, fig13c, fig14),
        *(genie, ledger3b, platform, held_out),
    )
}
FITTED = "SM8750"
"""The phone of most figures."""
HOT = "SM8650"
"""The phone whose sessions differ."""
OTHERS = "held out: other models"
IN_TYPICAL = ", in a typical session"
COLUMNS = {
    "name": "name", "modelled": "value", "mean's interval": "interval", "band": "band",
    "unit": "unit", "published": "reference", "error": "error",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """Settings of the verb; conf/reproduce.yaml explains each."""

    chapters: tuple[str, ...] = tuple(CHAPTERS)
    runs: int = 24

    def __post_init__(self) -> None:
        require(bool(self.chapters), "chapters is empty; allowed: at least one")
        for name in self.chapters:
            require(name in CHAPTERS, f"chapter is {name!r}; allowed: {', '.join(CHAPTERS)}")
        require(self.runs > 0, f"runs is {self.runs}; allowed: 1 or more")


def reproduce(config: ReproduceConfig, run: Run) -> None:
    """Computes the chapters, and writes the report."""
    world = PublishedTasks(graphs_of("llada_8b"), config.runs)
    run.begin()
    chapters = [CHAPTERS[name](world) for name in config.chapters]
    page(chapters, unknown_so_far()).write(run)
    rows = run.recorded(row for chapter in chapters for row in chapter.rows)
    run.finish([*rows, *counted(chapters).values()])
    print(f"\nreport: {run.folder / 'report.md'}")


def page(chapters: Sequence[Chapter], unknown: Sequence[object] = ()) -> MarkdownPage:
    """Returns the report: a summary, warnings, then a section for each table or figure."""
    report = MarkdownPage()
    report.add(TEXTS["about"], markdown_table(list(_summary(chapters))))
    report.add(TEXTS["about_choices"], _listed(TEXTS["choices"]))
    if unknown:
        report.add("**Warning: operations that the cost model does not know.**", _listed(unknown))
    for chapter in chapters:
        table = markdown_table([_line(row) for row in chapter.rows])
        report.add(f"## {chapter.title}", table, _listed(chapter.words))
    return report


def _listed(words: Sequence[object]) -> str:
    return "\n".join(f"- {text}" for text in words)


def _summary(chapters: Sequence[Chapter]) -> Iterator[Mapping[str, str]]:
    """Yields the errors of predictions by subject, and the share of references within bands."""
    for title, some in _groups(chapters).items():
        errors = [abs(row.error or 0.0) for row in some]
        banded = [row.is_in_band for row in some if row.band]
        yield {
            "": title,
            "predictions": str(len(errors)),
            "within 15 %": str(sum(map(is_close, some))),
            "within 20 %": str(sum(error <= 0.20 for error in errors)),
            "median error": f"{median(errors):.0%}" if errors else "",
            "bands that hold": f"{sum(banded)} of {len(banded)}" if banded else "",
            "median width": f"{_median_factor(some):.2f}" if banded else "",
        }


def counted(chapters: Sequence[Chapter]) -> dict[str, ResultRow]:
    """Returns the counts and median widths of the summary as rows, by their names."""
    counts: dict[str, list[bool]] = {}
    widths: dict[str, float] = {}
    for title, rows in _groups(chapters).items():
        counts[f"count/{title}/within_15"] = [*map(is_close, rows)]
        if banded := [result.is_in_band for result in rows if result.band]:
            counts[f"count/{title}/in_band"] = banded
            widths[f"width/{title}"] = _median_factor(rows)
    row = partial(ResultRow, unit="predictions", kind="repeated")
    of_bands = partial(ResultRow, unit="times", kind="repeated")
    return {
        **{name: row(name, sum(hits), n=len(hits)) for name, hits in counts.items()},
        **{name: of_bands(name, width) for name, width in widths.items()},
    }


def _median_factor(rows: Sequence[ResultRow]) -> float:
    """Returns the median factor from a value to either end of its band."""
    return median(row.band[1] / row.value for row in rows if row.band)


def _groups(chapters: Sequence[Chapter]) -> dict[str, list[ResultRow]]:
    """Returns predictions by subject; some have several subjects."""
    every = [row for chapter in chapters for row in chapter.rows]
    rows, typical = [row for row in every if row.is_predicted], in_typical_session(every)
    groups: dict[str, list[ResultRow]] = {}
    for row in rows:
        for title in _titles(row):
            groups.setdefault(title, []).append(row)
            if typical and title in ("Figure 11", f"Figure 11 on {HOT}, times", OTHERS):
                usual = typical.get(row.name, row)
                groups.setdefault(title + IN_TYPICAL, []).append(usual)
    return {**groups, "all": rows}


def _titles(row: ResultRow) -> Iterator[str]:
    what = _what(row)
    yield what
    if what in SOCS:
        yield "three phones"
    if what == FITTED or row.name.startswith(f"held_out/{FITTED}/"):
        yield f"{FITTED} with other models"
    if what in SOCS or what == OTHERS:
        yield "all phones with other models"
    if row.name.startswith("fig11/"):
        yield from ("Figure 11", f"Figure 11 on {what}")
        if row.unit == "s":
            yield f"Figure 11 on {what}, times"
        if "/64/" in row.name and what != FITTED:
            yield f"held out: 64 tokens on {what}"


def _what(row: ResultRow) -> str:
    """Returns the phone of a row; statistics of decoding have none."""
    of_decoding = row.name.startswith(("fig5", "fig8", "fig13a", "fig13b"))
    other = "how decoding goes" if of_decoding else FITTED
    named = next((soc for soc in SOCS if soc in row.name), other)
    apart = {"fig14": "watts and joules", "held_out": OTHERS}
    return apart.get(row.name.partition("/")[0], named)


def _line(row: ResultRow) -> Mapping[str, str]:
    texts = cells(row)
    line = {title: texts[field] for title, field in COLUMNS.items()}
    return {**line, "fitted": texts["fitted"] or row.kind, "trace": row.trace_source or ""}


main = entry_point("reproduce", reproduce, ReproduceConfig)
