"""The sampling engine: time, traffic, gates, and the decisions that number formats flip.

    python -m experiments.sampling_engine
    python -m experiments.sampling_engine hardware=false
    python -m experiments.sampling_engine vlens=[256,4096] hardware=false

Times are modelled: the published latencies, and two constants of HBM that are fitted to two
published numbers; the rows say which. Decisions are measured on the functional machine, and gates
are counted; areas follow from them by one fitted factor.
"""

from itertools import chain, product

from tqdm import tqdm

import llada_jax as lj
from experiments.harness.questions import tokenizer_of
from experiments.harness.run import Run, entry_point
from experiments.sampling_engine.format_costs import answer_rows, flip_rows
from experiments.sampling_engine.hardware import hardware_rows
from experiments.sampling_engine.modelled import (
    MODES,
    ProgramsByCase,
    SamplingEngineConfig,
    modelled_rows,
)
from llada_jax.sampling_engine.instructions import render
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.sampling import EngineConfig


def sampling_engine(config: SamplingEngineConfig, run: Run) -> None:
    """Yields all rows, and writes the programs as text."""
    programs: ProgramsByCase = {
        (mode, vlen): compile_sampler(config.sampling(mode), EngineConfig(vlen=vlen))
        for mode, vlen in product(MODES, config.vlens)
    }
    _ = tokenizer_of(lj.load(config.flips.model))  # which checks it
    run.begin()
    longest = config.vlens[-1]
    for mode in MODES:
        run.write(f"{mode}.asm", render(programs[mode, longest].instructions))
    answers, formats = config.answers, config.flips.formats
    parts = (
        modelled_rows(config, programs),
        flip_rows(config.flips, config.vocab, config.rows, longest, config.seed),
        answer_rows(answers, formats, config.seed) if answers.items else (),
        hardware_rows() if config.hardware else (),
    )
    shown = tqdm(chain.from_iterable(parts), desc="sampling engine", unit="row")
    run.finish(run.recorded(shown))


main = entry_point("sampling_engine", sampling_engine, SamplingEngineConfig)
