"""Figures of results, written as PNG and SVG. They need the extra `plots`.

Every function returns a matplotlib figure that belongs to no window and no global state; `save`
writes it. The size of a figure grows with its entries, and its axes follow the data, so that two
methods between 0.93 and 0.96 do not lie on top of each other.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from llada_jax.evaluation.metrics import Reliability
from llada_jax.io import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = {"color": "0.9", "linewidth": 0.8}
PROBE_SUFFIX, SCORE = "/exact_match", "exact match, 95 % interval"
LINE_INCHES = 0.2
"""Height of a line of small text."""


class ScorePoint(NamedTuple):
    """A score with its 95 % interval, at a cost or at a number of tokens per forward."""

    at: float
    value: float
    low: float
    high: float


def require_plots(setting: str) -> None:
    """Raises ImportError, with the name of the setting, if the extra `plots` is not installed."""
    if find_spec("matplotlib") is None:
        raise ImportError(f"{setting} needs the extra `plots`: pip install .[plots]")


def new_figure(width: float = 5.2, height: float = 3.8) -> "Figure":
    """Returns an empty figure of a size in inches."""
    require_plots("a picture")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure to `path`, a PNG, and next to it as an SVG; each whole or not at all."""
    for file in (path, path.with_suffix(".svg")):
        with atomic.new_file(file) as part:
            figure.savefig(part, format=file.suffix.removeprefix("."), dpi=130)


def reliability_diagrams(diagrams: Mapping[str, Reliability]) -> "Figure":
    """Draws accuracy by confidence, with the share of predictions in each bin below."""
    figure = new_figure(5.2 * len(diagrams))
    axes = figure.subplots(2, len(diagrams), sharex=True, squeeze=False,
                           gridspec_kw={"height_ratios": (3, 1)})  # fmt: skip
    for (upper, lower), (name, diagram) in zip(axes.T, diagrams.items(), strict=True):
        centers = (diagram.edges[1:] + diagram.edges[:-1]) / 2
        width = 0.94 / len(centers)
        upper.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
        upper.bar(centers, diagram.accuracy, width, color="tab:blue")
        upper.plot(diagram.confidence, diagram.accuracy, "o", color="black", markersize=3)
        error = 100 * diagram.expected_calibration_error
        upper.set_title(f"{name}: calibration error {error:.1f} points")
        upper.set_ylabel("share right")
        lower.bar(centers, diagram.counts / diagram.counts.sum(), width, color="0.6")
        lower.set_yscale("log")
        lower.set_ylabel("share of tokens")
        lower.set_xlabel("confidence")
        upper.grid(axis="y", **GRID)
        upper.set_axisbelow(True)
    return figure


def score_bars(title: str, shares: Mapping[str, ScorePoint]) -> "Figure":
    """Draws one bar for each decoder, with its interval."""
    names = ["\n".join(wrap(name, 34)) for name in shares]
    n_lines = sum(max(2, 1 + name.count("\n")) for name in names)
    figure = new_figure(6.4, 1.1 + LINE_INCHES * n_lines)
    axes = figure.subplots()
    points = list(shares.values())
    axes.barh(names, [point.value for point in points], xerr=_interval_arms(points),
              color="tab:blue", ecolor="0.3", capsize=3, height=0.6)  # fmt: skip
    axes.invert_yaxis()
    # A bar begins at 0, because its length is the value; the other end follows the data.
    axes.set(xlabel=SCORE, xlim=(0, 1.02 * max([0.01, *(point.high for point in points)])))
    axes.margins(y=0.02)
    figure.suptitle(title)  # centred over the names as well as the bars
    axes.grid(axis="x", **GRID)
    axes.set_axisbelow(True)
    return figure


def score_curves(title: str, curves: Mapping[str, Sequence[ScorePoint]], at: str) -> "Figure":
    """Draws scores by `at`: a line for each entry of `curves`, through all of its points."""
    figure, axes = _curve_figure(len(curves))
    for number, (name, points) in enumerate(curves.items()):
        _draw_curve(axes, sorted(points), number, capsize=3, label=name)
    _label_axes(axes, title=title, xlabel=at, ylabel=SCORE)
    return figure


def cost_curves(
    title: str, curves: Mapping[str, Sequence[ScorePoint]], cost: str = "forwards an item"
) -> "Figure":
    """Draws scores by cost: a dot for each setting, and for each decoder a line through those of
    its settings that score more than every cheaper one."""
    figure, axes = _curve_figure(len(curves))
    for number, (name, points) in enumerate(curves.items()):
        by_cost = sorted(points, key=lambda point: (point.at, -point.value))
        best = [-1.0, *itertools.accumulate((point.value for point in by_cost), max)]
        front = [p for p, before in zip(by_cost, best, strict=False) if p.value > before]
        values = [point.value for point in by_cost]
        axes.scatter([p.at for p in by_cost], values, 9, color=f"C{number % 10}")
        _draw_curve(axes, front, number, elinewidth=0.6, label=name)
    _log_scale(axes)
    _label_axes(axes, title=title, xlabel=cost, ylabel=SCORE)
    return figure


def ratio_dots(title: str, runs: Mapping[str, Mapping[str, float]]) -> "Figure":
    """Draws the results of several runs as multiples of those of the first run."""
    (first, base), *others = runs.items()
    figure = new_figure(9.0, 1.6 + 0.3 * len(base))
    axes = figure.subplots()
    for name, values in others:
        shared = [key for key in base if key in values]
        axes.plot([values[key] / base[key] for key in shared], shared, "o", label=name)
    axes.axvline(1, color="0.6", label=first)
    axes.set(title=title, xlabel="times the first run's")
    _log_scale(axes)
    axes.invert_yaxis()
    axes.grid(**GRID)
    figure.legend(loc="outside lower center", fontsize="small")
    return figure


def training_curve(title: str, rows: Sequence[Mapping[str, float]]) -> "Figure":
    """Draws loss and accuracy on masked tokens by step. If rows have `<task>/exact_match`, the
    scores of tasks during training, these are drawn below."""
    probes = {key for row in rows for key in row if key.endswith(PROBE_SUFFIX)}
    figure = new_figure(height=6.4 if probes else 3.8)
    axes = figure.subplots(2 if probes else 1, sharex=True, squeeze=False)[:, 0]
    steps = [row["step"] for row in rows]
    axes[0].plot(steps, [row["loss"] for row in rows], color="tab:blue", label="loss")
    axes[0].set(title=title, ylabel="loss, nats per token", ylim=(0, None))
    right = axes[0].twinx()
    right.plot(steps, [row["accuracy"] for row in rows], color="tab:orange", label="accuracy")
    right.set(ylabel="accuracy on masked tokens", ylim=(0, 1))
    axes[0].legend(handles=[*axes[0].lines, *right.lines], loc="center right")
    for key in sorted(probes):
        points = zip(*((row["step"], row[key]) for row in rows if key in row), strict=True)
        axes[1].plot(*points, marker="o", markersize=3, label=key.removesuffix(PROBE_SUFFIX))
    if probes:
        axes[1].set(ylabel="exact match of the probe", ylim=(0, 1.02))
        axes[1].legend(fontsize="small")
    axes[-1].set_xlabel("step")
    for axis in axes:
        axis.grid(**GRID)
    return figure


def _curve_figure(n_curves: int) -> tuple["Figure", "Axes"]:
    figure = new_figure(7.6, max(4.6, 0.6 + LINE_INCHES * n_curves))  # the legend is at the side
    return figure, figure.subplots()


def _draw_curve(axes: "Axes", points: Sequence[ScorePoint], number: int, **style: Any) -> None:
    at, values = [point.at for point in points], [point.value for point in points]
    color, marker = f"C{number % 10}", "os^D"[number // 10 % 4]
    arms = _interval_arms(points)
    axes.errorbar(at, values, yerr=arms, color=color, marker=marker, markersize=4, **style)


def _interval_arms(points: Collection[ScorePoint]) -> tuple[list[float], list[float]]:
    """Returns the distances from each value down and up to the ends of its interval."""
    return [p.value - p.low for p in points], [p.high - p.value for p in points]


def _label_axes(axes: "Axes", **labels: Any) -> None:
    axes.set(**labels)
    axes.grid(**GRID)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _log_scale(axes: "Axes") -> None:
    """Makes x logarithmic, with ticks as plain numbers instead of powers of ten."""
    from matplotlib.ticker import LogFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(LogFormatter())
    axes.xaxis.set_minor_formatter(LogFormatter())
