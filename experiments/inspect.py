"""Describes a checkpoint: family, shape, bytes, token ids, block, decoders, missing files.

    python -m experiments.inspect
    python -m experiments.inspect model=path/to/folder
    python -m experiments.inspect model=path/to/folder family=llada ignore_keys=[new_key]

No weights are read, and `config.json` is enough. A checkpoint that cannot be loaded is refused with
one sentence.
"""

from dataclasses import dataclass

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Settings of the verb; conf/inspect.yaml explains each."""

    model: str = "tiny"
    family: str | None = None
    ignore_keys: tuple[str, ...] = ()


def inspect(config: InspectConfig, run: Run) -> None:
    """Describes a checkpoint, on the screen and in the run's folder."""
    description = lj.describe(config.model, family=config.family, ignore_keys=config.ignore_keys)
    run.begin()
    run.write("description.txt", f"{description}\n")
    sizes = {"parameters": description.parameters, "bytes": description.bytes}
    rows = [
        ResultRow(name=k, value=v, unit=k, kind="measured")
        for k, v in sizes.items()
        if v is not None
    ]
    run.finish(rows, shown=str(description))


main = entry_point("inspect", inspect, InspectConfig)
