"""Draws decoding runs as an animated SVG, for Markdown pages, which cannot run scripts."""

from collections.abc import Mapping, Sequence
from typing import Any

from llada_jax.view.page import render_template

COLUMNS = 88
HOLD = 3.0
"""Seconds for which the finished canvas is shown before the animation restarts."""
FADE = 0.6
"""Seconds in which the highlight of a new token fades."""


def animated_svg(runs: Sequence[Mapping[str, Any]], seconds_per_forward: float = 0.15) -> str:
    """Returns an animation in which the generated tokens of each run appear, at the same pace.

    It starts with the finished canvas, so that its first frame, which some viewers and previews
    show alone, has the text; a negative delay makes every animation start there.

    Args:
      runs: Results of `llada_jax.sampler.replay`; if one has `phones`, the first one's time is
        shown.
    """
    longest = max(len(run["events"]) for run in runs)
    filling = longest * seconds_per_forward
    duration = filling + HOLD
    ends = [100 * step * seconds_per_forward / duration for step in range(longest + 1)]
    layouts, fade = [_layout(run) for run in runs], 100 * FADE / duration
    start = round(filling + FADE, 3)
    return render_template(
        "canvas.svg", runs=layouts, whole=duration, start=start, fade=fade, ends=ends
    )


def _layout(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns heading, numbers of forward passes and lines, and the tokens: text, forward pass,
    line and column."""
    count, commits = len(run["events"]), (run["kinds"]["COMMIT"], run["kinds"]["FILL"])
    steps = {
        position: step
        for step, flat in enumerate(run["events"], start=1)
        for position, kind in zip(flat[::5], flat[1::5], strict=True)
        if kind in commits
    }
    tokens, line, column = [], 0, 0
    for position in run["masked"]:
        index = run["tokens"][position]
        piece = "∎" if run["ids"][index] in run["ends"] else run["pieces"][index]
        text = piece.replace("\n", "⏎") or " "
        if column + len(text) > COLUMNS:
            line, column = line + 1, 0
        tokens.append((text, steps.get(position, count), line, column))
        line, column = (line + 1, 0) if "\n" in piece else (line, column + len(text))
    phone = next(iter(run.get("phones", ())), None)
    time = f", {phone['seconds']:.3g} s on {phone['name']} (modelled)" if phone else ""
    heading = f"{run['title']}: {count} forwards{time}"
    return {"heading": heading, "count": count, "tokens": tokens, "lines": 1 + tokens[-1][2]}
