"""A Markdown page with tables and figures. Text from stored runs is escaped."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.pictures import save
from experiments.harness.run import Run

PAGE = "report.md"
_MARKUP = re.compile(r"[\\`*<|~$]|(?<=\])\(|(?<!\w)_|_(?!\w)")


def escaped(text: object) -> str:
    """Returns one line that Markdown shows literally."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return _MARKUP.sub(r"\\\g<0>", line)


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns a table with the columns of its first row."""
    lines = [[escaped(cell) for cell in line] for line in (rows[0], *(r.values() for r in rows))]
    lines.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class MarkdownPage:
    """A Markdown page under construction, with its figures; `write` writes all files at once."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._figures: dict[str, Any] = {}

    def add(self, *paragraphs: str) -> None:
        self._parts += paragraphs

    def add_picture(self, name: str, figure: Any, alt: str) -> None:
        """Adds a figure; `name` becomes its file name."""
        file = "".join(c if c.isalnum() else "-" for c in name.lower()) + ".png"
        self._figures[file] = figure
        self.add(f"![{escaped(alt)}]({file})")

    def write(self, run: Run) -> None:
        """Writes the figures, then the page."""
        for file, figure in self._figures.items():
            save(figure, run.folder / file)
        run.write(PAGE, "\n\n".join(self._parts) + "\n")
