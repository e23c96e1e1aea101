"""Simulates every policy on phones at every cache size, on synthetic and on recorded routing.

The recorded routing is of the model of `conf/train_routed.yaml`, task by task; it is stored next to
this file, because training takes hours. Its experts have the cost of LLaDA-MoE's, since its own are
so small that only calls would cost time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path

import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow
from experiments.harness.run import Run
from llada_jax.config import require_counts
from llada_jax.evaluation.tasks import load_task
from llada_jax.experts.decoding.generation import record_routing
from llada_jax.experts.policy_run import POLICIES, bound, replay
from llada_jax.experts.routing import (
    RoutingTrace,
    experts_per_step,
    gate_accuracy,
    imbalance,
    joined,
    row_reuse,
    step_similarity,
)
from llada_jax.experts.schedule import ExpertCosts, all_on_accelerator, fastest
from llada_jax.experts.shapes import LLADA2_MINI, LLADA_MOE
from llada_jax.experts.synthetic import STATISTICS, denoising_trace
from llada_jax.phones.expert_costs import expert_costs
from llada_jax.phones.profile import load_profile
from llada_jax.sampler.config import SamplerConfig

MODELS = (LLADA2_MINI, LLADA_MOE)
TOKENS_PER_STEP = 2.55
"""LLaDA2.0-mini on twelve benchmarks (card of LLaDA2.0-mini-CAP); assumed for LLaDA-MoE as well."""
WITHOUT_CPU = ("adapmoe", "tide", "lru", "mrs", "hybrimoe")
"""Policies that are also simulated without the CPU, in case it has other work."""
PUBLISHED = {
    "similarity_1": (0.985, "TIDE, arXiv 2605.20179: LLaDA2"),
    "similarity_5": (0.95, "TIDE, arXiv 2605.20179: LLaDA2, above"),
    "gate/1": (0.78, "FATE on DeepSeek-V2-Lite, as arXiv 2511.10676 has it"),
}

STORED = Path(__file__).with_name("small_moe")
RECORDED_PER_STEP, RECORDED_RATIOS = 2, (0.25, 0.5)
"""Tokens per step of the recorded routing, and cache sizes as shares of its experts."""

_modelled = partial(ResultRow, kind="modelled")


@dataclass(frozen=True, kw_only=True)
class PhonesConfig:
    """Settings of the verb; conf/experts.yaml explains each."""

    socs: tuple[str, ...] = ("SM8750", "SM8850")
    npu: str = "llada_cpp"
    cpu: str = "plain"
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75)
    profile_blocks: int = 2
    blocks: int = 4

    def __post_init__(self) -> None:
        for soc in self.socs:
            phone = load_profile(soc)
            _ = phone.kernels(self.npu), phone.cpu_kernels(self.cpu)  # checks the names
        for shape, ratio in product(MODELS, self.ratios):
            _ = shape.slots_at(ratio)  # checks the ratio
        require_counts(self, "profile_blocks", "blocks")


def simulate_phones(config: PhonesConfig, seed: int) -> Iterator[ResultRow]:
    """Yields statistics of the synthetic traces, then tokens per second."""
    for shape in MODELS:
        trace = denoising_trace(
            shape, STATISTICS[shape.name], seed=seed, tokens_per_step=TOKENS_PER_STEP,
            blocks=config.profile_blocks + config.blocks,
        )  # fmt: skip
        yield from statistics_of(trace, f"trace/{shape.name}")
        profile = int(np.flatnonzero(trace.begins_block)[config.profile_blocks])
        cells = list(product(config.socs, config.ratios))
        for soc, ratio in tqdm(cells, desc=shape.name, unit="cell"):
            costs = expert_costs(load_profile(soc), shape, config.npu, config.cpu)
            cell = f"{shape.name}/{soc}/{round(100 * ratio)}"
            yield from compare(trace, cell, costs, shape.slots_at(ratio), profile)


def compare(
    trace: RoutingTrace, cell: str, costs: ExpertCosts, slots: int, profile: int
) -> Iterator[ResultRow]:
    """Yields one cell of the table: every policy, with and without the CPU."""
    npu_only = {n: replace(POLICIES[n], scheduler="all_on_accelerator") for n in WITHOUT_CPU}
    for part, chosen, scheduler in (
        (cell, POLICIES, fastest), (f"{cell}/npu_only", npu_only, all_on_accelerator)
    ):  # fmt: skip
        outcomes = {
            name: replay(trace, policy, costs, slots, profile_steps=profile)
            for name, policy in chosen.items()
        }
        limit = bound(trace, costs, slots, profile_steps=profile, scheduler=scheduler)
        for name, outcome in {**outcomes, "bound": limit}.items():
            speed = outcome.tokens_per_second
            yield _modelled(f"{part}/{name}/tokens_per_second", speed, "tokens/s")
            yield _modelled(f"{part}/{name}/hit_rate", outcome.hit_rate, "of activated experts")


def statistics_of(trace: RoutingTrace, name: str) -> Iterator[ResultRow]:
    """Yields reuse, accuracy of gates by layers ahead, and skew, with published references."""
    reuse, keeps = row_reuse(trace), ~trace.changed[1:]
    mean = partial(np.nanmean, dtype=float)
    values = {
        "experts_per_step": (experts_per_step(trace), f"of {trace.n_experts} experts"),
        "similarity_1": (step_similarity(trace), "cosine"),
        "similarity_5": (step_similarity(trace, lag=5), "cosine"),
        "imbalance": (imbalance(trace).mean(), "x the mean load"),
        "reuse/token_stays": (mean(reuse[keeps]), "of a row's experts"),
        "reuse/token_changes": (mean(reuse[~keeps]), "of a row's experts"),
    }
    for ahead, share in enumerate(gate_accuracy(trace), 1):
        values[f"gate/{ahead}"] = (share, "of a row's experts")
    is_synthetic = trace.settings.get("source", "").startswith("synthetic")
    kind = "modelled" if is_synthetic else "measured"
    row = partial(ResultRow, kind=kind, fingerprint=trace.settings.get("fingerprint"))
    for what, (value, unit) in values.items():
        reference, source = PUBLISHED.get(what, (None, None))
        yield row(f"{name}/{what}", value, unit, reference=reference, source=source)


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """Settings of the verb; conf/experts.yaml explains each."""

    model: str | None = None
    tasks: tuple[str, ...] = ("word_problems", "yes_no", "choices", "sudoku")
    answers: int = 4

    def __post_init__(self) -> None:
        require_counts(self, "answers", least=2)
        for task in self.tasks:
            _ = load_task(task)  # checks the name


def judge_routing(config: RoutingConfig, seed: int, run: Run) -> Iterator[ResultRow]:
    """Yields statistics of recorded and synthetic routing, and the policies' results on them; the
    first two blocks profile the experts. Recorded routing is written to the run folder."""
    model = None if config.model is None else lj.load(config.model, "float32")
    traces = {}
    for task in config.tasks:
        if model is None:
            traces[f"recorded/{task}"] = RoutingTrace.load(STORED / f"{task}.npz")
        else:
            trace = traces[f"recorded/{task}"] = _record_task(model, task, config.answers, seed)
            trace.save(run.folder / f"{task}.npz")
    traces["drawn/llada_moe"] = _drawn_like(next(iter(traces.values())), seed)
    costs = expert_costs(load_profile("SM8750"), LLADA_MOE)
    for name, trace in traces.items():
        yield from statistics_of(trace, name)
        profile = int(np.flatnonzero(trace.begins_block)[2])
        for ratio in RECORDED_RATIOS:
            slots = int(ratio * trace.n_experts)
            yield from compare(trace, f"{name}/{round(100 * ratio)}", costs, slots, profile)


def _record_task(model: lj.Model, task: str, answers: int, seed: int) -> RoutingTrace:
    """Decodes items of the test split, one after another, and joins their routing."""
    loaded_task = load_task(task)
    length = loaded_task.gen_length
    sampler = SamplerConfig.from_flat(
        gen_length=length, block_length=32, steps=length // RECORDED_PER_STEP, cache="blockwise"
    )
    items = islice(loaded_task.items(seed, "test"), answers)
    prompts = prompts_of(model, (item.question for item in items))
    trace = joined([record_routing(model, [prompt], sampler, seed=seed)[1] for prompt in prompts])
    settings = {**trace.settings, "fingerprint": model.fingerprint}
    return replace(trace, scores=trace.scores.astype(np.float16), settings=settings)


def _drawn_like(trace: RoutingTrace, seed: int) -> RoutingTrace:
    """Draws routing of this shape from LLaDA-MoE's published statistics."""
    shape = replace(
        LLADA_MOE, n_layers=trace.n_layers, n_experts=trace.n_experts,
        experts_per_token=trace.experts.shape[-1],
    )  # fmt: skip
    blocks = int(trace.block.max()) + 1
    return denoising_trace(
        shape, STATISTICS["llada_moe"], seed=seed, blocks=blocks, tokens_per_step=RECORDED_PER_STEP
    )
