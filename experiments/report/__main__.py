"""One Markdown page with tables and pictures from any set of runs.

    python -m experiments.report 'runs=[outputs/evaluate/sweep/*]' baseline=llada
    python -m experiments.report 'runs=[outputs/evaluate/of_a_suite/cells]' baseline=llada
    python -m experiments.report 'runs=[outputs/small,outputs/reliability/a]' hydra.run.dir=docs/x

Runs of `experiments.evaluate` are compared with each other: for each task a table, paired
differences against the baseline of the same model on the same items, and, where a sampler was run
with several settings, its accuracy-parallelism curve and the area under it. Of any other run the
results are shown, and of a training the loss. A suite shows its table; its `cells` are runs to
compare. The page is `report.md` in the run folder, its pictures beside it, its own numbers in
`results.json`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

from experiments.evaluate.result_rows import comparison_rows, score_rows
from experiments.harness.pictures import Share, parallelism_curves, save, scores, training_curve
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.report.environments import environment_file, environment_lines
from experiments.report.labels import labels
from llada_jax.config import require
from llada_jax.evaluation.graded import GENERATIONS, Evaluation
from llada_jax.evaluation.metrics import Point, area_under_parallelism
from llada_jax.evaluation.stored import (
    parsed,
    parsed_object,
    require_object,
    stored_text,
)

Table = Sequence[Mapping[str, str]]
_RESULT = {"name": str, "value": (int, float), "unit": str, "kind": str}
_WEIGHTS = ("model", "fingerprint", "dtype")  # a baseline's are those of what it is compared with
_SURROUNDINGS = ("backend", "tiles", "seed")  # those too, where the baseline was run with several


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What to show. The comments are in conf/report.yaml."""

    title: str
    runs: tuple[str, ...]
    baseline: str | None

    def __post_init__(self) -> None:
        require(len(self.runs) > 0, "runs is empty; allowed: folders of runs, or patterns of them")

    @property
    def folders(self) -> list[Path]:
        """Folders of runs, in the order given; of a sweep, those of its jobs."""
        found: dict[Path, None] = {}
        for pattern in self.runs:
            matches = [Path(match) for match in sorted(glob(pattern))]
            runs = [each for match in matches for each in _runs_in(match)]
            require(bool(runs), f"runs has {pattern!r}, where no run is; allowed: folders of runs")
            found.update(dict.fromkeys(runs))
        return list(found)


class Decoder:
    """One run of `experiments.evaluate`, with the numbers that the tables show."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = Evaluation.load(folder)
        self.rows = {row.name.rpartition("/")[2]: row for row in score_rows(self.found)}

    @property
    def task(self) -> str:
        task = self.settings["task"]
        parts = [f"{key} {task[key]}" for key in ("version", "difficulty", "seed")]
        return ", ".join([task["name"], *parts])

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.found.settings

    @property
    def sampler(self) -> str:
        return self.settings["sampler_name"]

    @property
    def share(self) -> Share:
        row = self.rows["exact_match"]
        assert row.interval is not None
        return Share(self.rows["tpf"].value, row.value, *row.interval)


class Page:
    """Markdown that grows, with pictures beside it; nothing is written before all is there."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._pictures: dict[str, Any] = {}

    def add(self, *paragraphs: str) -> None:
        self._parts += paragraphs

    def add_table(self, rows: Table) -> None:
        self.add(markdown_table(rows))

    def add_picture(self, name: str, drawn: Any, alt: str) -> None:
        """A picture under a file name made of `name`."""
        file = "".join(c if c.isalnum() else "-" for c in name.lower()) + ".png"
        self._pictures[file] = drawn
        self.add(f"![{alt}]({file})")

    def write(self, run: Run) -> None:
        for file, drawn in self._pictures.items():
            save(drawn, run.folder / file)
        run.write("report.md", "\n\n".join(self._parts) + "\n")


def report(config: ReportConfig, run: Run) -> None:
    """Reads and compares all runs, then writes the page."""
    folders = config.folders
    decoders = [Decoder(folder) for folder in folders if (folder / GENERATIONS).is_dir()]
    others = [(folder, _results(folder)) for folder in folders if not _is_evaluation(folder)]
    samplers = {decoder.sampler for decoder in decoders}
    require(
        config.baseline is None or config.baseline in samplers,
        f"baseline is {config.baseline!r}; allowed: {', '.join(sorted(samplers))}",
    )
    page = Page()
    page.add(f"# {config.title}")
    rows = list(_tasks(page, decoders, config.baseline))
    for folder, results in others:
        _other_run(page, folder, results)
    page.add("## Runs")
    page.add_table([line for folder in folders for line in environment_lines(folder)])
    run.begin()
    page.write(run)
    run.finish(rows)


def markdown_table(rows: Table) -> str:
    """A table with the columns of its first row."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row[name] for name in columns] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip


def _tasks(page: Page, decoders: Sequence[Decoder], baseline: str | None) -> Iterator[ResultRow]:
    """A section for each task; yields the report's own numbers."""
    for task in dict.fromkeys(decoder.task for decoder in decoders):
        here = {each.folder: each for each in decoders if each.task == task}
        names = labels({folder: each.settings for folder, each in here.items()})
        bases = {
            folder: baseline_of(each, list(here.values()), baseline)
            for folder, each in here.items()
        }
        page.add(f"## {task}")
        lines = [_decoder_line(names[folder].text, each) for folder, each in here.items()]
        if any(bases.values()):
            cells = [_difference_cells(each, bases[folder]) for folder, each in here.items()]
            lines = [line | more for line, more in zip(lines, cells, strict=True)]
        page.add_table(lines)
        page.add_picture(
            f"{task} scores",
            scores(task, {names[folder].text: each.share for folder, each in here.items()}),
            f"Exact match of each decoder on {task}",
        )
        for folder, decoder in here.items():
            rows, base = list(decoder.rows.values()), bases[folder]
            if base is not None and decoder is not base:
                rows += comparison_rows(base.found, decoder.found)
            yield from (_renamed(row, decoder, f"{task}/{names[folder].text}") for row in rows)
        families: dict[str, list[Decoder]] = {}
        for folder, decoder in here.items():
            families.setdefault(names[folder].family, []).append(decoder)
        yield from _curves(page, task, families)


def baseline_of(
    decoder: Decoder, decoders: Sequence[Decoder], sampler: str | None
) -> Decoder | None:
    """The run of a sampler that a decoder of the same task is compared with.

    It has the same weights; of several such runs, the one that agrees in backend, tiles and seed
    as far as one does. None where the model was not run with the sampler.

    Raises:
      ValueError: it could be any of several.
    """
    found = [each for each in decoders if each.sampler == sampler]
    for setting in _WEIGHTS:
        found = _agreeing(found, decoder, setting)
    for setting in _SURROUNDINGS:
        found = _agreeing(found, decoder, setting) or found
    require(
        len(found) <= 1,
        f"baseline {sampler!r} of {decoder.folder} could be any of "
        f"{', '.join(str(each.folder) for each in found)}; allowed: one run of it for each task, "
        "model, dtype, backend, tiles and seed",
    )
    return found[0] if found else None


def _agreeing(decoders: Sequence[Decoder], decoder: Decoder, setting: str) -> list[Decoder]:
    """Those with which a decoder has a setting in common."""
    value = decoder.settings.get(setting)
    return [each for each in decoders if each.settings.get(setting) == value]


def _renamed(row: ResultRow, decoder: Decoder, name: str) -> ResultRow:
    """The row of a decoder under a name that no other of the page has."""
    return replace(row, name=name + row.name.removeprefix(decoder.found.name))


def _decoder_line(name: str, decoder: Decoder) -> dict[str, str]:
    match, speed = decoder.rows["exact_match"], list(decoder.rows.values())[-1]
    low, high = match.interval or (0, 0)
    return {
        "decoder": name,
        "items": str(match.items),
        "questions": str(match.n),
        "exact match (95 %)": f"{match.value:.1%} ({low:.1%} to {high:.1%})",
        "forwards": f"{decoder.rows['nfe'].value:.1f}",
        "tokens per forward": f"{decoder.rows['tpf'].value:.2f}",
        "tokens/s": f"{speed.value:.0f}"
        + ("" if speed.name.endswith("second") else " (compiling)"),
    }


def _difference_cells(decoder: Decoder, base: Decoder | None) -> dict[str, str]:
    if base is None or decoder is base:
        shown = "baseline" if decoder is base else "no baseline"
        return {"difference (95 %)": shown, "McNemar p": ""}
    difference, *_, p_value = comparison_rows(base.found, decoder.found)
    low, high = (100 * bound for bound in difference.interval or (0, 0))
    shown = f"{100 * difference.value:+.1f} points ({low:+.1f} to {high:+.1f})"
    return {"difference (95 %)": shown, "McNemar p": f"{p_value.value:.2g}"}


def _curves(
    page: Page, task: str, decoders: Mapping[str, Sequence[Decoder]]
) -> Iterator[ResultRow]:
    """Curves of all families, where at least one was run with several settings, and their areas."""
    families = {family: _points(group) for family, group in decoders.items()}
    if all(len(points) == 1 for points in families.values()):
        return
    best = 100 * max(point.value for points in families.values() for point in points)
    areas = {
        family: area_under_parallelism([Point(p.parallelism, 100 * p.value) for p in points], best)
        for family, points in families.items()
    }
    page.add_picture(
        f"{task} parallelism",
        parallelism_curves(task, families),
        f"Exact match by tokens per forward on {task}",
    )
    page.add(
        "Area under the accuracy-parallelism curve (AUP, arXiv 2601.07568; settings more than 5 "
        "points below a decoder's slowest one do not count):"
    )
    page.add_table([{"decoder": name, "AUP": f"{area:.0f}"} for name, area in areas.items()])
    for family, area in areas.items():
        yield ResultRow(name=f"{task}/{family}/aup", value=area, unit="percent x tokens/forward")


def _points(decoders: Sequence[Decoder]) -> list[Share]:
    """A point for each setting of the sampler: of several runs of one, the run of most items."""
    points: dict[str, Share] = {}
    for decoder in sorted(decoders, key=lambda each: len(each.found.right)):
        points[json.dumps(decoder.settings.get("sampler", decoder.sampler))] = decoder.share
    return list(points.values())


def _other_run(page: Page, folder: Path, results: Sequence[Mapping[str, Any]]) -> None:
    page.add(f"## {folder.name}")
    metrics = _training_metrics(folder)
    if metrics:
        drawn = training_curve(folder.name, metrics)
        page.add_picture(f"{folder.name} training", drawn, f"Loss of {folder.name} by step")
    if results:
        page.add_table([_result_line(row) for row in results])
    else:
        page.add("The run finished without numbers of its own.")


def _training_metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    lines = stored_text(path).splitlines() if path.is_file() else []
    rows = [parsed_object(line, path, {}) for line in lines]
    return [row for row in rows if {"step", "loss", "accuracy"} <= row.keys()]


def _result_line(row: Mapping[str, Any]) -> dict[str, str]:
    interval = row.get("interval")
    return {
        "result": row["name"],
        "value": f"{row['value']:.4g} {row['unit']}",
        "95 %": f"{interval[0]:.4g} to {interval[1]:.4g}" if interval else "",
        "kind": row["kind"],
        "reference": f"{row['reference']:.4g} ({row['source']})" if "reference" in row else "",
    }


def _runs_in(folder: Path) -> list[Path]:
    if _is_run(folder):
        return [folder]
    jobs = [each for each in folder.iterdir() if _is_run(each)] if folder.is_dir() else []
    return sorted(jobs, key=lambda job: (len(job.name), job.name))


def _is_run(folder: Path) -> bool:
    return environment_file(folder).is_file()


def _is_evaluation(folder: Path) -> bool:
    return (folder / GENERATIONS).is_dir()


def _results(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.json"
    require(path.is_file(), f"{folder} has no results.json; allowed: a run that finished")
    rows = parsed(stored_text(path), path)
    require(isinstance(rows, list), f"{path} is damaged: it has {str(rows)[:60]}; allowed: a list")
    return [require_object(row, path, _RESULT) for row in rows]


main = entry_point("report", report, ReportConfig)


if __name__ == "__main__":
    main()
