"""Counters in Prometheus's text format."""

import threading
from collections import Counter
from collections.abc import Mapping


class Metrics:
    """Counts by name and labels; safe in threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Adds to a counter."""
        inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
        with self._lock:
            self._counts[f"llada_{name}{{{inside}}}" if inside else f"llada_{name}"] += amount  # pyright: ignore

    def text(self, gauges: Mapping[str, float]) -> str:
        """Returns all counters, and gauges by name."""
        with self._lock:
            counts = dict(self._counts)
        lines, named = [], ""
        for key, value in sorted(counts.items()):
            if (name := key.partition("{")[0]) != named:
                lines.append(f"# TYPE {name} counter")
                named = name
            lines.append(f"{key} {value:g}")
        for name, value in gauges.items():
            lines += [f"# TYPE llada_{name} gauge", f"llada_{name} {value:g}"]
        return "\n".join(lines) + "\n"
