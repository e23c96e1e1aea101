"""What a model is trained on: a mixture of tasks, told in stages. An example is a pure function of
its index, with which stage, task, difficulty and kind of example are drawn."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random

from llada_jax.config import require, require_counts, require_numbers
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource

SENTENCE_END = re.compile(r"(?<=[.?]) ")
LOOKED_THROUGH = 1000
FURTHER = 10**9
"""From an item that is passed over to the next one of its place; no run has as many examples."""


@dataclass(frozen=True, kw_only=True)
class TaskShare:
    """A task and how often it is drawn, compared with the others; its difficulties alike."""

    name: str
    weight: float = 1.0
    difficulties: tuple[int, ...] = ()
    """None given: the task's default."""
    containing: str | None = None
    """Only items whose question has this text: of a kind that a model has not learnt, say."""

    def __post_init__(self) -> None:
        for difficulty in self.difficulties:
            _ = self.task.item(0, 0, "train", difficulty=difficulty)  # checks it
        require(self.weight > 0, f"weight of {self.name} is {self.weight}; allowed: above 0")
        questions = (
            self.task.item(0, index, "train", difficulty=difficulty).question
            for difficulty in self.drawn
            for index in range(LOOKED_THROUGH)
        )
        require(
            self.containing is None or any(self.containing in question for question in questions),
            f"containing of {self.name} is {self.containing!r}; "
            f"allowed: what occurs in one of its first {LOOKED_THROUGH:,} questions",
        )

    @property
    def task(self) -> Task:
        return load_task(self.name)

    @property
    def drawn(self) -> tuple[int, ...]:
        """Returns the difficulties that are drawn."""
        return self.difficulties or (self.task.default_difficulty,)

    def item(self, seed: int, index: int, difficulty: int, *, drill: bool = False) -> Item:
        """Draws from the training split a place's first item that has what it must."""
        items = (
            self.task.item(seed, place, "train", difficulty=difficulty, drill=drill)
            for place in count(index, FURTHER)
        )
        return next(item for item in items if (self.containing or "") in item.question)


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
        require_counts(self, "steps")
        require_numbers(self, "retell_share", "drill_share", least=0, most=1)
        total = self.retell_share + self.drill_share
        require(total <= 1, f"retell_share + drill_share is {total}; allowed: up to 1")
        require(
            bool(self.drills) == (self.drill_share > 0),
            f"drill_share is {self.drill_share} with {len(self.drills)} drills; "
            "allowed: both or neither",
        )
        for share in self.drills:
            has_drill = share.task.drill is not None
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
        require_numbers(self, "full_length_share", least=0, most=1)

    @property
    def versions(self) -> dict[str, int]:
        """Returns the versions of all tasks that are drawn from, in any stage."""
        of_stages = (share for stage in self.stages for share in (*stage.tasks, *stage.drills))
        return {share.name: share.task.version for share in (*self.tasks, *of_stages)}

    def stage_at(self, step: int) -> Stage:
        ends = accumulate(stage.steps for stage in self.stages)
        running = (stage for stage, end in zip(self.stages, ends, strict=True) if step < end)
        return next(running, self.stages[-1])


def example_source(tokenizer: Tokenizer, config: MixtureConfig, batch_size: int) -> ExampleSource:
    """Makes chats of one question; the answer ends with the token that ends a turn."""
    end = tokenizer.encode("<|eot_id|>")

    def source(index: int) -> Example:
        rng = Random(f"{config.seed} {index}")
        stage = config.stage_at(index // batch_size)
        kind = rng.random() - stage.retell_share
        is_retold, is_drill = kind < 0, 0 <= kind < stage.drill_share
        share = _one_of(stage.drills if is_drill else stage.tasks or config.tasks, rng)
        item = share.item(config.seed, index, rng.choice(share.drawn), drill=is_drill)
        answer = _some_sentences(rng, item.question) if is_retold else item.answer
        longest = None if is_retold or is_drill else share.task.gen_length
        if rng.random() < config.full_length_share:
            longest = None
        prompt = tokenizer.encode_chat([{"role": "user", "content": item.question}])
        return Example(prompt, [*tokenizer.encode(answer), *end], longest)

    return source


def mixture_texts(config: MixtureConfig) -> Iterator[str]:
    """Yields questions and answers without end, from which a tokenizer is learnt."""
    for index in count():
        rng = Random(f"{config.seed} {index}")
        share = _one_of(config.tasks, rng)
        yield from share.item(config.seed, index, rng.choice(share.drawn))[:2]


def _one_of(shares: Sequence[TaskShare], rng: Random) -> TaskShare:
    return rng.choices(shares, [share.weight for share in shares])[0]


def _some_sentences(rng: Random, text: str) -> str:
    """Returns some sentences in any order, so that each must be found by what is seen of it."""
    sentences = SENTENCE_END.split(text)
    count = rng.randint(1, len(sentences))
    if rng.random() < 0.5:
        start = rng.randint(0, len(sentences) - count)
        return " ".join(sentences[start : start + count])
    return " ".join(rng.sample(sentences, count))
