"""Endings: all four are told, one is consistent, and nothing but the story tells which."""

import re
from collections import Counter
from itertools import islice
from random import Random

import pytest

from llada_jax.evaluation.task import Item
from llada_jax.evaluation.tasks.endings import KINDS, TASK

ITEMS = [
    item
    for difficulty in TASK.difficulties
    for item in islice(TASK.items(11, "train", difficulty=difficulty), 400)
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_place_stays_open_and_all_endings_differ(kind):
    for seed in range(200):
        facts, stem, endings, reasons = kind(Random(seed))
        assert len(set(endings)) == 4
        assert not re.search(r"[{}]", "".join([*facts, stem, *endings, *reasons]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reasons_are_told(kind):
    for seed in range(200):
        story = kind(Random(seed))
        for reason in story.reasons:
            told = re.sub(r", \d+[+-]\d+=\d+$", "", reason)
            assert told in story.facts


def test_letters_are_uniform_and_choices_differ():
    counts = Counter(item.target for item in ITEMS)
    assert all(0.2 < counts[letter] / len(ITEMS) < 0.3 for letter in "ABCD")
    for item in ITEMS:
        assert len(set(item.choices)) == 4
        assert [line[3:] for line in item.question.split("\n")[1:]] == list(item.choices)


def test_the_right_ending_is_consistent_by_another_reading():
    read = Counter()
    for item in ITEMS:
        kind, expected = reading(item)
        assert item.choices["ABCD".index(item.target)] == expected, item
        read[kind] += 1
    assert len(read) == len(KINDS)


def reading(item: Item) -> tuple[str, str]:
    """The kind of a story, and its ending, by patterns alone."""
    text = item.question
    if needed := re.search(r"Later \w+ needed the (\w+)", text):
        thing = needed[1]
        place = re.search(rf"put the {thing} in the (\w+)", text)[1]
        return "fetch", f"opened the {place} and took out the {thing}"
    if given := re.search(r"gave the (\w+) to (\w+)\.", text):
        thing, taker = given.groups()
        place = re.search(rf"{taker} went to the (\w+)", text)[1]
        return "handed_over", f"{taker} had the {thing} in the {place}"
    if came := re.search(r"At (\d+) \w+ went out for (\w+)", text):
        shop = {"bread": "bakery", "books": "bookshop", "pills": "pharmacy", "milk": "dairy"}
        closes = re.search(rf"[Tt]he {shop[came[2]]} closes at (\d+)", text)[1]
        state = "open" if int(came[1]) < int(closes) else "closed"
        return "shopping", f"found the {shop[came[2]]} {state}"
    if left := re.search(r"had (\d+) (\w+) and (ate|got) (\d+)", text):
        had, food, verb, change = left.groups()
        number = int(had) + (int(change) if verb == "got" else -int(change))
        friend = re.search(rf"(\w+) likes {food}", text)[1]
        return "leftovers", f"gave all {number} {food} to {friend}"
    if asked := re.search(r"So on (\w+day) ", text):
        day = asked[1]
        needs = {"rained": "an umbrella", "snowed": "warm boots", "was hot": "a sun hat"}
        was = re.search(rf"[Oo]n {day} it ([\w ]+)\.", text)[1]
        place = re.search(rf"[Oo]n {day} \w+ went to the (\w+)\.", text)[1]
        return "weather", f"took {needs[was]} to the {place}"
    if birthday := re.search(r"For the birthday (\w+) got", text):
        friend = birthday[1]
        color = re.search(rf"{friend} likes (\w+)\.", text)[1]
        lacks = re.search(rf"{friend} has a \w+ but no (\w+)\.", text)[1]
        return "present", f"a {color} {lacks}"
    if wanted := re.search(r"wanted to go to the (\w+)\.", text):
        place = wanted[1]
        bus = re.search(rf"[Bb]us (\d+) goes to the {place}\.", text)[1]
        there = {
            "lake": "swam", "market": "bought fish", "zoo": "saw lions",
            "station": "met a friend", "stadium": "watched a game", "museum": "looked at pictures",
        }  # fmt: skip
        return "travel", f"took bus {bus} and {there[place]}"
    raise AssertionError(f"no pattern reads {text!r}")


def test_what_settles_a_story_is_in_one_split_only():
    reasons = {
        split: {
            item.answer.partition("\n")[0]
            for difficulty in TASK.difficulties
            for item in islice(TASK.items(12, split, difficulty=difficulty), 400)
        }
        for split in ("train", "test")
    }
    assert reasons["train"].isdisjoint(reasons["test"])
