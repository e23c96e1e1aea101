"""Inventories: every count follows, long answers, and wordings that nothing tells apart."""

import re
from itertools import islice

import pytest

import llada_jax as lj
from llada_jax.checkpoint import model_path
from llada_jax.evaluation.tasks.inventory import LARGEST_VALUE, SHELVES, TASK, WORDS
from llada_jax.text import Tokenizer

COLORS = "|".join(WORDS["places"])
SHELF = re.compile(rf"(?:the|on the) ({COLORS})", re.IGNORECASE)


def items(difficulty: int, count: int = 150):
    return islice(TASK.items(3, "train", difficulty=difficulty), count)


@pytest.mark.parametrize("difficulty", TASK.difficulties)
def test_every_count_follows_from_what_is_told(difficulty):
    for item in items(difficulty):
        *facts, _ask = re.split(r"(?<=[.?]) ", item.question)
        *shown, together = re.split(r"(?<=[.]) ", item.answer.partition("\n")[0])
        counts: dict[str, int] = {}
        for fact, sentence in zip(facts, shown, strict=True):
            place, *other = SHELF.findall(fact)
            numbers = list(map(int, re.findall(r"\d+", fact)))
            down = bool(re.search("fewer|lost|went", fact))
            a = counts[other[0].lower()] if other else numbers[0]
            expected = a + (-1 if down else 1) * numbers[-1]
            left, symbol, right, result = re.search(r"(\d+)([+-])(\d+)=(\d+)", sentence).groups()
            assert (int(left), symbol, int(right)) == (a, "-" if down else "+", numbers[-1])
            assert int(result) == expected <= LARGEST_VALUE[difficulty]
            assert SHELF.findall(sentence) == [place.lower()] or SHELF.findall(sentence) == [place]
            counts[place.lower()] = expected
        assert len(counts) == SHELVES[difficulty]
        first, second = (each.lower() for each in re.findall(COLORS, together))
        assert int(item.target) == counts[first] + counts[second]


def test_answers_take_four_to_eight_blocks():
    tokenizer = Tokenizer.from_folder(model_path("small"))
    for difficulty in TASK.difficulties:
        for item in items(difficulty, 100):
            assert 96 < len(tokenizer.encode(item.answer)) + 1 <= TASK.gen_length


def test_wordings_are_drawn_alike():
    told = [item.answer for item in items(0, 300)]
    shares = [
        sum(len(re.findall(form, text)) for text in told)
        for form in (
            r"shelf has \d",
            r"There are [\d+=-]+ \w+ on",
            r"On the \w+ shelf are",
            r"So \d",
        )
    ]
    assert all(0.2 < share / sum(shares) < 0.3 for share in shares)


def test_results_of_far_sentences_are_needed():
    """In a fifth of the sentences or more it is not the one before."""
    far = total = 0
    for item in items(2):
        seen: dict[int, int] = {}
        for number, (left, result) in enumerate(re.findall(r"(\d+)[+-]\d+=(\d+)", item.answer)):
            total += 1
            far += int(left) in seen and number - seen[int(left)] > 1
            seen[int(result)] = number
    assert far / total > 0.2
    assert lj.load("small").config.max_length >= 2 * TASK.gen_length
