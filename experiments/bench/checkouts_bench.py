"""The suite `checkouts`: the default rules of this checkout, against those of another one.

A process for each checkout loads the bundled model and decodes when it is told to. The two take
turns, setting by setting, so that a busy moment hits both.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from experiments.bench.decoding_process import DecodingProcess
from experiments.harness.results import ResultRow
from llada_jax.config import require, require_counts

_HERE = Path(__file__).parents[2]
_SHAPE = {"gen_length": 64, "block_length": 32, "steps": 64, "cache": "blockwise"}
SETTINGS = {
    f"{rule}_{loop}": {**_SHAPE, **numbers, "loop": loop}
    for rule, numbers in {"quota": {}, "threshold": {"threshold": 0.9}}.items()
    for loop in ("compiled", "host")
}


@dataclass(frozen=True, kw_only=True)
class CheckoutsBenchConfig:
    """What the suite times. The comments are in conf/bench.yaml."""

    against: str | None = None
    turns: int = 30

    def __post_init__(self) -> None:
        require_counts(self, "turns", least=2)


def time_checkouts(model: str, config: CheckoutsBenchConfig) -> Iterator[ResultRow]:
    """Returns the rows of the suite. Raises ValueError where there is no other checkout."""
    other = config.against and Path(config.against).resolve()
    require(
        bool(other) and (Path(other or "") / "llada_jax" / "__init__.py").is_file(),
        f"checkouts.against is {config.against!r}; allowed: the folder of a checkout of llada_jax",
    )
    assert other
    return _rows(model, {"this": _HERE, "other": other}, config.turns)


def _rows(model: str, folders: dict[str, Path], turns: int) -> Iterator[ResultRow]:
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(DecodingProcess(model, folder))
            for name, folder in folders.items()
        }
        for setting, told in tqdm(SETTINGS.items(), unit="setting"):
            for child in children.values():
                child.decode(told)  # compiles
            times: dict[str, list[float]] = {name: [] for name in children}
            for turn in range(turns):
                order = list(children) if turn % 2 else list(children)[::-1]
                for name in order:
                    times[name].append(children[name].decode(told))
            yield from _compared(setting, times)


def _compared(setting: str, times: dict[str, list[float]]) -> Iterator[ResultRow]:
    for name, values in times.items():
        prefix = f"checkouts/{setting}/{name}"
        yield ResultRow(f"{prefix}/best", min(values), "ms/forward")
        yield ResultRow(f"{prefix}/median", statistics.median(values), "ms/forward")
    pairs = zip(times["other"], times["this"], strict=True)
    ratios = statistics.quantiles([other / this for other, this in pairs], n=4)
    for name, ratio in zip(("lower_quartile", "median", "upper_quartile"), ratios, strict=True):
        yield ResultRow(f"checkouts/{setting}/speed/{name}", ratio, "x the other's")
    best = min(times["other"]) / min(times["this"])
    yield ResultRow(f"checkouts/{setting}/speed/best", best, "x the other's")
