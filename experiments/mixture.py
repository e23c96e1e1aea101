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
from llada_jax.evaluation.tasks import load_task
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource

SENTENCE_END = re.compile(r"(?<=[.?]) ")


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
    """So many steps, in which some examples are not questions with their answers."""

    steps: int
    tasks: tuple[TaskShare, ...] = ()
    """None given: the mixture's."""
    retell_share: float = 0.0
    """Share of examples that only repeat some sentences of the question, from which a model learns
    to copy long before it does so from answers."""
    drill_share: float = 0.0
    """Share of examples that are drills."""
    drills: tuple[TaskShare, ...] = ()
    """Tasks that they are drawn from."""

    def __post_init__(self) -> None:
        require(self.steps > 0, f"steps is {self.steps}; allowed: 1 or more")
        for name in ("retell_share", "drill_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} is {value}; allowed: 0 to 1")
        total = self.retell_share + self.drill_share
        require(total <= 1, f"retell_share + drill_share is {total}; allowed: up to 1")
        require(
            bool(self.drills) == (self.drill_share > 0),
            f"drill_share is {self.drill_share} with {len(self.drills)} drills; "
            "allowed: both or neither",
        )
        for share in self.drills:
            has_drill = load_task(share.name).drill is not None
            require(has_drill, f"drills has {share.name!r}; allowed: tasks with a drill")


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
        share = self.full_length_share
        require(0 <= share <= 1, f"full_length_share is {share}; allowed: 0 to 1")

    @property
    def task_names(self) -> list[str]:
        """Of all tasks that are drawn from, in any stage."""
        shares = [*self.tasks]
        for stage in self.stages:
            shares += [*stage.tasks, *stage.drills]
        return sorted({share.name for share in shares})

    def stage_at(self, step: int) -> Stage:
        ends = accumulate(stage.steps for stage in self.stages)
        running = (stage for stage, end in zip(self.stages, ends, strict=True) if step < end)
        return next(running, self.stages[-1])


def example_source(tokenizer: Tokenizer, config: MixtureConfig, batch_size: int) -> ExampleSource:
    """Chats of one question; the answer ends with the token that ends a turn."""
    end = tokenizer.encode("<|eot_id|>")

    def source(index: int) -> Example:
        rng = Random(f"{config.seed} {index}")
        stage = config.stage_at(index // batch_size)
        question, answer, gen_length = _drawn(config, stage, rng, index)
        if rng.random() < config.full_length_share:
            gen_length = None
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        return Example(prompt, [*tokenizer.encode(answer), *end], gen_length)

    return source


def _drawn(
    config: MixtureConfig, stage: Stage, rng: Random, index: int
) -> tuple[str, str, int | None]:
    """A question, its answer, and how long an answer may be."""
    kind = rng.random() - stage.retell_share
    is_drill = 0 <= kind < stage.drill_share
    share = _one_of(stage.drills if is_drill else stage.tasks or config.tasks, rng)
    task, difficulty = load_task(share.name), rng.choice(share.drawn)
    if is_drill:
        item = task.drill_item(config.seed, index, difficulty=difficulty)
        return item.question, item.answer, None
    item = task.item(config.seed, index, "train", difficulty=difficulty)
    if kind < 0:
        retold = _some_sentences(rng, item.question)
        return item.question, retold, None
    return item.question, item.answer, task.gen_length


def mixture_texts(config: MixtureConfig) -> Iterator[str]:
    """Questions and answers of training items, without end: what a tokenizer is learnt from."""
    for index in count():
        rng = Random(f"{config.seed} {index}")
        share = _one_of(config.tasks, rng)
        difficulty = rng.choice(share.drawn)
        item = load_task(share.name).item(config.seed, index, "train", difficulty=difficulty)
        yield item.question
        yield item.answer


def _one_of(shares: Sequence[TaskShare], rng: Random) -> TaskShare:
    return rng.choices(shares, [share.weight for share in shares])[0]


def _some_sentences(rng: Random, text: str) -> str:
    """In any order, so that each must be found by what is seen of it."""
    sentences = SENTENCE_END.split(text)
    count = rng.randint(1, len(sentences))
    if rng.random() < 0.5:
        start = rng.randint(0, len(sentences) - count)
        return " ".join(sentences[start : start + count])
    return " ".join(rng.sample(sentences, count))
