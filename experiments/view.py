"""Writes a page that replays a run, and an animated picture. Neither needs a server or a network.

    python -m experiments.view run=outputs/generate/2030-01-01/12-00-00
    python -m experiments.view run=a beside=b phones=[SM8750] browser=false
    python -m experiments.view run=a/trace.npz shape=llama32_1b row=0

The run folder gets `page.html`, and `canvas.svg`, an animation of the canvas. The page shows the
predictions of each forward if the run kept its scores, as `experiments.generate` does.
"""

import os
import webbrowser
from dataclasses import dataclass
from pathlib import Path

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import require
from llada_jax.phones.profile import load_profile
from llada_jax.sampler.replay import replay
from llada_jax.view.animation import animated_svg
from llada_jax.view.page import page_of, phone_timeline


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """Settings of the verb; conf/view.yaml explains each."""

    run: str
    beside: str | None = None
    row: int = 0
    phones: tuple[str, ...] = ()
    shape: str = "llada_8b"
    browser: bool = True

    def __post_init__(self) -> None:
        for soc in self.phones:
            load_profile(soc)


def view(config: ViewConfig, run: Run) -> None:
    """Writes the page, and opens it."""
    runs = [_replay(name, config) for name in (config.run, config.beside) if name is not None]
    page, path = page_of(runs), run.folder / "page.html"
    run.begin()
    page.show(path)
    run.write("canvas.svg", animated_svg(runs))
    forwards = [
        ResultRow(f"{name}/forwards", len(data["events"]), "forwards")
        for name, data in zip(("run", "beside"), runs, strict=False)
    ]
    run.finish([*forwards, ResultRow("page", len(page.html.encode()), "bytes")])
    opened = config.browser and webbrowser.open(path.resolve().as_uri())
    print(f"\n{'opened' if opened else 'open'} {os.path.relpath(path)}")


def _replay(name: str, config: ViewConfig) -> dict:
    path = Path(name)
    file = path / "trace.npz" if path.is_dir() else path
    require(file.is_file(), f"{path} has no trace.npz; allowed: the folder of a run that keeps its "
            "trace (experiments.generate), or the file of a trace")  # fmt: skip
    trace = lj.Trace.load(file)
    timed = [lj.phone(soc).time(trace, config.shape, row=config.row) for soc in config.phones]
    phones = [phone_timeline(modelled) for modelled in timed]
    return replay(trace, config.row) | {"phones": phones, "title": file.resolve().parent.name}


main = entry_point("view", view, ViewConfig)
