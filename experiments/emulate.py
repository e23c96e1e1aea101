"""Decodes word problems on emulated phones' NPUs, and compares with float32.

    python -m experiments.emulate
    python -m experiments.emulate items=3 socs=[SM8750]
    python -m experiments.emulate items=10 socs=[SM8750] precisions=[fp16,a16w4]

The context binaries are those that a phone would load; the numbers come from the vendor's own
arithmetic. A SoC whose binaries give the same bits as an earlier SoC's in every recorded forward is
not decoded again: it would give the same tokens. The result says so by `same_bits_as`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, get_args

import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.recorded_forwards import record_forwards
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.qnn.emulated_npu import EmulatedNpu
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.backend.steps import body_step, bucket_of, resized
from llada_jax.backend.weights import InMemory
from llada_jax.config import Precision, SamplerConfig, Soc, require, require_counts
from llada_jax.evaluation.task import Item, Split
from llada_jax.evaluation.tasks import word_problems

BASELINE = "the same problems in float32 on LiteRT"
_COMPARED_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class EmulateConfig:
    """What to decode, and on what. The comments are in conf/emulate.yaml."""

    model: str = "tiny"
    seed: int = 9001
    items: int = 100
    difficulty: int = 0
    recorded_forwards: int = 64
    socs: tuple[Soc, ...] = get_args(Soc)
    precisions: tuple[Precision, ...] = get_args(Precision)
    sampler: SamplerConfig

    def __post_init__(self) -> None:
        require_counts(self, "items", "recorded_forwards")

    def problems(self, split: Split, count: int) -> list[Item]:
        items = word_problems.TASK.items(self.seed, split, difficulty=self.difficulty)
        return list(islice(items, count))


class DecodedProblems(NamedTuple):
    """What became of the problems."""

    tokens: list[np.ndarray]
    right: float
    """Share of the problems."""


def emulate(config: EmulateConfig, run: Run) -> None:
    """Emulates every precision on every SoC."""
    model = run.of(lj.load(config.model))
    require(model.tokenizer is not None, f"{config.model} has no tokenizer")
    run.begin()
    problems = config.problems("train", config.recorded_forwards // 4 + 1)
    questions = [problem.question for problem in problems]
    samples = record_forwards(model, questions, config.sampler, config.recorded_forwards)
    wanted = _decode(model, config, "litert", "float32")
    rows = [ResultRow("float32/exact_match", wanted.right, "of problems", n=config.items)]
    for precision in config.precisions:
        rows += run.recorded(_one_precision(model, config, precision, samples, wanted))
    run.finish(rows)


def _one_precision(
    model: lj.Model,
    config: EmulateConfig,
    precision: str,
    samples: Sequence[Inputs],
    wanted: DecodedProblems,
) -> Iterator[ResultRow]:
    rows, width = samples[0]["bias"].shape
    bucket = Bucket(_COMPARED_ROWS, width - rows)
    step = body_step(model.config, range(model.config.n_layers), bucket)
    seen: dict[str, tuple[list[np.ndarray], DecodedProblems]] = {}
    for soc in config.socs:
        npu = EmulatedNpu(soc, precision, samples)
        bits = _forwards(model, npu, step, samples)
        equal = (other for other, (b, _) in seen.items() if all(map(np.array_equal, b, bits)))
        same = next(equal, None)
        done = seen[same][1] if same else _decode(model, config, npu, f"{soc} {precision}")
        seen[soc] = bits, done
        name = f"qnn/{soc}/{precision}"
        note = f"same_bits_as/{same}" if same else "decoded"
        agreement = _agreement(wanted.tokens, done.tokens, model.config.eos_id)
        yield ResultRow(f"{name}/token_agreement", agreement, "of tokens", n=config.items)
        beside: Any = {"reference": wanted.right, "source": BASELINE}
        yield ResultRow(f"{name}/exact_match", done.right, "of problems", n=config.items, **beside)
        yield ResultRow(f"{name}/{note}", len(bits), "forwards compared")
        (traffic,) = npu.compiled[step.name].traffic.values()
        yield ResultRow(f"{name}/ddr_read", traffic.read / 1e6, "MB", kind="modelled")


def _forwards(
    model: lj.Model, npu: EmulatedNpu, step: Step, samples: Sequence[Inputs]
) -> list[np.ndarray]:
    """Returns all outputs of some recorded forwards."""
    executable = npu.compile([step], InMemory(model.params))[step.name]
    chosen = (resized(each, bucket_of(step)) for each in samples[:: max(1, len(samples) // 8)])
    return [
        np.concatenate([output.ravel() for output in executable.run(inputs).values()])
        for inputs in chosen
    ]


def _decode(
    model: lj.Model, config: EmulateConfig, backend: str | EmulatedNpu, label: str
) -> DecodedProblems:
    assert model.tokenizer is not None
    problems, tokens, right = config.problems("test", config.items), [], 0
    for problem in tqdm(problems, desc=label, unit="problem"):
        prompt = model.tokenizer.encode_chat([{"role": "user", "content": problem.question}])
        (found,) = lj.generate(model, [prompt], config.sampler, backend=backend).generated
        tokens.append(found)
        right += word_problems.verify(problem, model.tokenizer.decode(found))
    return DecodedProblems(tokens, right / config.items)


def _agreement(
    wanted: Sequence[np.ndarray], found: Sequence[np.ndarray], eos_id: int | None
) -> float:
    """Returns the share of wanted tokens found in their place, up to each text's first EOS."""
    equal = total = 0
    for ours, theirs in zip(wanted, found, strict=True):
        (ends,) = np.nonzero(ours == eos_id)
        length = ends[0] + 1 if len(ends) else len(ours)
        equal += int((ours[:length] == theirs[:length]).sum())
        total += int(length)
    return equal / total


main = entry_point("emulate", emulate, EmulateConfig)
