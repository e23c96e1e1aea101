"""Writes one Markdown page with tables and figures from any set of runs.

    python -m experiments.report 'runs=[outputs/evaluate/sweep/*]' baseline=llada
    python -m experiments.report 'runs=[outputs/evaluate/of_a_suite/cells]' 'phones=[SM8750]'
    python -m experiments.report 'runs=[outputs/small,outputs/reliability/a]' hydra.run.dir=docs/x

Runs of `experiments.evaluate` are graded again from their stored answers. Each task gets a table
(with `phones`, also the modelled time of an answer there, from the stored traces), the paired
difference of each decoder to the baseline of the same model on the same items, a bar chart, and a
curve for each method that was run with several settings. Runs of other verbs are shown by their
`results.json`, side by side if they are of one verb, and trainings also by their loss. A suite is
shown by its table; to compare its decoders, give its folder `cells`.

The run folder gets `report.md`, the figures as PNG and SVG, and the numbers in `results.json`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.evaluate.result_rows import comparison_rows
from experiments.harness.pictures import (
    ScorePoint,
    ratio_dots,
    score_bars,
    score_curves,
    training_curve,
)
from experiments.harness.results import ResultRow, number
from experiments.harness.run import CONFIG, RESULTS, Run, entry_point, stored_settings
from experiments.report.labels import Label, labels, settings_apart, shared_settings
from experiments.report.markdown import PAGE, MarkdownPage
from experiments.report.runs import (
    DecoderRun,
    baseline_of,
    environment_lines,
    is_evaluation,
    runs_in,
    stored_results,
    training_metrics,
)
from llada_jax.config import require
from llada_jax.evaluation.comparison import difference_cells
from llada_jax.phones.profile import load_profile
from llada_jax.table import escaped, markdown_table

Results = Mapping[Path, Sequence[Mapping[str, Any]]]
"""Rows of `results.json` by the folder of the run."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Settings of the verb; conf/report.yaml explains each."""

    title: str
    runs: tuple[str, ...]
    baseline: str | None
    phones: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.runs) > 0, "runs is empty; allowed: folders of runs, or patterns of them")
        for soc in self.phones:
            _ = load_profile(soc)

    @property
    def folders(self) -> list[Path]:
        """The folders of the runs without repetition; a sweep stands for its jobs."""
        folders: dict[Path, None] = {}
        for pattern in self.runs:
            runs = [run for match in sorted(glob(pattern)) for run in runs_in(Path(match))]
            require(bool(runs), f"runs has {pattern!r}, where no run is; allowed: folders of runs")
            folders.update(dict.fromkeys(runs))
        return list(folders)


def report(config: ReportConfig, run: Run) -> None:
    """Reads and compares all runs, then writes the page."""
    folders = config.folders
    tasks: dict[str, list[DecoderRun]] = {}
    for folder in filter(is_evaluation, folders):
        decoder = DecoderRun(folder, config.phones)
        tasks.setdefault(decoder.task, []).append(decoder)
    others = {folder: stored_results(folder) for folder in folders if not is_evaluation(folder)}
    names: dict[Path, Label] = {}
    for decoders in tasks.values():
        names |= labels({decoder.folder: decoder.settings for decoder in decoders})
    baselines = [
        decoder for decoders in tasks.values() for decoder in decoders
        if config.baseline in (decoder.sampler, names[decoder.folder].text)
    ]  # fmt: skip
    texts = ", ".join(sorted({label.text for label in names.values()}))
    require(
        config.baseline is None or len(baselines) > 0,
        f"baseline is {config.baseline!r}; allowed: {texts}",
    )
    page = MarkdownPage()
    page.add(f"# {config.title}")
    rows = [row for decoders in tasks.values()
            for row in _add_task(page, decoders, names, baselines)]  # fmt: skip
    for runs in _by_verb(others).values():
        _add_other_runs(page, runs)
    environments = [line for folder in folders for line in environment_lines(folder)]
    page.add("## Runs", markdown_table(environments))
    run.begin()
    page.write(run)
    run.finish(rows)


def _add_task(
    page: MarkdownPage,
    decoders: Sequence[DecoderRun],
    names: Mapping[Path, Label],
    baselines: Sequence[DecoderRun],
) -> Iterator[ResultRow]:
    """Adds the section of a task, and yields the report's result rows for it."""
    task = decoders[0].task
    bases = [baseline_of(decoder, baselines) for decoder in decoders]
    lines, bars = [], {}
    for decoder, base in zip(decoders, bases, strict=True):
        text = names[decoder.folder].text
        bars[text] = decoder.share
        against, differences = None, []
        if base and base is not decoder:
            against = decoder.found.compared_with(base.found).against
            differences = comparison_rows(base.found, decoder.found)
        lines.append({"decoder": text, **decoder.cells})
        if any(bases):
            lines[-1] |= difference_cells(against, "baseline" if base else "no baseline")
        for row in [*decoder.rows.values(), *differences]:
            name = row.name.removeprefix(decoder.found.name)  # two runs may have the same one
            yield replace(row, name=f"{task}/{text}{name}")
    shared = shared_settings([decoder.settings for decoder in decoders])
    page.add(f"## {escaped(task)}", f"All runs: {escaped(shared)}.", markdown_table(lines))
    page.add_picture(
        f"{task} scores", score_bars(task, bars), f"Exact match of each decoder on {task}"
    )
    curves: dict[str, dict[str, ScorePoint]] = defaultdict(dict)
    for decoder in sorted(decoders, key=lambda run: len(run.found.right)):
        # Of several runs with the same settings, the one with most questions is drawn.
        curves[names[decoder.folder].curve][str(decoder.settings.get("sampler"))] = decoder.share
    if any(len(points) > 1 for points in curves.values()):
        points = {name: list(shares.values()) for name, shares in curves.items()}
        page.add_picture(
            f"{task} parallelism",
            score_curves(task, points, "tokens per forward"),
            f"Exact match by tokens per forward on {task}",
        )


def _add_other_runs(page: MarkdownPage, runs: Results) -> None:
    """Adds the results of runs of one verb, side by side if there are several."""
    page.add(f"## {escaped(', '.join(folder.name for folder in runs))}")
    for folder in runs:
        if metrics := training_metrics(folder):
            figure = training_curve(folder.name, metrics)
            page.add_picture(f"{folder.name} training", figure, f"Loss of {folder.name} by step")
    if any(runs.values()):
        _add_results(page, runs)
    else:
        page.add("The run finished without result rows.")


def _by_verb(runs: Results) -> dict[Hashable, Results]:
    """Groups runs by the names of their settings, which differ from verb to verb."""
    groups: dict[Hashable, dict[Path, Sequence[Mapping[str, Any]]]] = {}
    for folder, rows in runs.items():
        groups.setdefault(frozenset(_settings(folder)) or folder, {})[folder] = rows
    return dict(groups)


def _add_results(page: MarkdownPage, runs: Results) -> None:
    """Adds a table with a column for each run, and a figure if any of them differs from the first
    run in a result."""
    names = settings_apart({folder: _settings(folder) for folder in runs})
    columns = {names[folder]: {row["name"]: row for row in rows} for folder, rows in runs.items()}
    results = {row["name"]: row for rows in runs.values() for row in rows}
    lines = [
        {
            "result": name,
            **{run: _cell(rows.get(name)) for run, rows in columns.items()},
            "unit": row["unit"],
            "kind": row["kind"],
            "reference": number(row.get("reference")),
            "source": row.get("source", ""),
        }
        for name, row in results.items()
    ]
    page.add(markdown_table(lines))
    first = next(iter(columns.values()))
    differing = [
        name for name in first if first[name]["value"] > 0
        and len({rows[name]["value"] for rows in columns.values() if name in rows}) > 1
    ][:24]  # fmt: skip
    if differing:
        # A dollar sign would begin a formula in matplotlib.
        values = {
            run: {n.replace("$", r"\$"): rows[n]["value"] for n in differing if n in rows}
            for run, rows in columns.items()
        }
        title = next(iter(runs)).parent.name
        page.add_picture(f"{title} side by side", ratio_dots(title, values), "Results of each run")


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / CONFIG
    return stored_settings(path) if path.is_file() else {}


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    interval = " to ".join(map(number, row.get("interval", ())))
    return number(row["value"]) + f" ({interval})" * bool(interval)


def sweep_page(folder: Path, jobs: Sequence[Path]) -> None:
    """Writes the report of a sweep's jobs into the sweep's folder. Does nothing for a single job,
    or if a job has no results, as workers that share one run have none."""
    if len(jobs) < 2 or not all((job / RESULTS).is_file() for job in jobs):
        return
    if find_spec("matplotlib") is None:
        print("\nno joint table and picture: the extra `plots` is not installed")
        return
    config = ReportConfig(title=escaped(folder.name), runs=tuple(map(str, jobs)), baseline=None)
    report(config, _SweepFolder(folder, OmegaConf.create()))


class _SweepFolder(Run):
    """The folder of a sweep, which has results but no settings and no environment."""

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def finish(self, results: Sequence[ResultRow], shown: str | None = None) -> None:
        """Writes `results.json`, and prints the page."""
        super().finish(results, (self.folder / PAGE).read_text(encoding="utf-8"))
        print(f"this page is {self.folder / PAGE}")


main = entry_point("report", report, ReportConfig)
