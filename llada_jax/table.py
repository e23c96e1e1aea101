"""Tables of text: aligned columns in a terminal, Markdown in a notebook."""

import re
from collections.abc import Collection, Mapping, Sequence

_MARKUP = re.compile(r"[\\`*<|~$]|(?<=\])\(|(?<!\w)_|_(?!\w)")


class Table:
    """Rows of text by column; all rows have the columns of the first. A notebook shows Markdown."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        return aligned(self.rows)

    def _repr_markdown_(self) -> str:
        return markdown_table(self.rows)


def aligned(rows: Sequence[Mapping[str, str]], right_aligned: Collection[str] = ()) -> str:
    """Returns a text table with the columns of the first row, without those that are empty in all
    rows. Columns are aligned left, except `right_aligned`."""
    columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    lines = [dict(zip(columns, columns, strict=True)), *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in columns}
    padded = {name: str.rjust if name in right_aligned else str.ljust for name in columns}
    shown = ([padded[name](line[name], widths[name]) for name in columns] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in shown)


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns a Markdown table with the columns of its first row. Its text is escaped."""
    lines = [[escaped(cell) for cell in line] for line in (rows[0], *(r.values() for r in rows))]
    lines.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: object) -> str:
    """Returns one line that Markdown shows literally."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return _MARKUP.sub(r"\\\g<0>", line)
