"""A timeline as a picture: what each lane does when."""

from pathlib import Path
from typing import Any

from experiments.harness.pictures import figure, save
from llada_jax.phone.timeline import LANES, Timeline


def draw_timeline(timeline: Timeline, title: str, path: Path) -> None:
    """Draws lanes over time, as Perfetto would show them, as a PNG."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    drawn = figure(10, 2.4)
    axes: Any = drawn.subplots()
    handles = []
    for place, lane in enumerate(LANES):
        mine = [event for event in timeline.events if event.task.lane == lane]
        spans = [(event.start, event.end - event.start) for event in mine]
        shades = [to_rgba(f"C{place}", 0.5 + 0.4 * (i % 2)) for i in range(len(mine))]
        axes.broken_barh(spans, (place - 0.35, 0.7), facecolors=shades)
        handles += [Patch(color=f"C{place}", alpha=alpha) for alpha in (0.5, 0.9)]
    axes.set_yticks(range(len(LANES)), ["NPU", "staging", "CPU"])
    note = ["", "", "", "", "", "shades: one task, the next"]
    drawn.legend(
        handles,
        note,
        ncols=6,
        columnspacing=-0.5,
        loc="outside lower right",
        fontsize=7,
        frameon=False,
    )
    axes.invert_yaxis()
    axes.set(xlabel="seconds", title=title)
    axes.title.set_fontsize(9)
    save(drawn, path)
