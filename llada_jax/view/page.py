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

from llada_jax.config import require
from llada_jax.io import atomic

_FRAME = '<iframe srcdoc="{}" sandbox="allow-scripts" style="width:100%;height:760px;border:0">'


@dataclass(frozen=True)
class Page:
    """A page of its own: a notebook shows it, `show` writes it or opens it in a browser."""

    html: str

    def __repr__(self) -> str:
        """Names the page in one line."""
        return f"Page({len(self.html.encode()):,} bytes of HTML)"

    def _repr_html_(self) -> str:
        """Returns the page in a frame, which reaches nothing outside of it."""
        return _FRAME.format(escape(self.html)) + "</iframe>"

    def show(self, path: str | PathLike[str] | None = None) -> "Page":
        """Writes the page to `path`, whole or not at all; without one, opens it in a browser, or
        leaves it to the notebook, which shows it by itself. Returns the page."""
        if path is not None:
            atomic.write_text(path, self.html)
        elif not _in_a_notebook():
            file = Path(tempfile.mkdtemp(prefix="llada_jax-")) / "run.html"
            self.show(file)
            webbrowser.open(file.as_uri())
        return self


def _in_a_notebook() -> bool:
    """Whether a kernel runs this code: tools that start kernels import its packages, too."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def page_of(runs: Sequence[Mapping[str, Any]]) -> Page:
    """Returns the page of one or two runs, side by side.

    Args:
      runs: each what `llada_jax.sampler.replay` gives, with `phones`, what `phone_timeline` gives.

    Raises ValueError for another number of runs.
    """
    require(len(runs) in (1, 2), f"{len(runs)} runs; allowed: one, or two side by side")
    data = json.dumps({"runs": runs}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # No token ends the script, or begins a comment.
    title = " · ".join(dict.fromkeys(run["title"] for run in runs))
    return Page(filled("page.html", title=title, data=data.replace("<", "\\u003c")))


def phone_timeline(run: Any) -> dict[str, Any]:
    """Returns a run on a phone (`llada_jax.phones.phone.ModelledRun`) as plain JSON for a page.

    Each kind of forward has its tasks (name, lane, start and length in ms), and `forwards` lists
    the kind of each forward in order.
    """
    numbers = {forward: number for number, forward in enumerate(run.steps)}

    def task(event: Any) -> list[Any]:
        times = (1e3 * event.start, 1e3 * (event.end - event.start))
        return [event.task.name, event.task.lane, *(round(time, 3) for time in times)]

    return {
        "name": f"{run.soc}, {run.shape}",
        "seconds": run.seconds,
        "interval": run.interval,
        "kinds": [
            {"seconds": step.seconds, "tasks": [task(e) for e in step.events if e.end > e.start]}
            for step in run.steps.values()
        ],
        "order": [numbers[forward] for forward in run.workload.forwards],
    }


def filled(name: str, **values: Any) -> str:
    """Returns the text of a template of this folder; it says where values are not escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    ).get_template(name).render(values)  # fmt: skip
