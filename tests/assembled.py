"""Fills the numbers of pages from stored results: `python -m tests.assembled [NAME=RESULTS ...]`.

`docs/results/<name>.json` has rows of the `results.json` that a page's command wrote; an argument
takes them from another run's. A comment in the page has lines with fields, and the lines behind it
are these, filled:

    <!-- from results/swap.json
    | 800 MiB | {gap/800/greedy:.1f} |
    -->
    | 800 MiB | 21.6 |

A field is `{name:format}`, with a factor `{100*name:format}`, `{name|low:format}` for another entry
of the row (low and high end of its interval, half of it, error, n, the share of n that its value
is), or `{name / other:format}` for a ratio.
"""

import json
import math
import re
import sys
from pathlib import Path

from tests.pages import PAGES, ROOT

DOCS = ROOT / "docs"
_COMMENT = re.compile(r"<!-- from (results/\S+)\n(.*?)-->\n", re.DOTALL)
_FIELD = re.compile(r"\{(?:([\d.]+)\*)?([^{}|]+?)(?:\|(\w+))?:([^{}:]*)\}")


def assembled(text: str) -> str:
    """Returns a page with what stands behind its comments filled. Raises KeyError for a result that
    is not stored."""
    parts, end = [], 0
    for comment in _COMMENT.finditer(text):
        stored = json.loads((DOCS / comment[1]).read_text("utf-8"))
        rows = {row["name"]: row for row in stored}
        template = comment[2]
        filled = _FIELD.sub(lambda field, rows=rows: _shown(rows, *field.groups()), template)
        parts += [text[end : comment.end()], filled]
        end = comment.end() + len("".join(_lines(text[comment.end() :])[: template.count("\n")]))
    return "".join(parts) + text[end:]


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _shown(rows: dict[str, dict], factor: str, names: str, entry: str, form: str) -> str:
    value, *divisors = (_entry(rows[name], entry or "value") for name in names.split(" / "))
    return f"{math.prod([float(factor or 1), value, *(1 / each for each in divisors)]):{form}}"


def _entry(row: dict, entry: str) -> float:
    low, high = row.get("interval", (math.nan, math.nan))
    share = row["value"] / row.get("n", math.nan)
    return (row | {"low": low, "high": high, "half": (high - low) / 2, "share": share})[entry]


def store(name: str, results: Path) -> None:
    """Keeps the rows of a run that pages show. A name `file/part` puts `part/` before theirs, so
    that several runs are in one file."""
    name, _, part = name.partition("/")
    file = DOCS / f"results/{name}.json"
    comments = [each for page in PAGES for each in _COMMENT.findall(page.source)]
    fields = [_FIELD.findall(text) for file, text in comments if file == f"results/{name}.json"]
    shown = {each for found in fields for field in found for each in field[1].split(" / ")}
    rows = json.loads(file.read_text("utf-8")) if file.exists() and part else []
    kept = {row["name"]: row for row in rows}
    for row in json.loads(results.read_text("utf-8")):
        named = "/".join(filter(None, [part, row["name"]]))
        kept[named] = row | {"name": named}
    lines = ",\n".join(json.dumps(row) for row in kept.values() if row["name"] in shown)
    file.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    for name, _, path in (each.partition("=") for each in sys.argv[1:]):
        store(name, Path(path))
    for page in PAGES:
        page.path.write_text(assembled(page.source), "utf-8")
