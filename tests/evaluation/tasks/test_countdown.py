"""Countdown: any right expression passes, wrong and odd ones do not."""

import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.evaluation.task import Item
from llada_jax.evaluation.tasks.countdown import LEVELS, TASK, strict, verify

ITEM = Item("Use 3, 4 and 5 once each to make 35.", "", "(3+4)*5")


@pytest.mark.parametrize(
    "expression",
    ["(3+4)*5", "5*(4+3)", " 5 * ( 3 + 4 ) ", "(3+4)*5.", "(3+4)*5=35"],
)
def test_right_expressions_are_accepted(expression):
    assert verify(ITEM, f"3+4=7 7*5=35\n#### {expression}")


@pytest.mark.parametrize(
    "expression",
    [
        "3+4*5",  # another value
        "7*5",  # a number that was not given
        "35",
        "(3+4)*5*1",
        "(3+4)*5+3-3",  # a number twice
        "",
        "(3+4)*",
        "3 if 4 else 5",
        "__import__('os').system('true')",
        "35/(3-3)+4*5*0",
        "(3+4)*5.0",
        "True+34",
        "3**4-46",
        "5*(3+4" + ")" * 200,
        "-" * 90 + "35",
    ],
)
def test_wrong_expressions_are_rejected(expression):
    assert not verify(ITEM, f"#### {expression}")


@pytest.mark.parametrize(
    ("working", "is_right"),
    [
        ("3+4=7 7*5=35", True),
        ("4+3=7 5*7=35", True),
        ("3+4=8 7*5=35", False),  # a false equation
        ("3+5=8 7*5=35", False),  # true, but 7 was not computed
        ("3+4=7", False),  # 5 is left
        ("3+4=7 7*5=35 35", False),
        ("3+4=77*5=35", False),
        ("3-4=-1 7*5=35", False),
        ("", False),
    ],
)
def test_equations_must_be_true_and_use_what_is_left(working, is_right):
    assert strict(ITEM, f"{working}\n#### 5*(3+4)") == is_right
    assert not strict(ITEM, f"{working}\n#### 5*(3+4)=35")


def test_division_is_exact():
    item = Item("Use 2, 3 and 4 once each to make 6.", "", "")
    assert verify(item, "#### 4/2*3")
    assert verify(item, "#### 4*(3/2)")
    assert not verify(Item("Use 3, 2 and 1 once each to make 1.", "", ""), "#### 3//2*1")


@pytest.mark.parametrize("difficulty", TASK.difficulties)
def test_worked_steps_lead_to_the_target(difficulty):
    level = LEVELS[difficulty]
    for item in islice(TASK.items(5, "train", difficulty=difficulty), 200):
        given, wanted = (list(map(int, re.findall(r"\d+", part)))
                         for part in item.question.split(" to make "))  # fmt: skip
        assert len(given) == level.count
        assert max(given) <= level.largest
        left = given.copy()
        for equation in item.answer.partition("\n")[0].split():
            a, b, result = map(int, re.split(r"[-+*/=]", equation))
            symbol = re.search(r"[-+*/]", equation)[0]
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[symbol] == result
            left.remove(a)
            left.remove(b)
            left.append(result)
        assert left == wanted
        assert eval(item.target) == wanted[0]


@given(st.text(max_size=40))
def test_verifying_any_text_raises_nothing(text):
    assert verify(ITEM, f"#### {text}") in (True, False)


def test_numbers_with_their_target_are_in_one_split_only():
    keys = {
        split: {
            (*sorted(re.findall(r"\d+", item.question.partition(" to make ")[0])),
             item.question.rpartition(" ")[2])
            for difficulty in TASK.difficulties
            for item in islice(TASK.items(12, split, difficulty=difficulty), 400)
        }
        for split in ("train", "test")
    }  # fmt: skip
    assert keys["train"].isdisjoint(keys["test"])
