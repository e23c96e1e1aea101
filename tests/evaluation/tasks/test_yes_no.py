"""Yes/no questions: balanced, and true by a reading that shares nothing with the generator."""

import re
from itertools import islice

import pytest

from llada_jax.evaluation.task import Item
from llada_jax.evaluation.tasks.yes_no import KINDS, TASK

ITEMS = [
    item
    for difficulty in TASK.difficulties
    for split in ("train", "test")
    for item in islice(TASK.items(11, split, difficulty=difficulty), 300)
]


def sentences(item: Item) -> list[str]:
    *facts, _ = re.split(r"(?<=\.) ", item.question)
    return [fact.removesuffix(".") for fact in facts]


def where(item: Item, who: str, place: str) -> bool:
    moves = [fact for fact in sentences(item) if fact.startswith(f"{who} ")]
    return moves[-1].endswith(f" {place}")


def owns(item: Item, who: str, thing: str) -> bool:
    about = [fact for fact in sentences(item) if f"the {thing}" in fact]
    return about[-1].endswith(f"to {who}") or about[-1] == f"{who} had the {thing}"


def exceeds(item: Item, who: str, relation: str, other: str) -> bool:
    pairs = dict(fact.split(f" is {relation} than ") for fact in sentences(item))
    while who in pairs:
        who = pairs[who]
        if who == other:
            return True
    return False


def has_color(item: Item, who: str, color: str) -> bool:
    facts = [fact.lower() for fact in sentences(item)]
    (animal,) = (fact.split(" is a ")[1] for fact in facts if fact.startswith(f"{who.lower()} is"))
    plural = animal if animal == "sheep" else animal + "s"
    return f"all {plural} are {color}" in facts


def has_more(item: Item, first: str, second: str) -> bool:
    counts = {fact.split()[-1]: int(fact.split()[-2]) for fact in sentences(item)}
    return counts[first] > counts[second]


def is_open(item: Item, shop: str, hour: str) -> bool:
    (hours,) = (fact for fact in sentences(item) if fact.startswith(f"The {shop} "))
    opens, closes = map(int, re.findall(r"\d+", hours))
    return opens < int(hour) < closes


def plays(item: Item, game: str, who: str, day: str) -> bool:
    return f"On {day} {who} plays {game}" in sentences(item)


READINGS = {
    r"Is (\w+) in the (\w+) now\?": where,
    r"Has (\w+) got the (\w+) now\?": owns,
    r"Is (\w+) (taller|older|faster|stronger) than (\w+)\?": exceeds,
    r"Does the \w+ have more (\w+) than (\w+)\?": has_more,
    r"Is the (\w+) open at (\d+)\?": is_open,
    r"Is (\w+) what (\w+) plays on (\w+)\?": plays,
    r"Is (\w+) (\w+)\?": has_color,
}


@pytest.mark.parametrize("pattern", READINGS)
def test_answers_are_true_and_balanced(pattern):
    read = READINGS[pattern]
    first = [next(p for p in READINGS if re.fullmatch(p, ask(item))) for item in ITEMS]
    items = [item for item, found in zip(ITEMS, first, strict=True) if found == pattern]
    assert len(items) > 150
    for item in items:
        names = re.fullmatch(pattern, ask(item))
        assert read(item, *names.groups()) == (item.target == "yes"), item
    assert 0.38 < sum(item.target == "yes" for item in items) / len(items) < 0.62


def ask(item: Item) -> str:
    return re.split(r"(?<=\.) ", item.question)[-1]


def test_every_kind_has_an_independent_reader():
    assert len(READINGS) == len(KINDS)


def test_reasons_are_facts_of_the_passage_and_true_comparisons():
    for item in ITEMS:
        facts = {f"{fact}." for fact in sentences(item)}
        for reason in re.split(r"(?<=\.) ", reasons_of(item)):
            compared = re.findall(r"(\d+)([<>])(\d+)", reason)
            assert reason in facts or compared
            assert all((sign == "<") == (int(one) < int(other)) for one, sign, other in compared)


def reasons_of(item: Item) -> str:
    return item.answer.partition(" So ")[0]


def test_the_conclusion_agrees_with_the_answer():
    for item in ITEMS:
        worked, _, target = item.answer.partition("\n#### ")
        assert verdict_of(worked.rpartition(" So ")[2], ask(item)) == (target == "yes")


def verdict_of(conclusion: str, question: str) -> bool:
    """What a reader takes from `red = red.`, `red != blue.`, `7>3.` or `it is open.`"""
    if match := re.fullmatch(r"(\w+) (=|!=) (\w+)\.", conclusion):
        found, relation, asked = match.groups()
        assert (found == asked) == (relation == "=") and asked in question
        return relation == "="
    if match := re.fullmatch(r"\d+([<>])\d+\.", conclusion):
        return match[1] == ">"
    return {"it is open.": True, "it is closed.": False}[conclusion]


def test_the_hour_alone_does_not_reveal_whether_a_shop_is_open():
    for difficulty in TASK.difficulties:
        asked = [TASK.item(13, index, "train", difficulty=difficulty) for index in range(3000)]
        hours: dict[str, list[bool]] = {}
        for item in asked:
            if match := re.search(r"open at (\d+)\?", item.question):
                hours.setdefault(match[1], []).append(item.target == "yes")
        guessed = sum(max(sum(known), len(known) - sum(known)) for known in hours.values())
        assert guessed / sum(map(len, hours.values())) < 0.65


def test_drills_ask_several_questions_about_one_passage():
    for index in range(300):
        drill = TASK.item(3, index, "train", drill=True)
        facts, asked = split_questions(drill.question)
        worked, _, targets = drill.answer.partition("\n#### ")
        assert len(asked) == len(set(asked)) == len(targets.split())
        conclusions = re.findall(r" So ([^.]+\.)", worked)
        for question, target, said in zip(asked, targets.split(), conclusions, strict=True):
            pattern = next(p for p in READINGS if re.fullmatch(p, question))
            item = Item(f"{facts} {question}", "", target)
            names = re.fullmatch(pattern, question).groups()
            assert READINGS[pattern](item, *names) == (target == "yes")
            assert verdict_of(said, question) == (target == "yes")


def split_questions(text: str) -> tuple[str, list[str]]:
    parts = re.split(r"(?<=[.?]) ", text)
    facts = [part for part in parts if part.endswith(".")]
    return " ".join(facts), parts[len(facts) :]


def test_deciding_facts_are_in_one_split_only():
    decides = [(ask(item), *sorted(reasons_of(item).split(". "))) for item in ITEMS]
    splits = [place // 300 % 2 for place in range(len(ITEMS))]
    train, test = (
        {key for key, split in zip(decides, splits, strict=True) if split == wanted}
        for wanted in (0, 1)
    )
    assert train.isdisjoint(test)
