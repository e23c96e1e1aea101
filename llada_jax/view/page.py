"""Builds an HTML page that replays decoding runs, without a server, network or installation."""

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
    """A self-contained page: a notebook displays it, `show` writes it or opens it in a browser."""

    html: str

    def __repr__(self) -> str:
        return f"Page({len(self.html.encode()):,} bytes of HTML)"

    def _repr_html_(self) -> str:
        """Returns the page in a frame without access to the notebook."""
        return _FRAME.format(escape(self.html)) + "</iframe>"

    def show(self, path: str | PathLike[str] | None = None) -> "Page":
        """Writes the page to `path` atomically. Without a path, opens it in a browser; does nothing
        in a notebook, which displays the returned page."""
        if path is not None:
            atomic.write_text(path, self.html)
        elif not _in_a_notebook():
            file = Path(tempfile.mkdtemp(prefix="llada_jax-")) / "run.html"
            self.show(file)
            webbrowser.open(file.as_uri())
        return self


def _in_a_notebook() -> bool:
    """Whether a kernel runs this code. It is not enough that IPython is imported, which tools that
    start kernels do as well."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def page_of(runs: Sequence[Mapping[str, Any]]) -> Page:
    """Returns the page for one run, or for two runs side by side.

    Args:
      runs: Results of `llada_jax.sampler.replay`; `phones` may be results of `phone_timeline`.

    Raises ValueError for another number of runs.
    """
    require(len(runs) in (1, 2), f"{len(runs)} runs; allowed: one, or two side by side")
    data = json.dumps({"runs": runs}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    title = " · ".join(dict.fromkeys(run["title"] for run in runs))
    # Escaped, so that no token can end the script or begin a comment.
    return Page(render_template("page.html", title=title, data=data.replace("<", "\\u003c")))


def phone_timeline(run: Any) -> dict[str, Any]:
    """Returns a run on a phone (`llada_jax.phones.phone.ModelledRun`) as plain JSON for a page.

    Each kind of forward pass has its tasks (name, lane, start and duration in ms), and `order`
    lists the kind of each pass.
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


def render_template(name: str, **values: Any) -> str:
    """Renders a template in this folder; values are escaped unless the template marks them safe."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    ).get_template(name).render(values)  # fmt: skip
