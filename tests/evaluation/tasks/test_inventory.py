"""Inventories: every count follows, answers are long, and words are interchangeable."""

import re
from itertools import islice

import pytest

from llada_jax.checkpoint import model_path
from llada_jax.evaluation.tasks.inventory import FORMS, LARGEST_VALUE, SHELVES, TASK, strict
from llada_jax.text import Tokenizer

COLORS = "|".join(FORMS["places"])
EQUATION = re.compile(r"(\d+)([+-])(\d+)=(\d+)")


def items(difficulty: int, count: int = 150):
    return islice(TASK.items(3, "train", difficulty=difficulty), count)


def test_any_opening_is_clean_text_and_a_damaged_one_is_not():
    for item in items(0, 20):
        opened = re.sub(r"(^|\. )(Then|Later on|And so) ", r"\1And so ", item.answer)
        assert strict(item, opened)
        assert not strict(item, opened.replace("And so ", "An ", 1))
        assert not strict(item, opened.replace("And so ", "And so so ", 1))
        assert not strict(item, re.sub(r"=(\d+),", r"=1\1,", opened, count=1))


@pytest.mark.parametrize("difficulty", TASK.difficulties)
def test_every_count_follows_from_the_facts(difficulty):
    for item in items(difficulty):
        *facts, _ask = re.split(r"(?<=[.?]) ", item.question)
        *shown, together = re.split(r"(?<=[.]) ", item.answer.partition("\n")[0])
        counts: dict[str, int] = {}
        for fact, sentence in zip(facts, shown, strict=True):
            place, *other = re.findall(COLORS, fact)
            numbers = list(map(int, re.findall(r"\d+", fact)))
            down = re.search("fewer|lost|sold|gave", fact) is not None
            a = counts[other[0]] if other else numbers[0]
            left, symbol, right, result = EQUATION.search(sentence).groups()
            assert (int(left), symbol, int(right)) == (a, "-" if down else "+", numbers[-1])
            expected = a + (-1 if down else 1) * numbers[-1]
            assert int(result) == expected <= LARGEST_VALUE[difficulty]
            counts[place] = int(result)
            said = dict(re.findall(rf"({COLORS})=(\d+)", sentence))
            assert said == {name: str(counts[name]) for name in (place, *other)}
        assert len(counts) == SHELVES[difficulty]
        first, second = re.findall(rf"({COLORS})=", together)
        assert int(item.target) == counts[first] + counts[second]


def test_a_drill_asks_for_the_counts_of_all_shelves():
    for item in (TASK.item(3, index, "train", difficulty=1, drill=True) for index in range(50)):
        counts: dict[str, int] = {}
        for told, asked in zip(item.answer.split(". "), item.question.split()[2:], strict=True):
            place, other, change = re.fullmatch(r"(\w+)=(\w+)([+-]\d+)", asked).groups()
            a = counts[other] if other in counts else int(other)
            counts[place] = a + int(change)
            assert told.endswith(f"{a}{change}={counts[place]}, {place}={counts[place]}")
        assert set(counts) == set(FORMS["places"])


def test_answers_take_four_to_eight_blocks():
    tokenizer = Tokenizer.from_folder(model_path("small"))
    for difficulty in TASK.difficulties:
        for item in items(difficulty, 100):
            assert 96 < len(tokenizer.encode(item.answer)) + 1 <= TASK.gen_length


def test_openings_have_their_stated_frequencies():
    told = " ".join(item.answer for item in items(0, 300))
    drawn = [opening.lower() for opening in re.findall(r"(\w+ on|\w+ so|\w+) the ", told)]
    for opening, twentieths in FORMS["openings"].items():
        share = drawn.count(opening) / len(drawn)
        assert share == pytest.approx(twentieths / 20, abs=0.03)


def test_openings_shift_the_text_after_them():
    tokenizer = Tokenizer.from_folder(model_path("small"))
    said = [f"red. {opening.capitalize()} the" for opening in FORMS["openings"]]
    assert len({len(tokenizer.encode(each)) for each in said}) > 1


def test_results_of_distant_sentences_are_needed():
    """In a fifth of the sentences or more it is not the one before."""
    far = total = 0
    for item in items(2):
        last = ""
        for sentence in item.answer.partition("\n")[0].split(". ")[:-1]:
            *others, place = re.findall(rf"({COLORS})=", sentence)
            total += 1
            far += bool(others) and others[0] != last
            last = place
    assert far / total > 0.2
