"""What a multi-block window may grow to: milliseconds by rows, on a phone (modelled) or here.

    python -m experiments.latency_table phone=SM8750 rows=[32,64,128]
    python -m experiments.latency_table phone=null backend=litert model=path/to/folder
    python -m experiments.generate sampler=llada_cpp $(cat outputs/latency_table/.../overrides.txt)

The run folder gets, besides what every run writes, `overrides.txt`: the table and, of a phone, the
budget of rows, as settings of a sampler on the command line of any experiment that decodes.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import llada_jax as lj
from experiments.harness.results import Kind, ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import LatencyTable, Quant, ascending_counts, require_choice
from llada_jax.model.architecture import architecture
from llada_jax.phone.profile import load_profile
from llada_jax.phone.system import System

MeasuredOn = Literal["xla", "litert"]
"""Backends whose time is this machine's own, not an emulator's."""


@dataclass(frozen=True, kw_only=True)
class LatencyTableConfig:
    """What is timed, and where. The comments are in conf/latency_table.yaml."""

    rows: tuple[int, ...]
    canvas: int = 256
    phone: str | None = None
    shape: str = "llada_8b"
    quant: Quant = "int4_block32"
    system: System = field(default_factory=System)
    model: str = "tiny"
    dtype: str | None = None
    backend: MeasuredOn = "xla"
    repeats: int = 10

    def __post_init__(self) -> None:
        ascending_counts("rows", self.rows)
        require_choice("quant", self.quant, Quant)
        require_choice("backend", self.backend, MeasuredOn)
        if self.phone is not None:
            _ = load_profile(self.phone), architecture(self.shape)


class Growth(NamedTuple):
    """What a sampler is told of the machine."""

    table: LatencyTable
    budget: int | None
    kind: Kind

    @property
    def overrides(self) -> str:
        """Settings of a sampler, without quotes and spaces, so that a shell passes them on."""
        rows = ",".join(map(str, self.table.rows))
        ms = ",".join(f"{each:.4g}" for each in self.table.ms)
        table = f"sampler.latency_table={{rows:[{rows}],ms:[{ms}]}}"
        return table if self.budget is None else f"{table} sampler.row_budget={self.budget}"


def tabulate(config: LatencyTableConfig, run: Run) -> None:
    """Times every bucket, prints the table, and says how to use it."""
    found = measured(config) if config.phone is None else modelled(config, config.phone)
    run.begin()
    run.write("overrides.txt", found.overrides + "\n")
    rows = [
        ResultRow(name=f"latency_table/rows{n}", value=ms, unit="ms", kind=found.kind)
        for n, ms in zip(found.table.rows, found.table.ms, strict=True)
    ]
    if found.budget is not None:
        rows.append(ResultRow(name="row_budget", value=found.budget, unit="rows", kind=found.kind))
    run.finish(rows)
    print(f"\n{found.overrides}")


def modelled(config: LatencyTableConfig, soc: str) -> Growth:
    """Models the table and the budget of a phone."""
    phone = lj.Phone(load_profile(soc), config.system, config.quant)
    table = phone.latency_table(config.shape, config.rows, canvas=config.canvas)
    return Growth(table, phone.row_budget(config.shape, canvas=config.canvas), "modelled")


def measured(config: LatencyTableConfig) -> Growth:
    """Measures the table on this machine, which says nothing of a budget."""
    table = lj.latency_table(
        lj.load(config.model, config.dtype),
        config.rows,
        canvas=config.canvas,
        backend=config.backend,
        repeats=config.repeats,
    )
    return Growth(table, None, "measured")


main = entry_point("latency_table", tabulate, LatencyTableConfig)
