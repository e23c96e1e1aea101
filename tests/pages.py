"""Reads the project's pages: prose, tables, links, headings and commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^(<!-- table (\w+) -->\n)(.*?)^(<!-- end -->)", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`\[*])")
FIGURE = re.compile(r"(?<![\w./-])\d[\d,]*\.\d+(?![\w.])|(?<![\w./-])\d{1,3}(?:,\d{3})+(?![\w.])")
WITHOUT_FIGURES = re.compile(r"`[^`]*`|arXiv \S+|Python [\d., or]+|\]\([^)]*\)")
COMMAND = re.compile(r"python -m experiments\.(?:[^`\n\\]|\\\n)*")


@dataclass(frozen=True)
class Page:
    """A Markdown file of the repository."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def source(self) -> str:
        return self.path.read_text("utf-8")

    @cached_property
    def text(self) -> str:
        """The text that a reader sees."""
        return COMMENT.sub("", self.source)

    @cached_property
    def prose(self) -> str:
        """The text without fenced code."""
        return FENCE.sub("", self.text)

    @property
    def rows(self) -> list[str]:
        """Lines of the tables that are written by hand."""
        lines = FENCE.sub("", TABLE.sub("", self.source)).splitlines()
        return [line for line in lines if line.startswith("|")]

    @property
    def sentences(self) -> Iterator[str]:
        """Sentences of paragraphs and list items."""
        body = re.sub(r"^(\||#|---).*$", "", self.prose, flags=re.MULTILINE)
        body = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n\n", body, flags=re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n", body):
            yield from filter(None, SENTENCE_END.split(" ".join(paragraph.split())))

    @property
    def links(self) -> list[str]:
        """Targets inside the repository."""
        return [target for _, target in LINK.findall(self.prose) if "://" not in target]

    @property
    def anchors(self) -> set[str]:
        """The anchors that GitHub derives from the headings."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def commands_in(text: str) -> list[list[str]]:
    """Words of each `python -m experiments.<verb> ...`; the first is the verb."""
    lines = [match.replace("\\\n", " ") for match in COMMAND.findall(text)]
    words = [shlex.split(line, comments=True)[2:] for line in lines]
    return [[verb.removeprefix("experiments."), *rest] for verb, *rest in words]


def precise_figures(text: str) -> set[str]:
    """Figures of three digits or more, on which two statements hardly agree by chance."""
    figures = FIGURE.findall(WITHOUT_FIGURES.sub("", text))
    return {figure for figure in figures if len(re.sub(r"[.,]", "", figure).lstrip("0")) > 2}


README = Page(ROOT / "README.md")
PAGES = [
    README,
    *(Page(ROOT / name) for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")),
    *map(Page, sorted((ROOT / "docs").glob("*.md"))),
]
