"""Pictures of the sampling engine's results, from the rows alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.harness.pictures import figure, save
from experiments.harness.results import ResultRow

UNITS = ("vector", "memory", "scalar", "control")
OTHERS = ("edge", "one_pass", "one_pass_overlapped")
"""Programs whose rows have the mode in front; those of `performance` have none."""
AXES = {
    "batch": "blocks at once",
    "block": "positions of a block",
    "vocab": "vocabulary",
    "vlen": "VLEN",
    "chunk": "vector rows of a chunk",
}


def draw(rows: Sequence[ResultRow], folder: Path) -> None:
    """Draws `latency.png`, `breakdown.png`, `sweeps.png` and `flips.png` in the run's folder."""
    values = {row.name: row.value for row in rows}
    pictures = {latency: (7, 4), breakdown: (7, 4), sweeps: (13, 3.2), flips: (6, 3.5)}
    for picture, size in pictures.items():
        drawn = figure(*size)
        picture(drawn, values)
        save(drawn, folder / f"{picture.__name__}.png")


def latency(drawn, values: Mapping[str, float]) -> None:
    """Draws every program and both GPU baselines, at the longest vectors."""
    vlen = _longest(values)
    bars = {"performance (published)": values[f"vlen{vlen}/latency_ms"]}
    bars |= {mode: values[f"{mode}/vlen{vlen}/latency_ms"] for mode in OTHERS}
    bars |= {
        " ".join(name.split("/")[1:3]): ms for name, ms in values.items() if name.startswith("gpu/")
    }
    axes = drawn.subplots()
    axes.barh([name.replace("_", " ") for name in bars], list(bars.values()))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(f"ms for one step, modelled (engine: VLEN = {vlen}; GPUs: rooflines)")
    for place, value in enumerate(bars.values()):
        axes.text(value, place, f" {value:.2f}", va="center")


def breakdown(drawn, values: Mapping[str, float]) -> None:
    """Draws where the cycles go, for each program."""
    vlen = _longest(values)
    prefixes = {"performance": f"vlen{vlen}", **{mode: f"{mode}/vlen{vlen}" for mode in OTHERS}}
    shown = {mode: p for mode, p in prefixes.items() if f"{p}/vector_cycles" in values}
    axes = drawn.subplots()
    left = [0.0] * len(shown)
    for unit in UNITS:
        widths = [values[f"{prefix}/{unit}_cycles"] / 1e3 for prefix in shown.values()]
        axes.barh(list(shown), widths, left=left, label=unit)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel(f"thousand cycles at VLEN = {vlen}, modelled")
    axes.legend()


def sweeps(drawn, values: Mapping[str, float]) -> None:
    """Draws one axis a panel, one line a program."""
    panels = drawn.subplots(1, len(AXES), sharey=True)
    for panel, (axis, label) in zip(panels, AXES.items(), strict=True):
        ticks: list[int] = []
        for mode in ("performance", *OTHERS):
            prefix = f"sweep/{mode}/{axis}/"
            ms = {int(n.split("/")[3]): v for n, v in values.items() if n.startswith(prefix)}
            ticks = sorted(ms)
            panel.plot(
                ticks, [ms[tick] for tick in ticks], marker="o", label=mode.replace("_", " ")
            )
        panel.set(xlabel=label, xscale="log", yscale="log")
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize="small", rotation=45)
        panel.minorticks_off()
    panels[0].set_ylabel("ms, modelled")
    panels[0].legend(fontsize="small")


def flips(drawn, values: Mapping[str, float]) -> None:
    """Draws shares of flipped decisions by format, on random and on real logits."""
    names = [name.split("/") for name in values if name.startswith("flips/")]
    formats = list(dict.fromkeys(words[1] for words in names))
    (model,) = {words[2] for words in names if len(words) == 4 and words[3] == "odds"}
    axes = drawn.subplots()
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
