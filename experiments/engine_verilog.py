"""Writes the sampling engine as Verilog, with a testbench that checks it on random logits.

    python -m experiments.engine_verilog
    python -m experiments.engine_verilog vlen=32 mode=edge
    python -m experiments.engine_verilog rows=8 vocab=500

In the run folder, `iverilog -g2005 -o bench engine.v bench.v && ./bench` prints PASS or FAIL. If
Icarus Verilog is installed, this verb runs the testbench itself.
"""

import shutil
import subprocess
from dataclasses import dataclass

from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import require
from llada_jax.sampling_engine.cycles import time_program
from llada_jax.sampling_engine.hdl.verilog import verilog_files
from llada_jax.sampling_engine.host import prepare_machine, random_inputs, store_logits
from llada_jax.sampling_engine.sampler_program import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import EngineConfig, Mode, Sampling


@dataclass(frozen=True, kw_only=True)
class EngineVerilogConfig:
    """Settings of the verb; conf/engine_verilog.yaml explains each."""

    vlen: int = 8
    batch: int = 2
    rows: int = 4
    vocab: int = 100
    k: int = 2
    mode: Mode = "performance"
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.k <= self.rows, f"k is {self.k}; allowed: 0 to rows ({self.rows})")
        _ = time_program(self.program(), column="pipelined")  # refuses impossible hardware

    def program(self) -> SamplerProgram:
        sampling = Sampling(batch=self.batch, rows=self.rows, vocab=self.vocab, mode=self.mode)
        return compile_sampler(sampling, EngineConfig(vlen=self.vlen, fp_words=self.vlen + 1))


def engine_verilog(config: EngineVerilogConfig, run: Run) -> None:
    """Writes the files, and runs the testbench if Icarus Verilog is installed."""
    run.begin()
    program = config.program()
    inputs = random_inputs(config.seed, config.batch, config.rows, config.vocab, config.k)
    hbm = store_logits(program.sampling, config.vlen, inputs.logits, "mx_e4m3")
    files = verilog_files(program, prepare_machine(program, inputs, hbm))
    for name, text in files.items():
        run.write(name, text)
    lines = files["engine.v"].count("\n")
    rows = [ResultRow("verilog/lines", lines, "lines")]
    if shutil.which("iverilog") is not None:
        build = ["iverilog", "-g2005", "-o", "bench", "engine.v", "bench.v"]
        subprocess.run(build, cwd=run.folder, check=True)
        result = subprocess.run(
            ["./bench"], cwd=run.folder, check=True, capture_output=True, text=True
        )
        print(result.stdout, end="")
        rows.append(ResultRow("verilog/bench_passes", result.stdout.startswith("PASS"), "of 1"))
    run.finish(rows)


main = entry_point("engine_verilog", engine_verilog, EngineVerilogConfig)
