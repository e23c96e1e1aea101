"""A canvas that fills, as an animated SVG: for a page of Markdown, where no script runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from llada_jax.view.page import filled

COLUMNS = 88
HOLD = 3.0
"""Seconds for which the finished canvas is shown before it is empty again."""
FADE = 0.6
"""Seconds in which the highlight of a new token fades."""


def animated_svg(runs: Sequence[Mapping[str, Any]], seconds_per_forward: float = 0.15) -> str:
    """Returns a picture in which the generated tokens of each run appear, all runs at one pace.

    It starts with the finished canvas, so that its first frame, which some viewers and previews
    show alone, has the text; a negative delay makes every animation start there.

    Args:
      runs: results of `llada_jax.sampler.replay`; the time on the first of `phones` is shown.
    """
    longest = max(len(run["events"]) for run in runs)
    filling = longest * seconds_per_forward
    whole = filling + HOLD
    ends = [100 * step * seconds_per_forward / whole for step in range(longest + 1)]
    drawn, fade = [_drawn(run) for run in runs], 100 * FADE / whole
    start = round(filling + FADE, 3)
    return filled("canvas.svg", runs=drawn, whole=whole, start=start, fade=fade, ends=ends)


def _drawn(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a heading, forwards, lines, and each token with its forward, line and column."""
    count, commits = len(run["events"]), (run["kinds"]["COMMIT"], run["kinds"]["FILL"])
    steps = {
        position: step
        for step, flat in enumerate(run["events"], start=1)
        for position, kind in zip(flat[::5], flat[1::5], strict=True)
        if kind in commits
    }
    tokens, line, column = [], 0, 0
    for position in run["masked"]:
        place = run["tokens"][position]
        piece = "∎" if run["ids"][place] in run["ends"] else run["pieces"][place]
        text = piece.replace("\n", "⏎") or " "
        if column + len(text) > COLUMNS:
            line, column = line + 1, 0
        tokens.append((text, steps.get(position, count), line, column))
        line, column = (line + 1, 0) if "\n" in piece else (line, column + len(text))
    phone = next(iter(run.get("phones", ())), None)
    took = f", {phone['seconds']:.3g} s on {phone['name']} (modelled)" if phone else ""
    heading = f"{run['title']}: {count} forwards{took}"
    return {"heading": heading, "count": count, "tokens": tokens, "lines": 1 + tokens[-1][2]}
