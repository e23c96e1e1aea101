"""Constrained answers beside free ones: whether they are valid and right, and by how many forwards.

    python -m experiments.constrain
    python -m experiments.constrain items=200 tasks=[choices] sampler=staged
    python -m experiments.constrain ways=[raw] sampler.threshold=0.8

Word problems are answered in JSON (steps and a result), and in the form that the model was trained
on; choices by one of the four lines that may end an answer. Each constraint runs with both measures
of confidence, and token by token from the left, as programs do that constrain the next token.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import SamplerConfig, require_counts
from llada_jax.evaluation.items import TaskItems
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.evaluation.wording import LETTERS

STEPS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4}
SCHEMA = {
    "type": "object",
    "properties": {"steps": STEPS, "result": {"type": "integer", "minimum": 0}},
    "required": ["steps", "result"],
}
FORM = r"[A-Z][^#\n]*\n#### [0-9]{1,3}"


@dataclass(frozen=True, kw_only=True)
class ConstrainConfig:
    """What is decoded, with what. The comments are in conf/constrain.yaml."""

    model: str
    sampler: SamplerConfig
    tasks: tuple[Literal["word_problems", "choices"], ...]
    ways: tuple[Literal["raw", "allowed", "by_token"], ...]
    items: int = 2000
    seed: int = 2
    batch_size: int = 100

    def __post_init__(self) -> None:
        require_counts(self, "items", "batch_size")


@lj.rule
class Leftmost:
    """Commits the first mask alone."""

    def decide(self, seen, state):
        return lj.Decision(commit=seen.masked & (jnp.cumsum(seen.masked, axis=1) == 1)), state


@dataclass(frozen=True)
class Form:
    """A form of answers: the constraint of an item, and the target that a valid text gives."""

    constraint: Callable[..., lj.Constraint]
    read: Callable[[Item, str], str | None]


def _json_result(item: Item, text: str) -> str | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(found, dict) and list(found) == ["steps", "result"]
    if not whole or type(found["result"]) is not int or not isinstance(found["steps"], list):
        return None
    steps = found["steps"]
    fits = 1 <= len(steps) <= STEPS["maxItems"] and all(isinstance(each, str) for each in steps)
    return str(found["result"]) if fits else None


def _last_number(item: Item, text: str) -> str | None:
    return text.rpartition(" ")[2] if re.fullmatch(FORM, text) else None


def _lines(item: Item) -> list[str]:
    lettered = zip(LETTERS, item.choices, strict=False)
    return [f"{letter}) {choice}\n#### {letter}" for letter, choice in lettered]


def _chosen(item: Item, text: str) -> str | None:
    return text[-1] if text in _lines(item) else None


FORMS = {
    "word_problems": {
        "json": Form(lambda item, **measure: lj.json_schema(SCHEMA, **measure), _json_result),
        "form": Form(lambda item, **measure: lj.regex(FORM, **measure), _last_number),
    },
    "choices": {
        "choice": Form(lambda item, **measure: lj.choice(_lines(item), **measure), _chosen)
    },
}


def constrain(config: ConstrainConfig, run: Run) -> None:
    """Decodes every item in every way, and records validity, exact match and forwards."""
    model = run.of(lj.load(config.model))
    run.begin()
    rows: list[ResultRow] = []
    for name in config.tasks:
        task = load_task(name)
        asked = TaskItems(task=task, count=config.items, seed=config.seed)
        items = [asked.item(index) for index in range(config.items)]
        own = config.sampler.replace(gen_length=task.gen_length)
        by_token = own.replace(rule=Leftmost())
        rows += run.recorded(_measured(f"{name}/free", task, model, items, own, config, None))
        for kind, form in FORMS[name].items():
            for way in config.ways:
                sampler, measure = (by_token, "raw") if way == "by_token" else (own, way)
                case = f"{name}/{kind}/{way}"
                rows += run.recorded(
                    _measured(case, task, model, items, sampler, config, form, measure)
                )
    run.finish(rows)


def _measured(
    name: str,
    task: Task,
    model: lj.Model,
    items: Sequence[Item],
    sampler: SamplerConfig,
    config: ConstrainConfig,
    form: Form | None,
    measure: str = "raw",
) -> list[ResultRow]:
    valid, right, forwards, count = 0, 0, [], len(items)
    tokenizer: Any = model.tokenizer
    for first in tqdm(range(0, len(items), config.batch_size), desc=name):
        part = items[first : first + config.batch_size]
        prompts = [
            tokenizer.encode_chat([{"role": "user", "content": item.question}]) for item in part
        ]
        options: dict[str, Any] = {}
        if form is not None:
            options["constraint"] = [form.constraint(item, confidence=measure) for item in part]
        result = lj.generate(model, prompts, sampler, **options)
        forwards.extend(result.nfe)
        for item, text in zip(part, result.text, strict=True):
            read = form.read(item, text) if form else None
            valid += read is not None
            right += read == item.target if form else task.verify(item, text)
    rows = [
        ResultRow(
            f"{name}/exact_match", right / count, "share", n=count,
            interval=wilson_interval(right, count),
        ),
        ResultRow(f"{name}/forwards", float(np.mean(forwards)), "forwards", n=count),
    ]  # fmt: skip
    if form is not None:
        rows.append(ResultRow(f"{name}/valid", valid / count, "share", n=count))
    return rows


main = entry_point("constrain", constrain, ConstrainConfig)
