"""The sampling engine: time, traffic, area, and the decisions that number formats flip.

    python -m experiments.sampling_engine
    python -m experiments.sampling_engine hardware=false
    python -m experiments.sampling_engine vlens=[256,4096] hardware=false

Times are modelled: the published latencies, and two constants of HBM that are fitted to two
published numbers; the rows say which. Decisions are measured on the functional machine, and gates
by synthesis.
"""

import time
from collections.abc import Iterator
from itertools import chain, product

from tqdm import tqdm

from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.sampling_engine.flips import flip_rows, load_model
from experiments.sampling_engine.format_costs import answer_rows
from experiments.sampling_engine.hardware import hardware_rows, require_hardware_tools
from experiments.sampling_engine.modelled import (
    ENOUGH_MEMORY,
    MODES,
    ProgramsByCase,
    SamplingEngineConfig,
    modelled_rows,
)
from llada_jax.sampling_engine.agreement import flips_of, random_inputs
from llada_jax.sampling_engine.host import run_sampler, store_logits
from llada_jax.sampling_engine.instructions import render
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.reference import reference_sampler


def sampling_engine(config: SamplingEngineConfig, run: Run) -> None:
    """Yields all rows, and writes the programs as text."""
    programs: ProgramsByCase = {
        (mode, vlen): compile_sampler(config.sampling(mode), EngineConfig(vlen=vlen))
        for mode, vlen in product(MODES, config.vlens)
    }
    if config.hardware:
        require_hardware_tools()
    _ = load_model(config.flips)  # which checks it
    run.begin()
    for mode in MODES:
        run.write(f"{mode}.asm", render(programs[mode, config.vlens[-1]].instructions))
    parts = (
        modelled_rows(config, programs),
        flip_rows(config.flips, config.vocab, config.rows, config.vlens, config.seed),
        answer_rows(config.answers, config.flips.formats, config.seed)
        if config.answers.items
        else (),
        machine_rows(config) if config.full_size else (),
        hardware_rows(config.seed) if config.hardware else (),
    )
    shown = tqdm(chain.from_iterable(parts), desc="sampling engine", unit="row")
    run.finish(run.recorded(shown))


def machine_rows(config: SamplingEngineConfig) -> Iterator[ResultRow]:
    """Yields the functional machine at full size: its time, and its decisions in float32."""
    inputs = random_inputs(
        config.seed, 1, config.batch, config.rows, config.vocab, config.rows // 4
    )
    vlen = config.vlens[-1]
    program = compile_sampler(config.sampling(), EngineConfig(vlen=vlen))
    hbm = store_logits(program.sampling, vlen, inputs.logits, "mx_e4m3")
    began, used = time.perf_counter(), time.process_time()
    run_sampler(program, inputs, hbm)
    yield ResultRow("machine/full_size_s", time.perf_counter() - began, "s")
    yield ResultRow("machine/full_size_cpu_s", time.process_time() - used, "s")
    exact = EngineConfig(vlen=vlen, vector_format="float32", vector_bytes=ENOUGH_MEMORY)
    wanted = reference_sampler(program.sampling, inputs)
    hbm = store_logits(program.sampling, vlen, inputs.logits, "float32")
    for mode in ("performance", "one_pass"):
        flips = flips_of(compile_sampler(config.sampling(mode), exact), inputs, hbm, wanted)
        yield ResultRow(
            f"machine/exact/{mode}/flips", flips.share, "of decisions", n=flips.positions
        )


main = entry_point("sampling_engine", sampling_engine, SamplingEngineConfig)
