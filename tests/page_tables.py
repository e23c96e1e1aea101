"""Writes the generated tables of the pages: `python -m tests.page_tables [NAME=RESULTS ...]`.

A page marks the place of a table by its name, and this command writes the text between markers:

    <!-- table swap_gap -->
    | 800 MiB | 21.6 |
    <!-- end -->

`docs/tables/swap_gap.txt` is the template. Its first line names the results, the rest is a table
with fields. Jinja repeats lines and cells: lines that begin with `%%` are statements, `<<name>>` is
a variable, and `rows` has the results by name:

    results/swap.json
    %% for size in (400, 800)
    | <<size>> MiB | {gap/<<size>>/greedy:.1f} |
    %% endfor

`docs/results/<name>.json` has rows of the `results.json` that the page's command wrote; an argument
`NAME=RESULTS` takes them from another run. The name `oracle` also draws `docs/oracle.png` from
them. A field is `{row:format}`, with a factor `{100*row:format}`, `{row|low:format}` for another
entry of the row (low and high end of its interval or band, half of it, error, n, value divided by n
as `share`, value times n as `count`), or `{row / other:format}` for a ratio. The entry `interval`
is the value with its unit and both ends: `{100*row|interval:.0f %}` is `50 % (40 to 60)`. For
`quartiles` the ends are the rows `row/lower_quartile` and `row/upper_quartile`.
"""

import json
import math
import re
import sys
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from tests.pages import PAGES, ROOT, TABLE

DOCS = ROOT / "docs"
WHOLE = ("oracle", "reproduce")
"""Results that are kept with all rows, for figures and for claims about single rows."""
Rows = dict[str, dict]
_JINJA = Environment(
    variable_start_string="<<",
    variable_end_string=">>",
    line_statement_prefix="%%",
    keep_trailing_newline=True,
    undefined=StrictUndefined,
)
_FIELD = re.compile(r"\{(?:([\d.]+)\*)?([^{}|]+?)(?:\|(\w+))?:([^{}:]*)\}")


def with_tables(text: str) -> str:
    """Returns a page's text with filled tables. Raises KeyError for a result that is not stored."""
    return TABLE.sub(lambda marked: f"{marked[1]}{_filled(marked[2])}{marked[4]}", text)


def template(name: str) -> tuple[str, str]:
    """Returns the file of results that a table reads, and its template."""
    results, _, text = (DOCS / f"tables/{name}.txt").read_text("utf-8").partition("\n")
    return results, text


def _with_fields(text: str, rows: Rows) -> str:
    """Returns the table of a template, with its fields."""
    return _JINJA.from_string(text).render(rows=rows)


def _filled(name: str) -> str:
    results, text = template(name)
    rows = {row["name"]: row for row in json.loads((DOCS / results).read_text("utf-8"))}
    return _FIELD.sub(lambda field: _value(rows, *field.groups()), _with_fields(text, rows))


def _value(rows: Rows, factor: str, names: str, entry: str, format_: str) -> str:
    number, space, unit = format_.partition(" ")
    parts = []
    for shown, kind in _parts(names, entry):
        value, *divisors = (_entry(rows[name], kind) for name in shown)
        parts.append(f"{float(factor or 1) * value / math.prod(divisors):{number}}")
    first, *ends = parts
    return f"{first}{space}{unit}" + (f" ({' to '.join(ends)})" if ends else "")


def _parts(names: str, entry: str) -> list[tuple[list[str], str]]:
    """Returns the rows, a dividend and its divisors, and the entry of each number of a field."""
    if entry == "quartiles":
        ends = (names, f"{names}/lower_quartile", f"{names}/upper_quartile")
        return [([name], "value") for name in ends]
    entries = ("value", "low", "high") if entry == "interval" else (entry or "value",)
    return [(names.split(" / "), kind) for kind in entries]


def _entry(row: dict, entry: str) -> float:
    low, high = row.get("interval") or row.get("band") or (math.nan, math.nan)
    n = row.get("n", math.nan)
    derived = {"half": (high - low) / 2, "share": row["value"] / n, "count": row["value"] * n}
    return (row | {"low": low, "high": high} | derived)[entry]


def store(name: str, results: Path) -> None:
    """Keeps the rows of a run that pages show, or all rows of `WHOLE`. A name `file/part` puts
    `part/` before the names of its rows, so that one file can have several runs."""
    name, _, part = name.partition("/")
    file = DOCS / f"results/{name}.json"
    rows = json.loads(file.read_text("utf-8")) if file.exists() and part else []
    kept = {row["name"]: row for row in rows}
    for row in json.loads(results.read_text("utf-8")):
        full_name = "/".join(filter(None, [part, row["name"]]))
        kept[full_name] = row | {"name": full_name}
    templates = [template(path.stem) for path in (DOCS / "tables").glob("*.txt")]
    tables = [
        _with_fields(text, kept) for source, text in templates if source == f"results/{name}.json"
    ]
    fields = [field for table in tables for field in _FIELD.findall(table)]
    parts = [part for _, names, entry, _ in fields for part in _parts(names, entry)]
    shown = {row for names, _ in parts for row in names}
    lines = ",\n".join(
        json.dumps(row) for row in kept.values() if name in WHOLE or row["name"] in shown
    )
    file.write_text(f"[\n{lines}\n]\n", "utf-8")


def draw_oracle() -> None:
    """Draws the figure of the best possible schedule from the stored rows."""
    from experiments.oracle import figure_of

    rows = json.loads((DOCS / "results/oracle.json").read_text("utf-8"))
    figure = figure_of({row["name"]: row["value"] for row in rows})
    figure.savefig(DOCS / "oracle.png", dpi=130)


if __name__ == "__main__":
    for name, _, path in (argument.partition("=") for argument in sys.argv[1:]):
        store(name, Path(path))
        if name == "oracle":
            draw_oracle()
    for page in PAGES:
        page.path.write_text(with_tables(page.source), "utf-8")
