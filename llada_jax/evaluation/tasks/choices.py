"""Multiple-choice questions with four choices, one of which follows from a rule; similar to ARC.

The rule is stated or is common knowledge (days, compass), and the facts cannot be guessed. All four
choices are plausible answers, so that the choices alone do not give the right one away. The worked
answer applies the rule, repeats the right choice as listed, and ends in its letter.

The key of an item is its facts, question and choices in any order, so no question of the test split
occurs in training with its sentences or choices rearranged.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

from llada_jax.config_files import read_yaml
from llada_jax.evaluation.task import Item, OwnsKey, Task, is_worked_answer
from llada_jax.evaluation.wording import DAYS, PEOPLE, sentence, sentences

LARGEST_VALUE = {0: 9, 1: 20, 2: 99}  # by difficulty
SMALLEST_OF_SEQUENCES, LARGEST_OF_SEQUENCES = 6, {0: 24, 1: 50, 2: 99}
NEAR = 5  # largest distance of a wrong number from the right one
_DAYS_AWAY = {0: 4, 1: 5, 2: 6}
_DISTRACTIONS = {0: 0, 1: 1, 2: 2}  # sentences that have nothing to do with the question

LETTERS = "ABCD"
COMPASS = ("north", "east", "south", "west")
_TURNS = {"right": 1, "around": 2, "left": 3}
WORDS = read_yaml(Path(__file__).with_suffix(".yaml"))


class _Puzzle(NamedTuple):
    """Facts, question, the choices with the right one first, and the reasoning."""

    facts: list[str]
    ask: str
    choices: Sequence[str]
    reason: str


def _material(rng: Random, difficulty: int) -> _Puzzle:
    """Asks what a device lifts; it lifts only things of one material."""
    device = rng.choice(WORDS["devices"])
    things, materials = rng.sample(WORDS["objects"], 4), rng.sample(WORDS["materials"], 4)
    made = [f"the {thing} is of {stuff}" for thing, stuff in zip(things, materials, strict=True)]
    rule = f"the {device} lifts only {materials[0]}"
    facts, choices = [rule, *rng.sample(made, 4)], [f"the {thing}" for thing in things]
    return _Puzzle(facts, f"What does the {device} lift?", choices, f"{rule} and {made[0]}")


def _within(rng: Random, difficulty: int) -> _Puzzle:
    """Asks which of four numbers is within a range; any of them, by rank, can be the answer."""
    rule, ask, unit = rng.choice(WORDS["ranges"])
    numbers: list[int] = []
    ranges: list[list[tuple[int, int]]] = [[]]  # for each number, ranges with no other of the four
    while not all(ranges):
        numbers = sorted(rng.sample(range(2, LARGEST_VALUE[difficulty] + 1), 4))
        edges = [0, *numbers, LARGEST_VALUE[difficulty] + 1]
        ranges = [
            [(low, high) for low, high in product(range(a + 1, b + 1), range(b, c)) if low < high]
            for a, b, c in zip(edges, numbers, edges[2:], strict=False)
        ]
    index = rng.randrange(4)
    low, high = rng.choice(ranges[index])
    right, *wrong = numbers[index], *numbers[:index], *numbers[index + 1 :]
    choices = [f"{number} {unit}" for number in (right, *wrong)]
    reason = f"{right} is from {low} to {high}"
    return _Puzzle([rule.format(low=low, high=high)], ask, choices, reason)


def _sequence(rng: Random, difficulty: int) -> _Puzzle:
    """Asks for the next number of an arithmetic sequence; any choice, by rank, can be right."""
    step = rng.randint(2, 5 + 2 * difficulty)
    first = rng.randint(SMALLEST_OF_SEQUENCES, LARGEST_OF_SEQUENCES[difficulty] - 3 * step)
    numbers = [first + index * step for index in range(4)]
    if rng.random() < 0.5:
        numbers.reverse()
    *shown, right = numbers
    relation, symbol = ("more", "+") if right > shown[0] else ("less", "-")
    smaller, larger = (
        [number for number in near if number not in numbers]
        for near in (range(right - NEAR, right), range(right + 1, right + NEAR + 1))
    )
    count = rng.randrange(4)
    wrong = rng.sample(smaller, count) + rng.sample(larger, 3 - count)
    rule = f"each number is {step} {relation} than the one before"
    facts = [rule, f"the numbers are {', '.join(map(str, shown))}"]
    choices = [str(number) for number in (right, *wrong)]
    return _Puzzle(facts, "Which number comes next?", choices, f"{shown[-1]}{symbol}{step}={right}")


def _turning(rng: Random, difficulty: int) -> _Puzzle:
    """Asks which way someone faces after one or two turns."""
    who, facing = rng.choice(PEOPLE), rng.randrange(4)
    facts, reasons = [f"{who} faces {COMPASS[facing]}"], []
    for _ in range(rng.randint(1, 2) if difficulty else 1):
        turn = rng.choice(tuple(_TURNS))
        start, facing = facing, (facing + _TURNS[turn]) % 4
        facts.append(f"{who} turns {turn}")
        reasons.append(f"from {COMPASS[start]} {turn} is {COMPASS[facing]}")
    wrong = [direction for direction in COMPASS if direction != COMPASS[facing]]
    choices = [COMPASS[facing], *wrong]
    return _Puzzle(facts, f"Where does {who} face now?", choices, " and ".join(reasons))


def _day(rng: Random, difficulty: int) -> _Puzzle:
    """Asks for the day of the week some days from now, or some days ago."""
    today, count = rng.randrange(7), rng.randint(2, _DAYS_AWAY[difficulty])
    direction, when = rng.choice(((1, f"in {count} days"), (-1, f"{count} days ago")))
    path = [DAYS[(today + direction * step) % 7] for step in range(1, count + 1)]
    verb = "will it be" if direction > 0 else "was it"
    wrong = rng.sample([name for name in DAYS if name != path[-1]], 3)
    fact = rng.choice(("today is {}", "it is {} today")).format(DAYS[today])
    reason = f"the days are {', '.join(path)}"
    return _Puzzle([fact], f"Which day {verb} {when}?", [path[-1], *wrong], reason)


def _signal(rng: Random, difficulty: int) -> _Puzzle:
    """Asks for the meaning of one of four signals."""
    who = rng.choice(PEOPLE)
    colors, actions = rng.sample(WORDS["signals"], 4), rng.sample(WORDS["actions"], 4)
    code = [f"{color} means {action}" for color, action in zip(colors, actions, strict=True)]
    facts = [f"in a game {', '.join(rng.sample(code, 4))}", f"{who} sees {colors[0]}"]
    return _Puzzle(facts, f"What must {who} do?", actions, code[0])


def _definition(rng: Random, difficulty: int) -> _Puzzle:
    """Asks what an invented word for two properties names; choices have both, one or neither."""
    word = rng.choice(WORDS["invented"])
    size, other_size = rng.sample(WORDS["sizes"], 2)
    shade, other_shade = rng.sample(WORDS["shades"], 2)
    thing = rng.choice(WORDS["objects"])
    rule = f"a {word} is {size} and {shade}"
    choices = map(" ".join, product((size, other_size), (shade, other_shade)))
    return _Puzzle([rule], f"Which {thing} is a {word}?", list(choices), rule)


def _price(rng: Random, difficulty: int) -> _Puzzle:
    """Asks for the cheapest or the most expensive of four goods."""
    who, goods = rng.choice(PEOPLE), rng.sample(WORDS["goods"], 4)
    prices = sorted(rng.sample(range(2, LARGEST_VALUE[difficulty] + 1), 4))
    relation = rng.choice(("cheapest", "dearest"))
    if relation == "dearest":
        prices.reverse()
    costs = [f"the {good} costs {cost} dollars" for good, cost in zip(goods, prices, strict=True)]
    facts = [*rng.sample(costs, 4), f"{who} buys the {relation} thing"]
    choices = [f"the {good}" for good in goods]
    return _Puzzle(facts, f"What does {who} buy?", choices, f"{costs[0]} and is {relation}")


KINDS = _material, _within, _sequence, _turning, _day, _signal, _definition, _price


def _draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws a puzzle with its choices in random order; None if it belongs to the other split."""
    puzzle = rng.choice(KINDS)(rng, difficulty)
    if not owns(" ".join(sorted([*puzzle.facts, puzzle.ask, *puzzle.choices]))):
        return None
    idle = (
        f"{rng.choice(PEOPLE)} likes {rng.choice(WORDS['signals'])}",
        f"{rng.choice(PEOPLE)} has {rng.randint(2, 9)} books",
        f"{rng.choice(PEOPLE)} is at home",
    )
    facts = [*rng.sample(idle, _DISTRACTIONS[difficulty]), *puzzle.facts]
    right, choices = puzzle.choices[0], rng.sample(puzzle.choices, 4)
    letter = LETTERS[choices.index(right)]
    listed = [f"{name}) {text}" for name, text in zip(LETTERS, choices, strict=True)]
    question = "\n".join([f"{sentences(facts)} {puzzle.ask}", *listed])
    answer = f"{sentence(puzzle.reason)}\n{letter}) {right}\n#### {letter}"
    return Item(question, answer, letter, tuple(choices))


def _drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Asks for the letters of the other choices as well, in random order, so that a question trains
    four decisions instead of one."""
    item = _draw(rng, difficulty, owns)
    if item is None:
        return None
    letters = [item.target, *rng.sample([name for name in LETTERS if name != item.target], 3)]
    texts = [item.choices[LETTERS.index(letter)] for letter in letters]
    reason, _, _ = item.answer.partition("\n")
    named = "".join(f"\n{letter}) {text}" for letter, text in zip(letters, texts, strict=True))
    target = " ".join(letters)
    question = f"{item.question}\nThen name: {', '.join(texts[1:])}."
    return Item(question, f"{reason}{named}\n#### {target}", target, item.choices)


TASK = Task(
    name="choices",
    about="four choices, one of which follows from a rule",
    draw=_draw,
    difficulties={
        level: f"numbers up to {largest}, {_DISTRACTIONS[level]} idle sentences"
        for level, largest in LARGEST_VALUE.items()
    },
    gen_length=64,
    strict=is_worked_answer,
    drill=_drill,
    version=3,
)
