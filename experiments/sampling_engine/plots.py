"""Pictures of the sampling engine's results, from the rows alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.harness.results import ResultRow
from llada_jax import atomic

UNITS = ("vector", "memory", "scalar", "control")
AXES = {
    "batch": "blocks at once",
    "block": "positions of a block",
    "vocab": "vocabulary",
    "vlen": "VLEN",
    "chunk": "vector rows of a chunk",
}


def draw(rows: Sequence[ResultRow], folder: Path) -> None:
    """Draws `latency.png`, `breakdown.png`, `sweeps.png` and `flips.png` in the run's folder."""
    from matplotlib.figure import Figure

    values = {row.name: row.value for row in rows}
    figures = {
        "latency": (latency, (7, 4)),
        "breakdown": (breakdown, (7, 4)),
        "sweeps": (sweeps, (13, 3.2)),
        "flips": (flips, (6, 3.5)),
    }
    for name, (picture, size) in figures.items():
        figure = Figure(figsize=size, layout="constrained")
        picture(figure, values)
        with atomic.new_file(folder / f"{name}.png") as part:
            figure.savefig(part, format="png", dpi=150)


def latency(figure, values: Mapping[str, float]) -> None:
    """Draws every program and both GPU baselines, at the longest vectors."""
    vlen = _longest(values)
    bars = {"performance (published)": values[f"vlen{vlen}/latency_ms"]}
    for name, value in values.items():
        words = name.split("/")
        if words[-1] == "latency_ms" and words[0] in ("edge", "one_pass", "one_pass_overlapped"):
            if words[1] == f"vlen{vlen}":
                bars[words[0].replace("_", " ")] = value
        if words[0] == "gpu":
            bars[f"{words[1]} {words[2].replace('_', ' ')}"] = value
    axes = figure.subplots()
    axes.barh(list(bars), list(bars.values()))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"ms for one step, modelled (engine: VLEN = {vlen}; GPUs: rooflines)")
    for place, value in enumerate(bars.values()):
        axes.text(value, place, f" {value:.2f}", va="center")


def breakdown(figure, values: Mapping[str, float]) -> None:
    """Draws where the cycles go, for each program."""
    vlen = _longest(values)
    prefixes = {"performance": f"vlen{vlen}"} | {
        mode: f"{mode}/vlen{vlen}" for mode in ("edge", "one_pass", "one_pass_overlapped")
    }
    shown = {mode: p for mode, p in prefixes.items() if f"{p}/vector_cycles" in values}
    axes = figure.subplots()
    left = [0.0] * len(shown)
    for unit in UNITS:
        widths = [values[f"{prefix}/{unit}_cycles"] / 1e3 for prefix in shown.values()]
        axes.barh(list(shown), widths, left=left, label=unit)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(f"thousand cycles at VLEN = {vlen}, modelled")
    axes.legend()


def sweeps(figure, values: Mapping[str, float]) -> None:
    """Draws one axis a panel, one line a program."""
    panels = figure.subplots(1, len(AXES), sharey=True)
    for panel, (axis, label) in zip(panels, AXES.items(), strict=True):
        for mode, points in _sweep_points(values, axis).items():
            panel.plot(*zip(*sorted(points), strict=True), marker="o", label=mode.replace("_", " "))
        panel.set(xlabel=label, xscale="log", yscale="log")
        ticks = sorted(
            {point for line in _sweep_points(values, axis).values() for point, _ in line}
        )
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize="small", rotation=45)
        panel.minorticks_off()
    panels[0].set_ylabel("ms, modelled")
    panels[0].legend(fontsize="small")


def _sweep_points(values: Mapping[str, float], axis: str) -> dict[str, list[tuple[int, float]]]:
    points: dict[str, list[tuple[int, float]]] = {}
    for name, value in values.items():
        if name.startswith("sweep/"):
            _, mode, swept, point, _ = name.split("/")
            if swept == axis:
                points.setdefault(mode, []).append((int(point), value))
    return points


def flips(figure, values: Mapping[str, float]) -> None:
    """Draws shares of flipped decisions by format, on random and on real logits."""
    names = [name.split("/") for name in values if name.startswith("flips/")]
    formats = list(dict.fromkeys(words[1] for words in names))
    (model,) = {words[2] for words in names if len(words) == 4 and words[3] == "odds"}
    axes = figure.subplots()
    series = {
        "random logits": "flips/{}",
        "random logits, by odds (ours)": "flips/{}/odds",
        f"{model}'s logits": f"flips/{{}}/{model}",
        f"{model}'s logits, by odds (ours)": f"flips/{{}}/{model}/odds",
    }
    width = 0.8 / len(series)
    for place, (label, pattern) in enumerate(series.items()):
        heights = [100 * values[pattern.format(format)] for format in formats]
        middles = [i + (place - 1.5) * width for i in range(len(formats))]
        axes.bar(middles, heights, width, label=label)
    axes.set_xticks(range(len(formats)), formats)
    axes.set_ylabel("% of decisions flipped, measured")
    axes.legend(fontsize="small")


def _longest(values: Mapping[str, float]) -> int:
    names = [name.split("/")[0] for name in values if name.startswith("vlen")]
    return max(int(name.removeprefix("vlen")) for name in names)
