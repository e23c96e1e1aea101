"""Pictures of chapters: modelled beside published, and where time goes."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from experiments.harness.pictures import figure, save
from experiments.harness.results import ResultRow, traces
from experiments.reproduce.chapter import Chapter

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(chapter: Chapter, folder: Path) -> str | None:
    """Draws the chapter as a PNG of the folder; returns its name, or None where there is none."""
    shown = [row for row in chapter.rows if row.reference]
    wide = 11 if chapter.parts else 6.5
    drawn = figure(wide, 4)
    axes: Any = drawn.subplots(1, 2 if chapter.parts else 1, squeeze=False)[0]
    if len(shown) > 20:
        _scatter(axes[0], shown)
    elif shown:
        _bars(axes[0], shown)
    else:
        return None
    if chapter.parts:
        _stacked(axes[1], chapter.parts)
    name = f"{chapter.name}.png"
    lines = [f"{chapter.title} (modelled)", *traces(chapter.rows)]
    title = "\n".join(fill(line, int(12 * wide)) for line in lines)
    drawn.suptitle(title, fontsize=10)
    save(drawn, folder / name)
    return name


def _bars(axes: "Axes", rows: Sequence[ResultRow]) -> None:
    places = range(len(rows))
    axes.bar([i - 0.2 for i in places], [row.value for row in rows], 0.4, label="modelled")
    axes.bar(
        [i + 0.2 for i in places], [row.reference or 0 for row in rows], 0.4, label="published"
    )
    names = [row.name.split("/", 1)[1] + (" *" if row.fitted else "") for row in rows]
    axes.set_xticks(list(places), names, rotation=60, ha="right", fontsize=7)
    values = [row.value for row in rows]
    if max(values) > 20 * max(1e-9, min(values)):
        axes.set_yscale("log")
    axes.set_ylabel(rows[0].unit)
    axes.legend(fontsize=7, title="* fitted", title_fontsize=7)


def _scatter(axes: "Axes", rows: Sequence[ResultRow]) -> None:
    for soc in sorted({row.name.split("/")[1] for row in rows}):
        mine = [row for row in rows if row.name.split("/")[1] == soc]
        axes.scatter([row.reference or 0 for row in mine], [row.value for row in mine], s=10,
                     label=soc)  # fmt: skip
    ends = [min(row.reference or 1 for row in rows), max(row.reference or 1 for row in rows)]
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published", ylabel="modelled")
    axes.legend(fontsize=6)


def _stacked(axes: "Axes", parts: dict[str, dict[str, float]]) -> None:
    names = list(parts)
    causes = list(dict.fromkeys(cause for each in parts.values() for cause in each))
    bottom = [0.0] * len(names)
    for cause in causes:
        shares = [parts[name].get(cause, 0.0) / sum(parts[name].values()) for name in names]
        if max(shares) < 0.01:
            continue
        axes.barh(names, shares, left=bottom, label=cause)
        bottom = [left + share for left, share in zip(bottom, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("share of the time")
    axes.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
