"""A Markdown page with pictures beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.pictures import save
from experiments.harness.run import Run

Table = Sequence[Mapping[str, str]]


class MarkdownPage:
    """Markdown that grows, with pictures beside it; nothing is written before all is there."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._pictures: dict[str, Any] = {}

    def add(self, *paragraphs: str) -> None:
        self._parts += paragraphs

    def add_table(self, rows: Table) -> None:
        self.add(markdown_table(rows))

    def add_picture(self, name: str, drawn: Any, alt: str) -> None:
        """Returns a picture under a file name made of `name`."""
        file = "".join(c if c.isalnum() else "-" for c in name.lower()) + ".png"
        self._pictures[file] = drawn
        self.add(f"![{alt}]({file})")

    def write(self, run: Run) -> None:
        for file, drawn in self._pictures.items():
            save(drawn, run.folder / file)
        run.write("report.md", "\n\n".join(self._parts) + "\n")


def markdown_table(rows: Table) -> str:
    """Returns a table with the columns of its first row."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([row[name] for name in columns] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip
