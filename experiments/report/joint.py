"""Runs of one verb side by side: a table with a column for each, and a picture of what differs."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.pictures import ratios
from experiments.harness.results import number
from experiments.harness.run import CONFIG, stored_settings
from experiments.report.labels import settings_apart
from experiments.report.markdown import MarkdownPage

Results = Mapping[Path, Sequence[Mapping[str, Any]]]
"""Of runs, by their folders."""


def by_verb(runs: Results) -> dict[Hashable, Results]:
    """Groups runs by the names of their settings, which no two verbs share."""
    groups: dict[Hashable, dict[Path, Sequence[Mapping[str, Any]]]] = {}
    for folder, rows in runs.items():
        groups.setdefault(frozenset(_settings(folder)) or folder, {})[folder] = rows
    return dict(groups)


def add_joint_table(page: MarkdownPage, runs: Results) -> None:
    """Adds the table, and the picture where a result of the first run is not that of the others."""
    labels = settings_apart({folder: _settings(folder) for folder in runs})
    found = {labels[folder]: {row["name"]: row for row in rows} for folder, rows in runs.items()}
    units = {row["name"]: row["unit"] for rows in runs.values() for row in rows}
    lines = [
        {"result": name, **{run: _cell(rows, name) for run, rows in found.items()}, "unit": unit}
        for name, unit in units.items()
    ]
    page.add_table(lines)
    first = next(iter(found.values()))
    differing = [
        name for name in first if first[name]["value"] > 0
        and len({rows[name]["value"] for rows in found.values() if name in rows}) > 1
    ][:24]  # fmt: skip
    if differing:
        kept = {
            r: {n: rows[n]["value"] for n in differing if n in rows} for r, rows in found.items()
        }
        title = next(iter(runs)).parent.name
        page.add_picture(f"{title} side by side", ratios(title, kept), "Results of each run")


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / CONFIG
    return stored_settings(path) if path.is_file() else {}


def _cell(rows: Mapping[str, Mapping[str, Any]], name: str) -> str:
    interval = " to ".join(map(number, rows.get(name, {}).get("interval", ())))
    value = number(rows[name]["value"]) if name in rows else ""
    return f"{value} ({interval})" if interval else value
