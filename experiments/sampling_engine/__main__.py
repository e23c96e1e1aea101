"""Evaluates the sampling engine: time, traffic, gates, and decisions changed by number formats.

    python -m experiments.sampling_engine
    python -m experiments.sampling_engine hardware=false
    python -m experiments.sampling_engine vlens=[256,4096] hardware=false

Times are modelled from the published latencies and two constants of the HBM, which are fitted to
two published numbers, marked in the rows. Decisions are measured on the functional simulator. Gates
are counted; areas are their number times one fitted factor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

from tqdm import tqdm

import llada_jax as lj
from experiments.harness.questions import tokenizer_of
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from experiments.sampling_engine.format_costs import (
    AnswersConfig,
    FlipsConfig,
    answer_rows,
    flip_rows,
)
from experiments.sampling_engine.hardware import hardware_rows
from llada_jax.config import require
from llada_jax.experts.shapes import LLADA_MOE
from llada_jax.model.architecture import architecture
from llada_jax.model.architecture.parameters import body_matrices, head_weights
from llada_jax.sampling_engine import paper_results as paper
from llada_jax.sampling_engine.cycles import FITTED_TO, fitted_hbm, time_program
from llada_jax.sampling_engine.instructions import render
from llada_jax.sampling_engine.sampler_program import SamplerProgram, compile_sampler
from llada_jax.sampling_engine.sampling import MODES, EngineConfig, Mode, Sampling

TABLE = f"{paper.PAPER}, table of results"
BATCHES, BLOCKS = (1, 2, 4, 8, 16, 32), (8, 16, 32, 64)
"""Batch sizes and block lengths of the paper's GPU measurements."""
A6000_FLOPS = 155e12
"""BF16 in tensor cores, from NVIDIA's data sheet."""
PEAK_SHARE, MOE_VOCAB = 0.7, 157_184


@dataclass(frozen=True, kw_only=True)
class SamplingEngineConfig:
    """Settings of the verb; conf/sampling_engine.yaml explains each."""

    batch: int = paper.BATCH
    rows: int = paper.ROWS
    vocab: int = paper.VOCAB
    vlens: tuple[int, ...] = (512, 1024, 2048)
    chunk_rows: int = 4
    flips: FlipsConfig = field(default_factory=FlipsConfig)
    answers: AnswersConfig = field(default_factory=AnswersConfig)
    seed: int = 0
    hardware: bool = True

    def __post_init__(self) -> None:
        require(bool(self.vlens), "vlens is empty; allowed: at least one vector length")
        for vlen in self.vlens:
            EngineConfig(vlen=vlen)
        _ = self.sampling()
        require(
            self.flips.k <= self.rows,
            f"flips.k is {self.flips.k}; allowed: up to rows ({self.rows})",
        )

    def sampling(self, mode: Mode = "performance") -> Sampling:
        return Sampling(
            batch=self.batch, rows=self.rows, vocab=self.vocab, mode=mode,
            chunk_rows=self.chunk_rows,
        )  # fmt: skip

    @property
    def is_published_case(self) -> bool:
        return (self.batch, self.rows, self.vocab) == (paper.BATCH, paper.ROWS, paper.VOCAB)


ProgramsByCase = Mapping[tuple[Mode, int], SamplerProgram]
"""Programs by mode and vector length."""


_modelled = partial(ResultRow, kind="modelled")


def sampling_engine(config: SamplingEngineConfig, run: Run) -> None:
    """Computes all rows, and writes the programs as text."""
    programs: ProgramsByCase = {
        (mode, vlen): compile_sampler(config.sampling(mode), EngineConfig(vlen=vlen))
        for mode, vlen in product(MODES, config.vlens)
    }
    _ = tokenizer_of(lj.load(config.flips.model))  # checks it
    run.begin()
    longest = config.vlens[-1]
    for mode in MODES:
        run.write(f"{mode}.asm", render(programs[mode, longest].instructions))
    answers, formats = config.answers, config.flips.formats
    parts = (
        _modelled_rows(config, programs),
        flip_rows(config.flips, config.vocab, config.rows, longest, config.seed),
        answer_rows(answers, formats, config.seed) if answers.items else (),
        hardware_rows() if config.hardware else (),
    )
    shown = tqdm(chain.from_iterable(parts), desc="sampling engine", unit="row")
    run.finish(run.recorded(shown))


def _modelled_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields the modelled rows, with published references."""
    hbm, source = fitted_hbm(), f"fitted to {FITTED_TO} of {paper.PAPER}"
    fitted = partial(ResultRow, kind="fitted", source=source)
    yield fitted("fit/hbm_latency_ns", hbm.latency, "ns")
    yield fitted("fit/hbm_gb_per_s", 1024 / hbm.per_kib, "GB/s")
    yield from latency_rows(config, programs)
    yield from _sensitivity_rows(config, programs)
    yield from share_rows()


def latency_rows(config: SamplingEngineConfig, programs: ProgramsByCase) -> Iterator[ResultRow]:
    """Yields the time, its breakdown and the traffic of every program; the paper uses
    `performance`."""
    for (mode, vlen), program in programs.items():
        timing, is_paper = time_program(program), mode == "performance"
        name = f"vlen{vlen}" if is_paper else f"{mode}/vlen{vlen}"
        known = _published(vlen) if is_paper and config.is_published_case else {}
        values = {"latency_ms": (timing.cycles.ms, "ms"), "hbm_mb": (timing.hbm_bytes / 1e6, "MB")}
        values |= {f"{unit}_cycles": (n, "cycles") for unit, n in timing.cycles._asdict().items()}
        for what, (value, unit) in values.items():
            yield _modelled(f"{name}/{what}", value, unit, **known.get(what, {}))


def _published(vlen: int) -> dict[str, dict[str, Any]]:
    """Returns the published values at a vector length, with the kind of the modelled ones. Memory
    cycles at 2048 were fitted, so the latency there is informed; the time of a top-k unit was
    chosen with knowledge of the published total of vector cycles."""
    fields: dict[str, dict[str, Any]] = {}
    if vlen in paper.LATENCY_MS:
        kind = {512: "fitted", 2048: "informed"}.get(vlen, "modelled")
        fields["latency_ms"] = {"reference": paper.LATENCY_MS[vlen], "source": TABLE, "kind": kind}
    for unit, count in paper.CYCLES_AT_2048.items() if vlen == 2048 else ():
        kind = {"memory": "fitted", "vector": "informed"}.get(unit, "modelled")
        source = f"{paper.PAPER}, breakdown"
        fields[f"{unit}_cycles"] = {"reference": count, "source": source, "kind": kind}
    return fields


def _sensitivity_rows(
    config: SamplingEngineConfig, programs: ProgramsByCase
) -> Iterator[ResultRow]:
    """Yields effects that the published numbers leave out: hardware units, and noise."""
    for vlen in config.vlens:
        ms = time_program(programs["performance", vlen], column="pipelined").cycles.ms
        yield _modelled(f"pipelined/performance/vlen{vlen}/latency_ms", ms, "ms")
        noisy = replace(config.sampling("one_pass"), noisy=True)
        timing = time_program(compile_sampler(noisy, EngineConfig(vlen=vlen)))
        yield _modelled(f"temperature/one_pass/vlen{vlen}/latency_ms", timing.cycles.ms, "ms")


class GpuBody(NamedTuple):
    """The work of a model's forward."""

    weights: int
    vocab: int

    def ms(self, rows: int) -> float:
        """Returns the least milliseconds of a step: reading the weights, or multiplying by them."""
        read = 2 * self.weights / paper.GPU_BYTES_PER_SECOND["a6000"]
        return 1e3 * max(read, 2 * self.weights * rows / A6000_FLOPS)


def bodies() -> dict[str, GpuBody]:
    """Returns the paper's two models."""
    dense, moe = architecture("llada_8b"), LLADA_MOE
    weights = sum(matrix.weights for matrix in body_matrices(dense)) + head_weights(dense)
    layer = moe.dense_weights + moe.experts_per_token * moe.expert_weights
    return {
        "llada_8b": GpuBody(weights, dense.vocab_size),
        "llada_moe": GpuBody(moe.n_layers * layer, MOE_VOCAB),
    }


def share_rows() -> Iterator[ResultRow]:
    """Yields the largest share of a step that sampling takes on the paper's GPU, by model and
    sampler, and the slowdown of the sampler that would give 70 %. The paper reports up to 70 %, for
    LLaDA-MoE with a dual cache, without batch or block. The shares are upper bounds: the body reads
    its BF16 weights once, all rows use the same experts, and only the block's rows are computed.
    The unfused sampler has the paper's time."""
    for (model, body), sampler in product(bodies().items(), paper.GPU_BYTES_A_LOGIT):
        shares = []
        for rows in {batch * block for batch, block in product(BATCHES, BLOCKS)}:
            sampling = paper.roofline_ms("a6000", sampler, rows * body.vocab)
            shares.append(sampling / (sampling + body.ms(rows)))
        peak, name = max(shares), f"gpu_share/{model}/{sampler}"
        known: dict[str, Any] = {}
        if (model, sampler) == ("llada_moe", "unfused_float64"):
            known = {"reference": PEAK_SHARE, "source": f"{paper.PAPER}: up to 70 %"}
        yield _modelled(f"{name}/peak", peak, "of a step", **known)
        slower = PEAK_SHARE / (1 - PEAK_SHARE) * (1 - peak) / peak
        yield _modelled(f"{name}/slower_for_70_percent", slower, "x as slow")


main = entry_point("sampling_engine", sampling_engine, SamplingEngineConfig)
