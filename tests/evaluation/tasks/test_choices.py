"""Four choices: by an independent reading of the rule, only the right one follows."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice

import pytest

from llada_jax.evaluation.task import Item
from llada_jax.evaluation.tasks.choices import COMPASS, DAYS, KINDS, TASK

ITEMS = [
    item
    for difficulty in TASK.difficulties
    for item in islice(TASK.items(11, "train", difficulty=difficulty), 500)
]


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def lifted(text: str) -> Callable[[str], bool]:
    stuff = re.search(r"lifts only (\w+)", text)[1]
    return lambda choice: f"{choice[4:]} is of {stuff}" in text


def within(text: str) -> Callable[[str], bool]:
    low, high = numbers(re.search(r"(\d+ to \d+)", text)[1])
    return lambda choice: low <= numbers(choice)[0] <= high


def following(text: str) -> Callable[[str], bool]:
    a, b, c = numbers(re.search(r"The numbers are (.+)\.", text)[1])
    return lambda choice: int(choice) == c + (b - a)


def facing(text: str) -> Callable[[str], bool]:
    place = COMPASS.index(re.search(r"faces (\w+)\.", text)[1])
    for turn in re.findall(r"turns (\w+)", text):
        place += {"right": 1, "around": 2, "left": 3}[turn]
    return lambda choice: choice == COMPASS[place % 4]


def some_days_on(text: str) -> Callable[[str], bool]:
    names = re.search(r"Today is (\w+)\.|It is (\w+) today\.", text).groups()
    today = next(DAYS.index(name) for name in names if name)
    count = numbers(text.rpartition(". ")[2])[0]
    step = count if "will it be" in text else -count
    return lambda choice: choice == DAYS[(today + step) % 7]


def signalled(text: str) -> Callable[[str], bool]:
    seen = re.search(r"sees (\w+)", text)[1]
    return lambda choice: f"{seen} means {choice}" in text


def defined(text: str) -> Callable[[str], bool]:
    size, shade = re.search(r"A \w+ is (\w+) and (\w+)\.", text).groups()
    return lambda choice: choice == f"{size} {shade}"


def cheapest(text: str) -> Callable[[str], bool]:
    prices = {f"the {name}": int(n) for name, n in re.findall(r"[Tt]he (\w+) costs (\d+)", text)}
    best = (min if "cheapest" in text else max)(prices.values())
    return lambda choice: prices[choice] == best


READINGS = {
    "What does the": lifted,
    r"How (many|heavy)": within,
    "comes next": following,
    "face now": facing,
    "Which day": some_days_on,
    "must": signalled,
    r"Which \w+ is a": defined,
    r"cheapest|dearest": cheapest,
}


@pytest.mark.parametrize("pattern", READINGS)
def test_one_choice_follows_and_it_is_the_target(pattern):
    found = 0
    for item in ITEMS:
        text = item.question.partition("\n")[0]
        if re.search(pattern, text) and pattern == first_pattern(text):
            follows = READINGS[pattern](text)
            letters = "".join(
                letter
                for letter, choice in zip("ABCD", item.choices, strict=True)
                if follows(choice)
            )
            assert letters == item.target, item
            found += 1
    assert found > 80


def first_pattern(text: str) -> str:
    return next(pattern for pattern in READINGS if re.search(pattern, text))


def test_every_kind_has_an_independent_reader():
    assert len(READINGS) == len(KINDS)


def test_letters_are_uniform_and_choices_are_listed():
    counts = Counter(item.target for item in ITEMS)
    assert all(0.2 < counts[letter] / len(ITEMS) < 0.3 for letter in "ABCD")
    for item in ITEMS:
        assert len(set(item.choices)) == 4
        assert [line[3:] for line in item.question.split("\n")[1:]] == list(item.choices)
        right = item.choices["ABCD".index(item.target)]
        assert f"\n{item.target}) {right}\n#### {item.target}" in item.answer


def test_drills_name_the_letter_of_every_choice():
    for index in range(200):
        drill = TASK.item(3, index, "train", drill=True)
        *_, asked = drill.question.split("\nThen name: ")
        letters = drill.target.split()
        texts = [drill.choices["ABCD".index(letter)] for letter in letters]
        assert sorted(letters) == list("ABCD")
        assert asked == f"{', '.join(texts[1:])}."
        assert f"\n{letters[0]}) {texts[0]}\n{letters[1]}) {texts[1]}\n" in drill.answer


def told(item: Item) -> str:
    """All facts, the question and the choices, in canonical order."""
    facts, *choices = item.question.split("\n")
    return " ".join([*sorted(re.split(r"(?<=\.) ", facts)), *sorted(line[3:] for line in choices)])


def test_a_key_is_in_one_split_only():
    seen = {
        split: {
            told(item)
            for difficulty in TASK.difficulties
            for item in islice(TASK.items(12, split, difficulty=difficulty), 400)
        }
        for split in ("train", "test")
    }
    assert seen["train"].isdisjoint(seen["test"])


@pytest.mark.parametrize("difficulty", TASK.difficulties)
def test_kinds_are_equally_frequent_and_questions_differ(difficulty):
    items = [TASK.item(6, index, "test", difficulty=difficulty) for index in range(800)]
    kinds = Counter(first_pattern(item.question.partition("\n")[0]) for item in items)
    assert len(kinds) == len(KINDS)
    assert all(0.08 < count / len(items) < 0.17 for count in kinds.values()), kinds
    assert len({told(item) for item in items}) > 500


@pytest.mark.parametrize("pattern", [r"How (many|heavy)", "comes next"])
def test_the_rank_of_a_choice_does_not_reveal_the_answer(pattern):
    items = [item for item in ITEMS if re.search(pattern, item.question)]
    ranks = Counter(
        sorted(numbers(choice)[0] for choice in item.choices).index(
            numbers(item.choices["ABCD".index(item.target)])[0]
        )
        for item in items
    )
    assert len(items) > 150
    assert all(0.15 < ranks[rank] / len(items) < 0.35 for rank in range(4)), ranks
