"""What a model is trained on: a mixture of tasks, told in stages.

An example is a pure function of its index: the stage follows from the index, and the task, the
difficulty and the kind of example are drawn with it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random

from llada_jax.config import require
from llada_jax.evaluation.task import Item
from llada_jax.evaluation.tasks import load_task
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource

SENTENCE_END = re.compile(r"(?<=[.?]) ")
EQUATION = re.compile(r"\d+[-+*/]\d+=\d+")
DRILL_PROBLEMS = 3


@dataclass(frozen=True, kw_only=True)
class TaskShare:
    """A task and how often it is drawn, compared with the others; its difficulties alike."""

    name: str
    weight: float = 1.0
    difficulties: tuple[int, ...] = ()
    """None given: the task's default."""

    def __post_init__(self) -> None:
        task = load_task(self.name)
        allowed = ", ".join(map(str, task.difficulties))
        for difficulty in self.difficulties:
            require(
                difficulty in task.difficulties,
                f"difficulty of {self.name} is {difficulty}; allowed: {allowed}",
            )
        require(self.weight > 0, f"weight of {self.name} is {self.weight}; allowed: above 0")

    @property
    def drawn(self) -> tuple[int, ...]:
        """The difficulties that are drawn."""
        return self.difficulties or (load_task(self.name).default_difficulty,)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """So many steps in which some examples are not questions with their answers."""

    steps: int
    retell_share: float = 0.0
    """Share of examples that only repeat some sentences of the question, from which a model learns
    to copy long before it does so from solutions."""
    drill_share: float = 0.0
    """Share of examples that are bare equations of word problems, from which a model learns sums
    and products sooner than from solutions, where they are few among many words."""

    def __post_init__(self) -> None:
        require(self.steps > 0, f"steps is {self.steps}; allowed: 1 or more")
        for name in ("retell_share", "drill_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}; allowed: 0 to 1")
        total = self.retell_share + self.drill_share
        require(total <= 1, f"retell_share + drill_share is {total}; allowed: up to 1")


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """Tasks, and stages one after the other; the last one goes on without end."""

    seed: int = 1
    tasks: tuple[TaskShare, ...]
    stages: tuple[Stage, ...]
    full_length_share: float = 0.1
    """Share of examples whose answer region may be longer than their task asks for."""

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "tasks is empty; allowed: one or more")
        require(len(self.stages) > 0, "stages is empty; allowed: one or more")
        drills = any(stage.drill_share for stage in self.stages)
        require(
            not drills or any(share.name == "word_problems" for share in self.tasks),
            "drill_share is above 0 without the task word_problems, whose equations they are",
        )
        share = self.full_length_share
        require(0 <= share <= 1, f"full_length_share is {share}; allowed: 0 to 1")

    def stage_at(self, step: int) -> Stage:
        ends = accumulate(stage.steps for stage in self.stages)
        running = (stage for stage, end in zip(self.stages, ends, strict=True) if step < end)
        return next(running, self.stages[-1])


def example_source(tokenizer: Tokenizer, config: MixtureConfig, batch_size: int) -> ExampleSource:
    """Chats of one question; the answer ends with the token that ends a turn."""
    end = tokenizer.encode("<|eot_id|>")
    weights = [share.weight for share in config.tasks]

    def source(index: int) -> Example:
        rng = Random(f"{config.seed} {index}")
        stage = config.stage_at(index // batch_size)
        kind = rng.random()
        if stage.retell_share <= kind < stage.retell_share + stage.drill_share:
            question, answer = _drill(config, rng, index)
            gen_length = None
        else:
            share = rng.choices(config.tasks, weights)[0]
            question, answer, *_ = _item(config, share, rng, index)
            gen_length = load_task(share.name).gen_length
            if kind < stage.retell_share:
                question = answer = _some_sentences(rng, question)
                gen_length = None
        if rng.random() < config.full_length_share:
            gen_length = None
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        return Example(prompt, [*tokenizer.encode(answer), *end], gen_length)

    return source


def mixture_texts(config: MixtureConfig) -> Iterator[str]:
    """Questions and answers of training items, without end: what a tokenizer is learnt from."""
    weights = [share.weight for share in config.tasks]
    for index in count():
        rng = Random(f"{config.seed} {index}")
        question, answer, *_ = _item(config, rng.choices(config.tasks, weights)[0], rng, index)
        yield question
        yield answer


def _item(config: MixtureConfig, share: TaskShare, rng: Random, index: int) -> Item:
    difficulty = rng.choice(share.drawn)
    return load_task(share.name).item(config.seed, index, "train", difficulty=difficulty)


def _drill(config: MixtureConfig, rng: Random, index: int) -> tuple[str, str]:
    """The equations of some word problems, without and with their results."""
    share = next(share for share in config.tasks if share.name == "word_problems")
    problems = [_item(config, share, rng, index + step) for step in range(DRILL_PROBLEMS)]
    equations = [each for problem in problems for each in EQUATION.findall(problem.answer)]
    return _without_results(equations), " ".join(equations)


def _without_results(equations: Sequence[str]) -> str:
    return " ".join(each.partition("=")[0] for each in equations)


def _some_sentences(rng: Random, text: str) -> str:
    sentences = SENTENCE_END.split(text)
    count = rng.randint(1, len(sentences))
    start = rng.randint(0, len(sentences) - count)
    return " ".join(sentences[start : start + count])
