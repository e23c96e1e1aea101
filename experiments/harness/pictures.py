"""Pictures of results, as PNG files. They need the extra `plots`."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from llada_jax.evaluation.metrics import Reliability
from llada_jax.io import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GRID = {"color": "0.9", "linewidth": 0.8}
PROBED, SCORE = "/exact_match", "exact match, 95 % interval"


class ScorePoint(NamedTuple):
    """A share with its interval, at some tokens a forward, or at some forwards."""

    at: float
    value: float
    low: float
    high: float


def require_plots(setting: str) -> None:
    """Raises ImportError, which names the setting, where the extra `plots` is not installed."""
    if find_spec("matplotlib") is None:
        raise ImportError(f"{setting} needs the extra `plots`: pip install .[plots]")


def figure(width: float = 5.2, height: float = 3.8) -> "Figure":
    """Makes an empty figure, in inches, that no window and no global state knows."""
    require_plots("a picture")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(drawn: "Figure", path: Path) -> None:
    """Writes a picture, whole or not at all."""
    with atomic.new_file(path) as part:
        drawn.savefig(part, format=path.suffix.removeprefix("."), dpi=130)


def draw_reliability(diagrams: Mapping[str, Reliability]) -> "Figure":
    """Draws accuracy by confidence, with the share of predictions in each bin below."""
    drawn = figure(5.2 * len(diagrams))
    axes = drawn.subplots(2, len(diagrams), sharex=True, squeeze=False,
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
    return drawn


def scores(title: str, shares: Mapping[str, ScorePoint]) -> "Figure":
    """Draws one bar for each decoder, with its interval."""
    drawn = figure()
    axes = drawn.subplots()
    names = [fill(name.replace("@", " @"), 30) for name in shares]
    values = [point.value for point in shares.values()]
    axes.barh(names, values, xerr=_errors(shares.values()), color="tab:blue", ecolor="0.3",
              capsize=3, height=0.6)  # fmt: skip
    axes.invert_yaxis()
    axes.set(xlabel=SCORE, xlim=(0, 1))
    drawn.suptitle(title)  # over the names as well
    axes.grid(axis="x", **GRID)
    axes.set_axisbelow(True)
    return drawn


def score_curves(title: str, curves: Mapping[str, Sequence[ScorePoint]], at: str) -> "Figure":
    """Draws exact match by something: a line a decoder, a point a setting."""
    drawn = figure(7.6, 4.6)
    axes = drawn.subplots()
    for name, points in curves.items():
        _line(axes, sorted(points), marker="o", capsize=3, label=name)
    _explain(axes, title=title, xlabel=at, ylabel=SCORE, ylim=(0, 1.02))
    return drawn


def forwards_curves(
    title: str, curves: Mapping[str, Sequence[ScorePoint]], cost: str = "forwards an item"
) -> "Figure":
    """Draws exact match by what it costs: a point for each setting, and a line for each decoder
    through those that none of its others beats at that cost or less."""
    drawn = figure(7.6, 4.6)
    axes = drawn.subplots()
    for number, (name, points) in enumerate(curves.items()):
        color, ordered = f"C{number % 10}", sorted(points, key=lambda p: (p.at, -p.value))
        best = itertools.accumulate((point.value for point in ordered), max)
        line = [p for p, least in zip(ordered, [-1.0, *best], strict=False) if p.value > least]
        marker = "s" if number >= 10 else "o"
        axes.scatter([p.at for p in ordered], [p.value for p in ordered], 9, color=color)
        _line(axes, line, marker=marker, elinewidth=0.6, color=color, label=name)
    _log_scale(axes)
    _explain(axes, title=title, xlabel=cost, ylabel=SCORE)
    return drawn


def ratios(title: str, runs: Mapping[str, Mapping[str, float]]) -> "Figure":
    """Draws results of several runs, in times those of the first one."""
    (first, base), *others = runs.items()
    drawn = figure(9.0, 1.6 + 0.3 * len(base))
    axes = drawn.subplots()
    for name, values in others:
        shared = [key for key in base if key in values]
        axes.plot([values[key] / base[key] for key in shared], shared, "o", label=name)
    axes.axvline(1, color="0.6", label=first)
    axes.set(title=title, xlabel="times the first run's")
    _log_scale(axes)
    axes.invert_yaxis()
    axes.grid(**GRID)
    drawn.legend(loc="outside lower center", fontsize="small")
    return drawn


def _log_scale(axes: "Axes") -> None:
    """Has places on a logarithmic axis as plain numbers, not as powers of ten."""
    from matplotlib.ticker import LogFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(LogFormatter())
    axes.xaxis.set_minor_formatter(LogFormatter())


def _explain(axes: "Axes", **labels: Any) -> None:
    axes.set(**labels)
    axes.grid(**GRID)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _line(axes: "Axes", points: Sequence[ScorePoint], **style: Any) -> None:
    at, values = [point.at for point in points], [point.value for point in points]
    axes.errorbar(at, values, yerr=_errors(points), markersize=4, **style)


def _errors(points: Collection[ScorePoint]) -> tuple[list[float], list[float]]:
    """Returns how far the interval of each reaches down and up."""
    return [p.value - p.low for p in points], [p.high - p.value for p in points]


def training_curve(title: str, rows: Sequence[Mapping[str, float]]) -> "Figure":
    """Draws loss and accuracy on masked tokens by step; below them the exact match of tasks that
    were probed on the way, from rows that have `<task>/exact_match`."""
    probed = {key for row in rows for key in row if key.endswith(PROBED)}
    drawn = figure(height=6.4 if probed else 3.8)
    axes = drawn.subplots(2 if probed else 1, sharex=True, squeeze=False)[:, 0]
    steps = [row["step"] for row in rows]
    axes[0].plot(steps, [row["loss"] for row in rows], color="tab:blue", label="loss")
    axes[0].set(title=title, ylabel="loss, nats per token", ylim=(0, None))
    right = axes[0].twinx()
    right.plot(steps, [row["accuracy"] for row in rows], color="tab:orange", label="accuracy")
    right.set(ylabel="accuracy on masked tokens", ylim=(0, 1))
    axes[0].legend(handles=[*axes[0].lines, *right.lines], loc="center right")
    for key in sorted(probed):
        points = zip(*((row["step"], row[key]) for row in rows if key in row), strict=True)
        axes[1].plot(*points, marker="o", markersize=3, label=key.removesuffix(PROBED))
    if probed:
        axes[1].set(ylabel="exact match of the probe", ylim=(0, 1.02))
        axes[1].legend(fontsize="small")
    axes[-1].set_xlabel("step")
    for each in axes:
        each.grid(**GRID)
    return drawn
