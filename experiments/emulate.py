"""Decodes word problems on emulated phones' NPUs, and compares with float32.

    python -m experiments.emulate
    python -m experiments.emulate items=10 socs=[SM8750] precisions=[fp16,a16w4]

The context binaries are those that a phone would load; the numbers come from the vendor's own
arithmetic. A SoC whose binaries give the same bits as an earlier SoC's in every recorded forward is
not decoded again: it would give the same tokens. The result says so by `same_bits_as`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.recorded_forwards import record_forwards
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.qnn.context import SOCS
from llada_jax.backend.qnn.emulated_npu import EmulatedNpu
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.backend.steps import body_step, resized
from llada_jax.backend.weights import InMemory
from llada_jax.config import Precision, SamplerConfig, require, require_choice, require_counts
from llada_jax.evaluation.task import Item, Split
from llada_jax.evaluation.tasks import word_problems

_COMPARED_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class EmulateConfig:
    """What to decode, and on what. The comments are in conf/emulate.yaml."""

    model: str = "tiny"
    seed: int = 9001
    items: int = 100
    difficulty: int = 0
    recorded_forwards: int = 64
    socs: tuple[str, ...] = tuple(SOCS)
    precisions: tuple[str, ...] = get_args(Precision)
    sampler: SamplerConfig

    def __post_init__(self) -> None:
        require_counts(self, "items", "recorded_forwards")
        for soc in self.socs:
            require(soc in SOCS, f"soc is {soc!r}; allowed: {', '.join(SOCS)}")
        for precision in self.precisions:
            require_choice("precision", precision, Precision)


class DecodedProblems(NamedTuple):
    """What became of the problems."""

    tokens: list[np.ndarray]
    right: int


def emulate(config: EmulateConfig, run: Run) -> None:
    """Emulates every precision on every SoC."""
    model = lj.load(config.model)
    require(model.tokenizer is not None, f"{config.model} has no tokenizer")
    run.begin()
    samples = record(model, config)
    wanted = _decode(model, config, "litert", "float32")
    rows = [
        ResultRow("float32/exact_match", wanted.right / config.items, "of problems",
                  n=config.items)
    ]  # fmt: skip
    for precision in config.precisions:
        for row in _one_precision(model, config, precision, samples, wanted):
            run.record(row.as_dict())
            rows.append(row)
    run.finish(rows)


def record(model: lj.Model, config: EmulateConfig) -> list[Inputs]:
    """Records inputs of float32 forwards on problems of the training split."""
    prompts = _prompts(model, config, "train", range(config.recorded_forwards // 4 + 1))
    return record_forwards(model, prompts, config.sampler, config.recorded_forwards)


def _prompts(
    model: lj.Model, config: EmulateConfig, split: Split, indices: Sequence[int]
) -> list[list[int]]:
    assert model.tokenizer is not None
    return [
        model.tokenizer.encode_chat([{"role": "user", "content": problem.question}])
        for problem in _problems(config, split, indices)
    ]


def _problems(config: EmulateConfig, split: Split, indices: Sequence[int]) -> list[Item]:
    return [
        word_problems.TASK.item(config.seed, index, split, difficulty=config.difficulty)
        for index in indices
    ]


def _one_precision(
    model: lj.Model,
    config: EmulateConfig,
    precision: str,
    samples: Sequence[Inputs],
    wanted: DecodedProblems,
) -> Iterator[ResultRow]:
    seen: dict[str, tuple[list[np.ndarray], DecodedProblems]] = {}
    for soc in config.socs:
        npu = EmulatedNpu(soc, precision, samples)
        bits = _forwards(model, npu, samples)
        same = next((other for other, (theirs, _) in seen.items() if _equal(theirs, bits)), None)
        done = seen[same][1] if same else _decode(model, config, npu, f"{soc} {precision}")
        seen[soc] = bits, done
        name = f"qnn/{soc}/{precision}"
        note = f"same_bits_as/{same}" if same else "decoded"
        yield ResultRow(
            f"{name}/token_agreement",
            _agreement(wanted.tokens, done.tokens, model.config.eos_id),
            "of tokens",
            n=config.items,
        )
        yield ResultRow(
            f"{name}/exact_match",
            done.right / config.items,
            "of problems",
            n=config.items,
            reference=wanted.right / config.items,
            source="the same problems in float32 on LiteRT",
        )
        yield ResultRow(f"{name}/{note}", len(bits), "forwards compared")
        (traffic,) = npu.compiled[_compared_step(model, samples).name].traffic.values()
        yield ResultRow(f"{name}/ddr_read", traffic.read / 1e6, "MB", kind="modelled")


def _compared_step(model: lj.Model, samples: Sequence[Inputs]):
    cache = samples[0]["bias"].shape[1] - len(samples[0]["bias"])
    return body_step(model.config, range(model.config.n_layers), Bucket(_COMPARED_ROWS, cache))


def _forwards(model: lj.Model, npu: EmulatedNpu, samples: Sequence[Inputs]) -> list[np.ndarray]:
    """Returns all outputs of some recorded forwards."""
    step = _compared_step(model, samples)
    executable = npu.compile([step], InMemory(model.params))[step.name]
    rows, width = step.inputs["bias"]
    bucket = Bucket(rows, width - rows)
    chosen = samples[:: max(1, len(samples) // 8)]
    return [
        np.concatenate([output.ravel() for output in executable.run(resized(s, bucket)).values()])
        for s in chosen
    ]


def _equal(theirs: list[np.ndarray], ours: list[np.ndarray]) -> bool:
    return all(map(np.array_equal, theirs, ours))


def _decode(
    model: lj.Model, config: EmulateConfig, backend: str | EmulatedNpu, label: str
) -> DecodedProblems:
    assert model.tokenizer is not None
    prompts = _prompts(model, config, "test", range(config.items))
    generate = partial(lj.generate, model, config=config.sampler, backend=backend)
    tokens = [
        generate([prompt]).generated[0] for prompt in tqdm(prompts, desc=label, unit="problem")
    ]
    problems = _problems(config, "test", range(config.items))
    texts = map(model.tokenizer.decode, tokens)
    return DecodedProblems(tokens, sum(map(word_problems.verify, problems, texts)))


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
