"""What a multi-block window may grow to: milliseconds by rows, on a phone (modelled) or here.

    python -m experiments.latency_table phone=SM8750 rows=[32,64,128]
    python -m experiments.latency_table phone=null model=small
    python -m experiments.latency_table phone=null backend=litert model=path/to/folder
    python -m experiments.generate sampler=llada_cpp $(cat outputs/latency_table/.../overrides.txt)

The run folder gets, besides what every run writes, `overrides.txt`: the table and, of a phone, the
budget of rows, as settings of a sampler on the command line of any experiment that decodes.
"""

from dataclasses import dataclass, field
from typing import Literal

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


def tabulate(config: LatencyTableConfig, run: Run) -> None:
    """Times every bucket, prints the table, and says how to use it."""
    kind: Kind = "measured" if config.phone is None else "modelled"
    table, budget = timed(config, run)
    run.begin()
    settings = overrides(table, budget)
    run.write("overrides.txt", settings + "\n")
    rows = [
        ResultRow(name=f"latency_table/rows{n}", value=ms, unit="ms", kind=kind)
        for n, ms in zip(table.rows, table.ms, strict=True)
    ]
    if budget is not None:
        rows.append(ResultRow(name="row_budget", value=budget, unit="rows", kind=kind))
    run.finish(rows)
    print(f"\n{settings}")


def overrides(table: LatencyTable, budget: int | None) -> str:
    """Returns settings of a sampler, without quotes and spaces, so that a shell passes them on."""
    rows = ",".join(map(str, table.rows))
    ms = ",".join(f"{each:.4g}" for each in table.ms)
    setting = f"sampler.latency_table={{rows:[{rows}],ms:[{ms}]}}"
    return setting if budget is None else f"{setting} sampler.row_budget={budget}"


def timed(config: LatencyTableConfig, run: Run) -> tuple[LatencyTable, int | None]:
    """Models the table and the budget of rows of a phone, or measures the table here."""
    rows, canvas = config.rows, config.canvas
    if config.phone is None:
        model = run.of(lj.load(config.model, config.dtype))
        table = lj.latency_table(
            model, rows, canvas=canvas, backend=config.backend, repeats=config.repeats
        )
        return table, None
    phone = lj.Phone(load_profile(config.phone), config.system, config.quant)
    table = phone.latency_table(config.shape, rows, canvas=canvas)
    return table, phone.row_budget(config.shape, canvas=canvas)


main = entry_point("latency_table", tabulate, LatencyTableConfig)
