"""Counters and gauges in Prometheus's text format."""

import threading
from collections import Counter
from collections.abc import Mapping


class Metrics:
    """Counters by name and labels, which any thread may add to."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Adds to the counter `llada_<name>` with these labels."""
        label_text = ",".join(f'{key}="{value}"' for key, value in labels.items())
        counter = f"llada_{name}{{{label_text}}}" if label_text else f"llada_{name}"
        with self._lock:
            self._counts[counter] += amount  # pyright: ignore[reportArgumentType]

    def text(self, gauges: Mapping[str, float]) -> str:
        """Returns the text of all counters, and of the current `gauges` by name."""
        with self._lock:
            counts = dict(self._counts)
        lines, last_name = [], ""
        for key, value in sorted(counts.items()):
            if (name := key.partition("{")[0]) != last_name:
                lines.append(f"# TYPE {name} counter")
                last_name = name
            lines.append(f"{key} {value:g}")
        for name, value in gauges.items():
            lines += [f"# TYPE llada_{name} gauge", f"llada_{name} {value:g}"]
        return "\n".join(lines) + "\n"
