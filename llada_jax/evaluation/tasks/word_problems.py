"""Arithmetic word problems from templates: an endless GSM8K for models of a few million parameters.

A problem is a story of two to four steps about small whole numbers. The worked solution retells
the story one sentence per step, each with its equation (`12+5=17`), and ends in `#### n`.

The key of a problem is its chain of equations (`"12+5=17 17-3=14"`): no problem in training has the
whole chain of a test problem, in any story, names, wording, seed or difficulty. Single equations,
and short chains inside longer ones, occur in both splits.
"""

import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from llada_jax.evaluation.task import Item, OwnsKey, Task, final_answer, is_worked_answer
from llada_jax.evaluation.wording import (
    BOYS,
    GIRLS,
    STORIES,
    THINGS,
    CountStory,
    StoryEvent,
    sentences,
)

LARGEST_VALUE = {0: 10, 1: 20, 2: 50, 3: 99}  # by difficulty; of every number and every result
SMALLEST_VALUE = 2  # nouns are plural only
_LARGEST_FACTOR = 9
_DRILLED_PROBLEMS = 3
DRILLED_SUMS = 14
OPERATIONS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv,
}  # fmt: skip
EQUATION = re.compile(r"\d+[-+*/]\d+=\d+")
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday")


class _Sentence(NamedTuple):
    template: str
    a: int = 0
    b: int = 0
    equation: str = ""


@dataclass
class _Draft:
    """A problem with its numbers but without names."""

    things: Sequence[str]
    facts: list[_Sentence] = field(default_factory=list)
    working: list[_Sentence] = field(default_factory=list)
    equations: list[str] = field(default_factory=list)
    value: int = 0
    """The result of the last equation."""
    ask: str = ""

    def tell(self, template: str, a: int, b: int = 0) -> None:
        """Adds a fact to the question."""
        self.facts.append(_Sentence(template, a, b))

    def work(self, left: int, symbol: str, right: int, shown: str, a: int = 0, b: int = 0) -> int:
        """Adds an equation, and the sentence of the answer that shows it; returns its result."""
        self.value = OPERATIONS[symbol](left, right)
        self.equations.append(f"{left}{symbol}{right}={self.value}")
        self.working.append(_Sentence(shown, a, b, self.equations[-1]))
        return self.value


def verify(item: Item, text: str) -> bool:
    """Tells whether a solution ends in the problem's number; text after it is ignored."""
    number = re.match(r"\$?(-?[0-9]+)(?![.,]?[0-9]|\s*[-+*/=]\s*[0-9])", final_answer(text))
    return number is not None and int(number[1]) == int(item.target)


def _draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws a problem of two to four steps; None if a number of its story is out of range."""
    draft = rng.choice(_PLANS)(rng, rng.randint(2, 4), LARGEST_VALUE[difficulty])
    if draft is None or not owns(" ".join(draft.equations)):
        return None
    return _write(rng, draft)


def _drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item:
    """Asks for the equations of several problems, or for any equations.

    In the first form the question lists the left sides of all equations in order. In the second,
    each equation is from another problem, so that a result depends on its own equation alone.
    """
    with_left_sides = rng.random() < 0.5
    problems: list[list[str]] = []
    while len(problems) < (_DRILLED_PROBLEMS if with_left_sides else DRILLED_SUMS):
        problem = _draw(rng, difficulty, owns)
        if problem is not None:
            problems.append(EQUATION.findall(problem.answer))
    if with_left_sides:
        equations = list(itertools.chain(*problems))
        question = " ".join(equation.partition("=")[0] for equation in equations)
    else:
        equations = [rng.choice(problem) for problem in problems]
        question = "Any sums."
    answer = " ".join(equations)
    return Item(question, answer, answer)


def _write(rng: Random, draft: _Draft) -> Item:
    """Draws the names, which are not part of the key."""
    girls, boys = rng.sample(GIRLS, 2), rng.sample(BOYS, 2)
    is_he = rng.random() < 0.5
    # Name and friend differ in pronoun, so that "he" and "she" can only mean the first.
    (name, third), (friend, fourth) = (boys, girls) if is_he else (girls, boys)
    he, him = ("he", "him") if is_he else ("she", "her")
    things = rng.choice(draft.things)
    others = rng.choice([other for other in THINGS if other != things])
    people = {"name": name, "friend": friend, "third": third, "fourth": fourth}
    words = {**people, "he": he, "him": him, "things": things, "others": others}
    question = f"{_retell(draft.facts, words)} {draft.ask.format(**words)}"
    answer = f"{_retell(draft.working, words)}\n#### {draft.value}"
    return Item(question, answer, str(draft.value))


def _retell(told: Sequence[_Sentence], words: Mapping[str, str]) -> str:
    return sentences([
        template.format(a=a, b=b, equation=equation, day=day, **words)
        for day, (template, a, b, equation) in zip(DAYS, told, strict=False)
    ])  # fmt: skip


def _operand(rng: Random, symbol: str, count: int, limit: int) -> int | None:
    """Returns a number to apply to `count` with a result in range, or None."""
    if symbol == "/":
        fits = [n for n in range(2, 10) if count % n == 0 and 2 <= count // n <= _LARGEST_FACTOR]
        return rng.choice(fits) if fits else None
    if symbol == "*":
        largest = min(_LARGEST_FACTOR, limit // count) if count <= _LARGEST_FACTOR else 0
    else:
        largest = min(limit // 2, limit - count if symbol == "+" else count - SMALLEST_VALUE)
    return rng.randint(2, largest) if largest >= 2 else None


def _opening_numbers(rng: Random, symbol: str, limit: int) -> tuple[int, int]:
    if symbol == "*":
        a = rng.randint(2, min(_LARGEST_FACTOR, limit // 2))
        return a, rng.randint(2, min(_LARGEST_FACTOR, limit // a))
    if symbol == "+":
        return rng.randint(2, limit // 2), rng.randint(2, limit // 2)
    return rng.randint(4, limit - 2), 0


def _next_event(
    rng: Random, story: CountStory, count: int, limit: int, *, is_last: bool, previous: StoryEvent
) -> tuple[StoryEvent, int] | None:
    """Returns an event possible at this count, with its number; not the previous one if another
    fits."""
    choices = [story.gains, story.losses] if rng.random() < 0.5 else [story.losses, story.gains]
    if is_last and rng.random() < 0.5:
        choices.insert(0, story.endings)
    for events in filter(None, choices):
        event = rng.choice([event for event in events if event is not previous] or events)
        operand = _operand(rng, event.symbol, count, limit)
        if operand is not None:
            return event, operand
    return None


def _running_count(story: CountStory, rng: Random, steps: int, limit: int) -> _Draft | None:
    """Plans a story as a chain: each event changes the count left by the previous one."""
    event = rng.choice(story.openings)
    a, b = _opening_numbers(rng, event.symbol, limit)
    draft, count = _Draft(story.things), a
    draft.tell(event.told, a, b)
    if event.symbol:
        count = draft.work(a, event.symbol, b, f"{event.told}, so {story.shown}", a, b)
    else:
        draft.working = draft.facts.copy()
    while len(draft.equations) < steps:
        is_last = len(draft.equations) == steps - 1
        following = _next_event(rng, story, count, limit, is_last=is_last, previous=event)
        if following is None:
            return None
        event, a = following
        draft.tell(rng.choice(("", "then ")) + event.told, a)
        shown = f"{event.told}, so {event.shown or story.shown}"
        count = draft.work(count, event.symbol, a, shown, a)
    draft.ask = rng.choice(event.asks or story.asks)
    return draft


_WHO = ("{name}", "{friend}", "{third}", "{fourth}")
_COMPARISONS = {
    "+": "%s has {a} more {things} than %s",
    "-": "%s has {a} fewer {things} than %s",
    "*": "%s has {a} times as many {things} as %s",
}


def _comparison(rng: Random, steps: int, limit: int) -> _Draft | None:
    """Plans numbers of people, each compared with the previous; asks for the last or for a sum."""
    sums = 2 if steps == 4 else rng.randint(0, 1)
    people = _WHO[: steps - sums + 1]
    draft, numbers = _Draft(THINGS), [rng.randint(2, limit // 2)]
    draft.tell("{name} has {a} {things}", numbers[0])
    draft.working = draft.facts.copy()
    for other, who in itertools.pairwise(people):
        symbol = rng.choice("+-*")
        operand = _operand(rng, symbol, numbers[-1], limit)
        if operand is None:
            return None
        told = _COMPARISONS[symbol] % (who, other)
        draft.tell(told, operand)
        shown = f"{told}, so {who} has {{equation}} {{things}}"
        numbers.append(draft.work(numbers[-1], symbol, operand, shown, operand))
    draft.ask = f"How many {{things}} does {people[-1]} have?"
    if sums:
        _add_up(draft, people[-sums - 1 :], numbers[-sums - 1 :])
    return draft if draft.value <= limit else None


def _add_up(draft: _Draft, people: Sequence[str], numbers: Sequence[int]) -> None:
    """Asks instead for the total of two or three people."""
    first, second, *others = people
    shown = f"{first} and {second} have {{equation}} {{things}} together"
    draft.work(numbers[0], "+", numbers[1], shown)
    draft.ask = f"How many {{things}} do {first} and {second} have together?"
    for other, number in zip(others, numbers[2:], strict=True):
        shown = f"with {other} they have {{equation}} {{things}} together"
        draft.work(draft.value, "+", number, shown)
        draft.ask = "How many {things} do all three have together?"


def _shopping(rng: Random, steps: int, limit: int) -> _Draft | None:
    """Asks for the price of one or two kinds of things, or for the change."""
    draft, prices = _Draft(THINGS), []
    bought = {"things": "{name} bought {a} {things} for {b} dollars each"}
    if steps > 2:
        bought["others"] = "{he} also bought {a} {others} for {b} dollars each"
    for things, told in bought.items():
        a, b = _opening_numbers(rng, "*", limit)
        draft.tell(told, a, b)
        shown = f"{told}, so the {{{things}}} cost {{equation}} dollars"
        prices.append(draft.work(a, "*", b, shown, a, b))
    if steps > 2:
        draft.work(prices[0], "+", prices[1], "in total {he} spent {equation} dollars")
    draft.ask = "How many dollars did {he} spend in total?"
    if steps == 3:
        return draft if draft.value <= limit else None
    if draft.value > limit - SMALLEST_VALUE:
        return None
    cash = rng.randint(draft.value + SMALLEST_VALUE, limit)
    told = "{he} paid with {a} dollars"
    draft.tell(told, cash)
    draft.work(cash, "-", draft.value, f"{told}, so {{he}} got {{equation}} dollars back", cash)
    draft.ask = "How many dollars did {he} get back?"
    return draft


_PLANS = (*(partial(_running_count, story) for story in STORIES), _comparison, _shopping)

TASK = Task(
    name="word_problems",
    about="word problems of two to four steps, with worked solutions",
    draw=_draw,
    difficulties={
        difficulty: f"no number above {largest}" for difficulty, largest in LARGEST_VALUE.items()
    },
    gen_length=128,
    verify=verify,
    strict=is_worked_answer,
    drill=_drill,
)
