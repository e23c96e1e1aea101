"""A decoding run as one HTML page that replays it: no server, no network, nothing to install."""

import json
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from llada_jax import atomic
from llada_jax.config import require

_FOLDER = Path(__file__).parent
_SCRIPTS = ("replay", "canvas", "history", "inspector", "phone", "controls")
_HEIGHT = 760
"""Pixels of a page in a notebook."""


@dataclass(frozen=True)
class Page:
    """A page of its own: a notebook shows it, `save` writes it, a browser opens it."""

    html: str

    def __repr__(self) -> str:
        """Names the page in one line."""
        return f"Page({len(self.html.encode()):,} bytes of HTML)"

    def _repr_html_(self) -> str:
        """Returns the page in a frame, which reaches nothing outside of it."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the file, whole or not at all."""
        atomic.write_text(path, self.html)

    def show(self, path: str | PathLike[str] | None = None) -> "Page":
        """Writes the page to `path`, by default a temporary file, and opens it in a browser; a
        notebook shows it by itself. Returns the page."""
        if path is not None:
            self.save(path)
        elif "ipykernel" not in sys.modules:
            path = Path(tempfile.mkdtemp(prefix="llada_jax-")) / "run.html"
            self.save(path)
            webbrowser.open(path.as_uri())
        return self


def page_of(runs: Sequence[Mapping[str, Any]]) -> Page:
    """Returns the page of one or two runs, side by side.

    Args:
      runs: each what `llada_jax.sampler.replay` gives, with `phones`, what `phone_timeline` gives.

    Raises ValueError for another number of runs.
    """
    require(len(runs) in (1, 2), f"{len(runs)} runs; allowed: one, or two side by side")
    data = json.dumps({"runs": runs}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    page = _text("page.html")
    for mark, content in {
        "/*STYLE*/": _text("page.css"),
        "/*SCRIPT*/": "\n".join(_text(f"{name}.js") for name in _SCRIPTS),
        "/*DATA*/": data.replace("<", "\\u003c"),  # no token ends the script, or begins a comment
    }.items():
        page = page.replace(mark, content)
    return Page(page)


def phone_timeline(run: Any) -> dict[str, Any]:
    """Returns what a page shows of a run on a phone (`llada_jax.phone.phone.ModelledRun`), as plain
    JSON: each kind of forward with its tasks (name, lane, start and length in ms), and the kind of
    each forward in order."""
    numbers = {forward: number for number, forward in enumerate(run.steps)}
    kinds = [
        {
            "seconds": step.seconds,
            "tasks": [
                [each.task.name, each.task.lane, *(round(1e3 * t, 3) for t in _span(each))]
                for each in step.events
                if each.end > each.start
            ],
        }
        for step in run.steps.values()
    ]
    return {
        "name": f"{run.soc}, {run.shape}",
        "interval": list(run.interval),
        "source": run.source,
        "kinds": kinds,
        "order": [numbers[forward] for forward in run.workload.forwards],
    }


def _span(event: Any) -> tuple[float, float]:
    return event.start, event.end - event.start


def _text(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")
