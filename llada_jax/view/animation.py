"""A canvas that fills, as an animated SVG: for a page of Markdown, where no script runs."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

_COLUMNS, _WIDTH, _LINE, _MARGIN, _HEAD = 88, 8.0, 23, 14, 30
"""Columns of text, the pixels of one, and those of a line, the margin and a run's heading."""
_HOLD = 3.0
"""Seconds for which the finished canvas stands, before all begins anew."""
_STYLE = """
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c2128 }
.head { font: 600 13px system-ui, sans-serif } .paper { fill: #fff } .mask { fill: #e4e7ec }
.kept { fill: #d9eefb } .fresh { fill: #0b6bb5 } .bar { fill: #0b6bb5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e3e7ec } .paper { fill: #15181d } .mask { fill: #2b323b } .kept { fill: #17394f }
  .fresh, .bar { fill: #5db8f5 }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important } .fresh { opacity: 0 } }
"""


def animated_svg(runs: Sequence[Mapping[str, Any]], seconds_per_forward: float = 0.15) -> str:
    """Returns a picture in which the generated tokens of each run appear, all runs at one pace.

    Args:
      runs: each what `llada_jax.sampler.replay` gives; of `phones`, the first one's time is shown.
    """
    longest = max(len(run["events"]) for run in runs)
    whole = longest * seconds_per_forward + _HOLD
    body, top = [], _MARGIN
    for run in runs:
        drawn, top = _run(run, top, whole, seconds_per_forward)
        body += drawn
    steps = "\n".join(
        f"@keyframes k{step} {{ 0%, {at:.2f}% {{ opacity: 0 }} {at + 0.01:.2f}%, to {{ opacity: 1 }} }}\n"
        f"@keyframes f{step} {{ 0%, {at:.2f}% {{ opacity: 0 }} {at + 0.01:.2f}% {{ opacity: .8 }} "
        f"{min(at + 60 / whole, 100):.2f}%, to {{ opacity: 0 }} }}\n"
        f".k{step} {{ animation: k{step} {whole:.2f}s infinite }}"
        f" .f{step} {{ animation: f{step} {whole:.2f}s infinite }}"
        for step in range(1, longest + 1)
        for at in [100 * step * seconds_per_forward / whole]
    )
    width = _COLUMNS * _WIDTH + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {top:g}" role="img">\n'
        f"<title>Canvases that fill, forward by forward</title>\n<style>{_STYLE}{steps}\n</style>\n"
        f'<rect class="paper" width="100%" height="100%" rx="8"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _run(run: Mapping[str, Any], top: float, whole: float, pace: float) -> tuple[list[str], float]:
    """Returns the elements of a run, and where the next one begins."""
    count, commit = len(run["events"]), (run["kinds"]["COMMIT"], run["kinds"]["FILL"])
    steps = {
        position: step
        for step, flat in enumerate(run["events"], start=1)
        for position, kind, *_ in zip(*[iter(flat)] * 5, strict=True)
        if kind in commit
    }
    told = f"{run['title']}: {count} forwards"
    if run.get("phones"):
        phone = run["phones"][0]
        seconds = sum(phone["kinds"][kind]["seconds"] for kind in phone["order"])
        told += f", {seconds:.3g} s on {phone['name']} (modelled)"
    y = top + 12
    body = [
        f'<text class="head" x="{_MARGIN}" y="{y}">{escape(told)}</text>',
        f'<rect class="bar" x="{_MARGIN}" y="{y + 6}" width="{_COLUMNS * _WIDTH:g}" height="3">'
        f'<animate attributeName="width" dur="{whole:.2f}s" repeatCount="indefinite" '
        f'values="0;{_COLUMNS * _WIDTH * count * pace / whole:g};'
        f'{_COLUMNS * _WIDTH * count * pace / whole:g}" keyTimes="0;{count * pace / whole:.4f};1"/></rect>',
    ]
    lines = 1
    for position, text, line, column in _placed(run):
        lines, step = line + 1, steps.get(position, count)
        x, at = _MARGIN + column * _WIDTH, top + _HEAD + line * _LINE
        box = f'x="{x:g}" y="{at:g}" width="{len(text) * _WIDTH - 1:g}" height="{_LINE - 4}"'
        length = f'textLength="{len(text) * _WIDTH:g}" lengthAdjust="spacingAndGlyphs"'
        body.append(
            f'<rect class="mask" {box}/><g class="k{step}"><rect class="kept" {box}/>'
            f'<rect class="fresh f{step}" {box}/>'
            f'<text x="{x:g}" y="{at + 14:g}" {length} xml:space="preserve">{escape(text)}</text></g>'
        )
    return body, top + _HEAD + lines * _LINE + _MARGIN


def _placed(run: Mapping[str, Any]) -> Iterator[tuple[int, str, int, int]]:
    """Yields generated positions with their text, line and column."""
    line = column = 0
    for position in run["masked"]:
        place = run["tokens"][position]
        piece = "∎" if run["ids"][place] in run["ends"] else run["pieces"][place]
        text = piece.replace("\n", "⏎") or " "
        if column + len(text) > _COLUMNS:
            line, column = line + 1, 0
        yield position, text, line, column
        column += len(text)
        if "\n" in piece:
            line, column = line + 1, 0
