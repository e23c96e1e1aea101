"""A timeline as a Chrome trace: JSON that Perfetto (ui.perfetto.dev) opens."""

import json
from os import PathLike
from typing import Any

from llada_jax import atomic
from llada_jax.phone.timeline import LANES, Timeline

_PROCESS = 1
_TITLES = {"npu": "NPU", "staging": "Staging", "cpu": "CPU (head, revision)"}


def chrome_trace(timeline: Timeline, title: str) -> dict[str, Any]:
    """Returns the trace as data: a complete event for each task, times in microseconds.

    Tasks without length are left out: they say nothing in a picture.
    """
    names = [_metadata("process_name", 0, name=title)]
    for number, lane in enumerate(LANES, start=1):
        names.append(_metadata("thread_name", number, name=_TITLES[lane]))
        names.append(_metadata("thread_sort_index", number, sort_index=number))
    events = [
        {
            "name": event.task.name,
            "cat": event.task.lane,
            "ph": "X",
            "ts": round(event.start * 1e6, 3),
            "dur": round((event.end - event.start) * 1e6, 3),
            "pid": _PROCESS,
            "tid": 1 + LANES.index(event.task.lane),
            "args": {
                "waited_ms": round(event.waited * 1e3, 3),
                "slowed_ms": round(event.slowed * 1e3, 3),
                **{f"{name}_ms": round(s * 1e3, 3) for name, s in event.task.parts.items()},
            },
        }
        for event in timeline.events
        if event.end > event.start
    ]
    return {
        "traceEvents": [*names, *events],
        "displayTimeUnit": "ms",
        "otherData": {"kind": "modelled"},
    }


def _metadata(what: str, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": thread, "args": arguments}


def write_chrome_trace(timeline: Timeline, title: str, path: str | PathLike[str]) -> None:
    """Writes the file, whole or not at all."""
    atomic.write_text(path, json.dumps(chrome_trace(timeline, title)))
