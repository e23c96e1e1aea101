"""The training data of a model: a mixture of tasks, in stages.

An example is a pure function of the seed and its index, which decide the stage, the task, the
difficulty and the kind of example. So a resumed training sees the same examples.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random

from llada_jax.config import require, require_counts, require_numbers
from llada_jax.evaluation.prompts import EXAMPLES_SHARE, Prompts
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.text import Tokenizer
from llada_jax.training.data import Example, ExampleSource

SENTENCE_END = re.compile(r"(?<=[.?]) ")
LOOKED_THROUGH = 1000
CANDIDATE_STEP = 10**9
"""Step between candidates for one index, larger than any run's number of examples."""


@dataclass(frozen=True, kw_only=True)
class TaskShare:
    """A task with its weight in the mixture; its difficulties are drawn uniformly."""

    name: str
    weight: float = 1.0
    difficulties: tuple[int, ...] = ()
    """Empty for the task's default."""
    containing: str | None = None
    """Draw only items with this text in the question, such as a kind that is hard to learn."""

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
        """The difficulties to draw from."""
        return self.difficulties or (self.task.default_difficulty,)

    def item(self, seed: int, index: int, difficulty: int, *, drill: bool = False) -> Item:
        """Returns the first training item for an index that contains the required text."""
        items = (
            self.task.item(seed, candidate, "train", difficulty=difficulty, drill=drill)
            for candidate in count(index, CANDIDATE_STEP)
        )
        return next(item for item in items if (self.containing or "") in item.question)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A number of steps with the same tasks and kinds of examples."""

    steps: int
    tasks: tuple[TaskShare, ...] = ()
    """Empty for the mixture's tasks."""
    retell_share: float = 0.0
    """Share of examples that repeat some sentences of the question. A model learns copying from
    them long before it learns it from answers."""
    drill_share: float = 0.0
    """Share of examples that are drills."""
    drills: tuple[TaskShare, ...] = ()
    """Tasks to draw the drills from."""

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
    """Tasks, and stages in their order; the last stage has no end."""

    seed: int = 1
    tasks: tuple[TaskShare, ...]
    stages: tuple[Stage, ...]
    full_length_share: float = 0.1
    """Share of examples whose answer region may be longer than their task asks for."""
    varied_share: float = 0.0
    """Share of prompts with other words around the question
    (`llada_jax.evaluation.prompts`)."""
    examples_share: float = EXAMPLES_SHARE
    """Share of these that have solved examples."""

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "tasks is empty; allowed: one or more")
        require(len(self.stages) > 0, "stages is empty; allowed: one or more")
        shares = "full_length_share", "varied_share", "examples_share"
        require_numbers(self, *shares, least=0, most=1)

    @property
    def versions(self) -> dict[str, int]:
        """Returns the versions of all tasks of all stages."""
        of_stages = (share for stage in self.stages for share in (*stage.tasks, *stage.drills))
        return {share.name: share.task.version for share in (*self.tasks, *of_stages)}

    def stage_at(self, step: int) -> Stage:
        ends = accumulate(stage.steps for stage in self.stages)
        running = (stage for stage, end in zip(self.stages, ends, strict=True) if step < end)
        return next(running, self.stages[-1])


def example_source(tokenizer: Tokenizer, config: MixtureConfig, batch_size: int) -> ExampleSource:
    """Returns a source of chats with one question; an answer ends with the end-of-turn token."""
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
        words = Random(f"{config.seed} {index} prompt")  # others do not depend on the share
        prompts: Prompts = "train" if words.random() < config.varied_share else "plain"
        chat = share.task.chat(item.question, prompts, words, examples_share=config.examples_share)
        return Example(tokenizer.encode_chat(chat), [*tokenizer.encode(answer), *end], longest)

    return source


def mixture_texts(config: MixtureConfig) -> Iterator[str]:
    """Yields an infinite series of questions and answers to train a tokenizer on."""
    for index in count():
        rng = Random(f"{config.seed} {index}")
        share = _one_of(config.tasks, rng)
        yield from share.item(config.seed, index, rng.choice(share.drawn))[:2]


def _one_of(shares: Sequence[TaskShare], rng: Random) -> TaskShare:
    return rng.choices(shares, [share.weight for share in shares])[0]


def _some_sentences(rng: Random, text: str) -> str:
    """Returns some sentences in random order, so that each must be found by its visible words."""
    sentences = SENTENCE_END.split(text)
    count = rng.randint(1, len(sentences))
    if rng.random() < 0.5:
        start = rng.randint(0, len(sentences) - count)
        return " ".join(sentences[start : start + count])
    return " ".join(rng.sample(sentences, count))
