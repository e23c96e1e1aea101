"""Draws the experts' results from the rows alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.harness.pictures import figure, save
from experiments.harness.results import ResultRow

SHOWN = ("ktransformers", "tide", "lru", "hybrimoe", "denoising", "oracle", "bound")


def draw_pictures(rows: Sequence[ResultRow], folder: Path) -> None:
    """Writes `ablation.png` and one `<model>_<soc>.png` for each phone, as far as rows go."""
    values = {row.name: row for row in rows}
    if _compared(values):
        drawn = figure(9, 3.5)
        draw_ablation(values, drawn)
        save(drawn, folder / "ablation.png")
    cells = {tuple(name.split("/")[:2]) for name in values if name.endswith("/bound/hit_rate")}
    for model, soc in sorted(cells):
        drawn = figure(11, 3.5)
        draw_phone(values, model, soc, drawn)
        save(drawn, folder / f"{model}_{soc}.png")


def _compared(values: Mapping[str, ResultRow]) -> list[str]:
    """Returns the names of speedups that the paper has too."""
    published = [name for name, row in values.items() if row.reference is not None]
    return [name for name in published if values[name].unit == "x faster"]


def draw_ablation(values: Mapping[str, ResultRow], drawn) -> None:
    """Draws predicted and published speedups, side by side."""
    names = _compared(values)
    axes = drawn.subplots()
    places = range(len(names))
    predicted = [values[name].value for name in names]
    published = [values[name].reference or 0 for name in names]
    axes.bar([p - 0.2 for p in places], predicted, 0.4, label="predicted")
    axes.bar([p + 0.2 for p in places], published, 0.4, label="published")
    labels = [name.removeprefix("qwen2_25/") for name in names]
    axes.set_xticks(list(places), labels, rotation=30, ha="right")
    axes.set_ylabel("times faster than kTransformers")
    axes.legend()


def draw_phone(values: Mapping[str, ResultRow], model: str, soc: str, drawn) -> None:
    """Draws tokens per second by cache size, with the CPU and without it."""
    ratios = sorted({int(n.split("/")[2]) for n in values if n.startswith(f"{model}/{soc}/")})
    for axes, part, title in zip(
        drawn.subplots(1, 2, sharey=True), ("", "npu_only/"), ("NPU and CPU", "NPU only"),
        strict=True,
    ):  # fmt: skip
        for policy in SHOWN:
            cells = [f"{model}/{soc}/{r}/{part}{policy}/tokens_per_second" for r in ratios]
            if all(cell in values for cell in cells):
                style = "k--" if policy == "bound" else f"C{SHOWN.index(policy)}o-"
                axes.plot(ratios, [values[cell].value for cell in cells], style, label=policy)
        axes.set_title(f"{model} on {soc}: {title}")
        axes.set_xlabel("experts in the NPU's memory (%)")
        axes.legend(fontsize=8)
    drawn.axes[0].set_ylabel("tokens/s (modelled)")
