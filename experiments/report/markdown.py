"""A Markdown page with tables and figures."""

from typing import Any

from experiments.harness.pictures import save
from experiments.harness.run import Run
from llada_jax.table import escaped

PAGE = "report.md"


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
