"""Compares constrained with free decoding: valid answers, right answers, forwards.

    python -m experiments.constrain
    python -m experiments.constrain items=200 tasks=[choices] sampler=staged
    python -m experiments.constrain forms=[json] ways=[raw] sampler.threshold=0.8
    python -m experiments.constrain examples=12000 seed=3 hydra.run.dir=outputs/json

Word problems are answered in JSON (steps and a result), and both tasks in the form that the model
was trained on; choices also by one of their four possible last lines. Each constraint runs with
both measures of confidence, and token by token from the left with any spelling, as in programs that
constrain the next token. The way `unheld` decodes without the constraint and is graded by it.

With `examples`, nothing is decoded: `examples.jsonl` in the run folder gets that number of word
problems of the training split, answered in this JSON, for `experiments.fine_tune`.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import Run, entry_point
from llada_jax.config import require_counts
from llada_jax.evaluation.task import ANSWER_MARK, Item, Task, TaskItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.evaluation.tasks.choices import LETTERS
from llada_jax.sampler.config import SamplerConfig

SCHEMA = {
    "type": "object",
    "properties": {"steps": {"type": "string"}, "result": {"type": "integer", "minimum": 0}},
    "required": ["steps", "result"],
}
NUMBER = r"[A-Z][^#\n]*\n#### [0-9]{1,3}"
LETTER = r"[A-Z][^#]*\n[A-D]\) [^#\n]*\n#### [A-D]"


@dataclass(frozen=True, kw_only=True)
class ConstrainConfig:
    """Settings of the verb; conf/constrain.yaml explains each."""

    model: str
    sampler: SamplerConfig
    tasks: tuple[Literal["word_problems", "choices"], ...]
    forms: tuple[Literal["free", "json", "form", "choice"], ...]
    ways: tuple[Literal["unheld", "raw", "allowed", "by_token"], ...]
    items: int = 2000
    seed: int = 2
    batch_size: int = 100
    examples: int = 0

    def __post_init__(self) -> None:
        require_counts(self, "items", "batch_size")
        require_counts(self, "examples", least=0)


@lj.rule
class _Leftmost:
    """Commits the first mask of each row."""

    def decide(self, seen, state):
        return lj.Decision(commit=seen.masked & (jnp.cumsum(seen.masked, axis=1) == 1)), state


WAYS: dict[str, dict[str, Any]] = {
    "unheld": {},
    "raw": {"confidence": "raw"},
    "allowed": {"confidence": "allowed"},
    "by_token": {"confidence": "raw", "spelling": "any"},
}
FORMS: dict[str, dict[str, Callable[..., lj.Constraint]]] = {
    "word_problems": {
        "json": lambda item, **way: lj.json_schema(SCHEMA, **way),
        "form": lambda item, **way: lj.regex(NUMBER, **way),
    },
    "choices": {
        "choice": lambda item, **way: lj.choice(_lines(item), **way),
        "form": lambda item, **way: lj.regex(LETTER, **way),
    },
}


def _lines(item: Item) -> list[str]:
    lettered = zip(LETTERS, item.choices, strict=False)
    return [f"{letter}) {choice}\n#### {letter}" for letter, choice in lettered]


def _read(constraint: lj.Constraint, text: str) -> str | None:
    """Returns the target in an answer, or None if the answer does not match the constraint."""
    if isinstance(constraint.pattern, tuple) and constraint.node is None:
        return text[-1] if text in constraint.pattern else None
    if isinstance(constraint.pattern, str):
        return text.rpartition(" ")[2] if re.fullmatch(constraint.pattern, text) else None
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    fits = {name: type(value) for name, value in answer.items()} == {"steps": str, "result": int}
    return str(answer["result"]) if fits else None


def training_line(item: Item) -> str:
    """Returns a line of a training file: a chat with a word problem and its answer as JSON."""
    steps, _, _ = item.answer.partition("\n" + ANSWER_MARK)
    content = {"steps": steps, "result": int(item.target)}
    answer = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    messages = [
        {"role": "user", "content": item.question},
        {"role": "assistant", "content": answer},
    ]
    return json.dumps({"messages": messages}) + "\n"


def constrain(config: ConstrainConfig, run: Run) -> None:
    """Decodes every item in every way and records the results, or writes examples."""
    if config.examples:
        run.begin()
        items = islice(load_task("word_problems").items(config.seed, "train"), config.examples)
        run.write("examples.jsonl", "".join(map(training_line, items)))
        return run.finish([])
    model = run.of(lj.load(config.model))
    run.begin()
    rows: list[ResultRow] = []
    for name in config.tasks:
        task = load_task(name)
        source = TaskItems(task=task, count=config.items, seed=config.seed)
        items = [source.item(index) for index in range(config.items)]
        free = config.sampler.replace(gen_length=task.gen_length)
        by_token = free.replace(rule=_Leftmost())
        if "free" in config.forms:
            rows += run.recorded(_measured(f"{name}/free", task, model, items, free, config))
        for kind in (form for form in config.forms if form in FORMS[name]):
            for way in config.ways:
                sampler = by_token if way == "by_token" else free
                constraints = [FORMS[name][kind](item, **WAYS[way]) for item in items]
                case, is_held = f"{name}/{kind}/{way}", way != "unheld"
                measured = _measured(
                    case, task, model, items, sampler, config, constraints, held=is_held
                )
                rows += run.recorded(measured)
    run.finish(rows)


def _measured(
    name: str,
    task: Task,
    model: lj.Model,
    items: Sequence[Item],
    sampler: SamplerConfig,
    config: ConstrainConfig,
    constraints: Sequence[lj.Constraint] = (),
    *,
    held: bool = True,
) -> list[ResultRow]:
    valid, right, forwards, count = 0, 0, [], len(items)
    decode = partial(lj.generate_stream, model, config=sampler, places=config.batch_size)
    # A stream compiles the patterns of all its items into one automaton: decode a batch at a time.
    size = config.batch_size if len({c.pattern for c in constraints}) > 1 else count
    for first in range(0, count, size):
        part, of_part = items[first : first + size], constraints[first : first + size]
        prompts = prompts_of(model, (item.question for item in part))
        results = decode(prompts, constraint=(of_part if held else ()) or None)
        for index, result in enumerate(tqdm(results, f"{name} {first}", len(part))):
            (text,) = result.text
            read = _read(of_part[index], text) if constraints else None
            valid += read is not None
            right += read == part[index].target if constraints else task.verify(part[index], text)
            forwards.extend(result.nfe)
    rows = [
        share_row(f"{name}/exact_match", right, count, "share"),
        ResultRow(f"{name}/forwards", float(np.mean(forwards)), "forwards", n=count),
    ]
    if constraints:
        rows.append(ResultRow(f"{name}/valid", valid / count, "share", n=count))
    return rows


main = entry_point("constrain", constrain, ConstrainConfig)
