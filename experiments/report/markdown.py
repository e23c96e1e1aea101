"""A Markdown page with pictures beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.pictures import save
from experiments.harness.run import Run

PAGE = "report.md"


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Writes a table with the columns of its first row."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


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
        self.add(f"![{alt}]({file})")

    def write(self, run: Run) -> None:
        for file, drawn in self._pictures.items():
            save(drawn, run.folder / file)
        run.write(PAGE, "\n\n".join(self._parts) + "\n")
