"""A Markdown page with pictures beside it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.pictures import save
from experiments.harness.run import Run

PAGE = "report.md"


_MARKUP = re.compile(r"[\\`*<|~$]|(?<=\])\(|(?<!\w)_|_(?!\w)")


def escaped(text: object) -> str:
    """Returns text that Markdown shows as it is, on one line: names come from stored runs."""
    line = "".join(each if each.isprintable() else " " for each in str(text))
    return _MARKUP.sub(r"\\\g<0>", line)


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Writes a table with the columns of its first row; cells are text, not markup."""
    lines = [[escaped(cell) for cell in line] for line in (rows[0], *(r.values() for r in rows))]
    lines.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class MarkdownPage:
    """Markdown that grows, with pictures beside it; nothing is written before all is there."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._pictures: dict[str, Any] = {}

    def add(self, *paragraphs: str) -> None:
        self._parts += paragraphs

    def add_picture(self, name: str, drawn: Any, alt: str) -> None:
        """Adds a picture under a file name made of `name`."""
        file = "".join(c if c.isalnum() else "-" for c in name.lower()) + ".png"
        self._pictures[file] = drawn
        self.add(f"![{escaped(alt)}]({file})")

    def write(self, run: Run) -> None:
        for file, drawn in self._pictures.items():
            save(drawn, run.folder / file)
        run.write(PAGE, "\n\n".join(self._parts) + "\n")
