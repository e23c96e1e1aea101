"""What a checkpoint is: family, shape, bytes, ids, block, decoders, and what is missing.

    python -m experiments.inspect
    python -m experiments.inspect model=path/to/folder
    python -m experiments.inspect model=path/to/folder family=llada ignore_keys=[new_key]

No weight is read, and `config.json` is enough. What does not load is refused in one sentence.
"""

from dataclasses import dataclass

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """What is looked at. The comments are in conf/inspect.yaml."""

    model: str = "tiny"
    family: str | None = None
    ignore_keys: tuple[str, ...] = ()


def inspect(config: InspectConfig, run: Run) -> None:
    """Describes a checkpoint, on the screen and in the run's folder."""
    found = lj.describe(config.model, family=config.family, ignore_keys=config.ignore_keys)
    run.begin()
    run.write("description.txt", f"{found}\n")
    sizes = {"parameters": found.parameters, "bytes": found.bytes}
    rows = [
        ResultRow(name=k, value=v, unit=k, kind="measured")
        for k, v in sizes.items()
        if v is not None
    ]
    run.finish(rows, shown=str(found))


main = entry_point("inspect", inspect, InspectConfig)
