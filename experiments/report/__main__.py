"""One Markdown page with tables and pictures from any set of runs.

    python -m experiments.report 'runs=[outputs/evaluate/sweep/*]' baseline=llada
    python -m experiments.report 'runs=[outputs/evaluate/of_a_suite/cells]' 'phones=[SM8750]'
    python -m experiments.report 'runs=[outputs/small,outputs/reliability/a]' hydra.run.dir=docs/x

Runs of `experiments.evaluate` are judged again, and compared with each other: for each task a table
(with `phones`, what a question would take there, modelled, from the stored traces), paired
differences against the baseline of the same model on the same items, and, where a sampler was run
with several settings, its accuracy-parallelism curve. Of any other run the results are shown, those
of several runs of one verb side by side, and of a training the loss. A suite shows its table; its
`cells` are runs to compare. The page is `report.md` in the run folder, its pictures beside it, its
own numbers in `results.json`.
"""

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.evaluate.result_rows import comparison_rows
from experiments.evaluate.score_table import DIFFERENCE, P_VALUE, difference_cells
from experiments.harness.pictures import ScorePoint, ratios, score_curves, scores, training_curve
from experiments.harness.results import ResultRow, number
from experiments.harness.run import CONFIG, RESULTS, Run, entry_point, stored_settings
from experiments.report.labels import labels, settings_apart
from experiments.report.markdown import PAGE, MarkdownPage, escaped, markdown_table
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
from llada_jax.phones.profile import load_profile

Results = Mapping[Path, Sequence[Mapping[str, Any]]]
"""Of runs, by their folders."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What to show. The comments are in conf/report.yaml."""

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
        """Folders of runs, in the order given; of a sweep, those of its jobs."""
        found: dict[Path, None] = {}
        for pattern in self.runs:
            matches = [Path(match) for match in sorted(glob(pattern))]
            runs = [each for match in matches for each in runs_in(match)]
            require(bool(runs), f"runs has {pattern!r}, where no run is; allowed: folders of runs")
            found.update(dict.fromkeys(runs))
        return list(found)


def report(config: ReportConfig, run: Run) -> None:
    """Reads and compares all runs, then writes the page."""
    folders = config.folders
    decoders = [DecoderRun(each, config.phones) for each in folders if is_evaluation(each)]
    others = {folder: stored_results(folder) for folder in folders if not is_evaluation(folder)}
    samplers = {decoder.sampler for decoder in decoders}
    require(
        config.baseline is None or config.baseline in samplers,
        f"baseline is {config.baseline!r}; allowed: {', '.join(sorted(samplers))}",
    )
    page = MarkdownPage()
    page.add(f"# {config.title}")
    rows = list(_tasks(page, decoders, config.baseline))
    for runs in _by_verb(others).values():
        _other_runs(page, runs)
    environments = [line for folder in folders for line in environment_lines(folder)]
    page.add("## Runs", markdown_table(environments))
    run.begin()
    page.write(run)
    run.finish(rows)


def _tasks(
    page: MarkdownPage, decoders: Sequence[DecoderRun], baseline: str | None
) -> Iterator[ResultRow]:
    """Adds a section for each task; yields the report's own numbers."""
    for task in dict.fromkeys(decoder.task for decoder in decoders):
        here = [each for each in decoders if each.task == task]
        names = labels({each.folder: each.settings for each in here})
        bases = [baseline_of(each, here, baseline) for each in here]
        lines, families = [], defaultdict(list)
        for decoder, base in zip(here, bases, strict=True):
            text, family = names[decoder.folder]
            families[family].append(decoder)
            other = None if base is decoder else base
            differences = comparison_rows(other.found, decoder.found) if other else []
            lines.append({"decoder": text, **decoder.cells})
            if any(bases):
                shown = "baseline" if base else "no baseline"
                lines[-1] |= difference_cells(differences) or {DIFFERENCE: shown, P_VALUE: ""}
            for row in [*decoder.rows.values(), *differences]:  # by a name that no other has
                name = row.name.removeprefix(decoder.found.name)
                yield replace(row, name=f"{task}/{text}{name}")
        page.add(f"## {escaped(task)}", markdown_table(lines))
        page.add_picture(
            f"{task} scores",
            scores(task, {names[each.folder].text: each.share for each in here}),
            f"Exact match of each decoder on {task}",
        )
        curves = {family: _points(group) for family, group in families.items()}
        if any(len(points) > 1 for points in curves.values()):  # of one run with several settings
            page.add_picture(
                f"{task} parallelism",
                score_curves(task, curves, "tokens per forward"),
                f"Exact match by tokens per forward on {task}",
            )


def _points(decoders: Sequence[DecoderRun]) -> list[ScorePoint]:
    """Returns a point for each setting of the sampler: of several runs, that of most items."""
    points: dict[str, ScorePoint] = {}
    for decoder in sorted(decoders, key=lambda each: len(each.found.right)):
        points[json.dumps(decoder.settings.get("sampler", decoder.sampler))] = decoder.share
    return list(points.values())


def _other_runs(page: MarkdownPage, runs: Results) -> None:
    """Adds the results of runs of one verb, beside each other where there are several."""
    page.add(f"## {escaped(', '.join(folder.name for folder in runs))}")
    for folder in runs:
        if metrics := training_metrics(folder):
            drawn = training_curve(folder.name, metrics)
            page.add_picture(f"{folder.name} training", drawn, f"Loss of {folder.name} by step")
    if any(runs.values()):
        _add_results(page, runs)
    else:
        page.add("The run finished without numbers of its own.")


def _by_verb(runs: Results) -> dict[Hashable, Results]:
    """Groups runs by the names of their settings, which no two verbs share."""
    groups: dict[Hashable, dict[Path, Sequence[Mapping[str, Any]]]] = {}
    for folder, rows in runs.items():
        groups.setdefault(frozenset(_settings(folder)) or folder, {})[folder] = rows
    return dict(groups)


def _add_results(page: MarkdownPage, runs: Results) -> None:
    """Adds a table, in which each run has a column; and a picture where a result of the first run
    is not that of the others."""
    names = settings_apart({folder: _settings(folder) for folder in runs})
    found = {names[folder]: {row["name"]: row for row in rows} for folder, rows in runs.items()}
    known = {row["name"]: row for rows in runs.values() for row in rows}
    lines = [
        {
            "result": name,
            **{run: _cell(rows, name) for run, rows in found.items()},
            "unit": row["unit"],
            "kind": row["kind"],
            "reference": number(row.get("reference")),
            "source": row.get("source", ""),
        }
        for name, row in known.items()
    ]
    page.add(markdown_table(lines))
    first = next(iter(found.values()))
    values = {run: {n: row["value"] for n, row in rows.items()} for run, rows in found.items()}
    differing = [
        name for name in first if first[name]["value"] > 0
        and len({of_run[name] for of_run in values.values() if name in of_run}) > 1
    ][:24]  # fmt: skip
    if differing:
        drawn = {name: name.replace("$", r"\$") for name in differing}  # which would be formulas
        kept = {r: {drawn[n]: v[n] for n in differing if n in v} for r, v in values.items()}
        title = next(iter(runs)).parent.name
        page.add_picture(f"{title} side by side", ratios(title, kept), "Results of each run")


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / CONFIG
    return stored_settings(path) if path.is_file() else {}


def _cell(rows: Mapping[str, Mapping[str, Any]], name: str) -> str:
    interval = " to ".join(map(number, rows.get(name, {}).get("interval", ())))
    value = number(rows[name]["value"]) if name in rows else ""
    return f"{value} ({interval})" if interval else value


def sweep_page(folder: Path, jobs: Sequence[Path]) -> None:
    """Writes `report.md`, its pictures and their `results.json` into the folder of a sweep, whose
    jobs have folders of their own. Does nothing for a single job, and for workers that only decode.
    """
    if len(jobs) < 2 or not all((job / RESULTS).is_file() for job in jobs):
        return
    if find_spec("matplotlib") is None:
        print("\nno joint table and picture: the extra `plots` is not installed")
        return
    config = ReportConfig(title=escaped(folder.name), runs=tuple(map(str, jobs)), baseline=None)
    report(config, _SweepFolder(folder, OmegaConf.create()))


class _SweepFolder(Run):
    """The folder of a sweep, which is no run itself: it has no settings and no environment."""

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def finish(self, results: Sequence[ResultRow], shown: str | None = None) -> None:
        """Writes `results.json`, and prints the page."""
        super().finish(results, (self.folder / PAGE).read_text(encoding="utf-8"))
        print(f"this page is {self.folder / PAGE}")


main = entry_point("report", report, ReportConfig)
