import operator
import re
import zlib
from importlib.resources import files
from itertools import islice

import pytest
from tokenizers import Tokenizer

from llada_jax.evaluation.task import Item, split_of
from llada_jax.evaluation.tasks.word_problems import LARGEST_VALUE, TASK, verify

COUNT = 4_000
OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left // right if left % right == 0 else None,
}


def difficulty_of(index: int) -> int:
    return index % 4


@pytest.fixture(scope="module")
def train() -> list[Item]:
    return [TASK.item(0, i, "train", difficulty=difficulty_of(i)) for i in range(COUNT)]


@pytest.fixture(scope="module")
def held_out() -> list[Item]:
    return [TASK.item(0, i, "test", difficulty=difficulty_of(i)) for i in range(COUNT)]


def equations_of(item: Item) -> list[str]:
    return re.findall(r"[0-9]+[-+*/][0-9]+=[0-9]+", item.answer)


def numbers_of(text: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]+", text)]


def test_goldens():
    assert TASK.item(7, 123_456, "test", difficulty=3) == Item(
        "Tom had 2 boxes with 8 coins in each box. Then he sold 4 coins. "
        "How many coins did he have after that?",
        "Tom had 2 boxes with 8 coins in each box, so he had 2*8=16 coins. "
        "He sold 4 coins, so he had 16-4=12 coins.\n#### 12",
        "12",
    )
    assert TASK.item(5, 1, "test", difficulty=1) == Item(
        "Anna baked 4 trays of 2 cookies. Max gave her 6 more cookies. She baked 3 more cookies. "
        "Then Max gave her 2 more cookies. How many cookies did Anna have in the end?",
        "Anna baked 4 trays of 2 cookies, so she had 4*2=8 cookies. "
        "Max gave her 6 more cookies, so she had 8+6=14 cookies. "
        "She baked 3 more cookies, so she had 14+3=17 cookies. "
        "Max gave her 2 more cookies, so she had 17+2=19 cookies.\n#### 19",
        "19",
    )


def test_problems_never_change():
    items = [
        TASK.item(place, place, split, difficulty=difficulty)
        for place in range(200)
        for split in ("train", "test")
        for difficulty in (1, 2, 3)
    ]
    text = "\n".join(f"{item.question}\n{item.answer}" for item in items)
    assert zlib.crc32(text.encode()) == 3267026510


def test_the_sequence_is_a_pure_function_of_seed_and_split():
    first = list(islice(TASK.items(3, "train", difficulty=3), 50))
    assert first == [TASK.item(3, index, "train", difficulty=3) for index in range(50)]
    assert first != list(islice(TASK.items(4, "train", difficulty=3), 50))


def test_splits_share_no_chain_of_equations_and_no_question(train, held_out):
    train_chains = {" ".join(equations_of(item)) for item in train}
    test_chains = {" ".join(equations_of(item)) for item in held_out}
    assert train_chains.isdisjoint(test_chains)
    assert {item.question for item in train}.isdisjoint(item.question for item in held_out)
    assert all(split_of(chain) == "train" for chain in train_chains)
    assert all(split_of(chain) == "test" for chain in test_chains)


def test_problems_are_varied(train, held_out):
    """Difficulty 0 has fewer numbers to distinguish, so it has a separate bound."""
    for items, harder, easiest in ((train, 0.99, 0.95), (held_out, 0.95, 0.80)):
        groups = {True: [], False: []}
        for index, item in enumerate(items):
            groups[difficulty_of(index) == 0].append(item.question)
        assert len(set(groups[False])) > harder * len(groups[False])
        assert len(set(groups[True])) > easiest * len(groups[True])


def test_every_equation_holds_and_the_last_gives_the_value(train, held_out):
    for item in train + held_out:
        equations = equations_of(item)
        assert 2 <= len(equations) <= 4
        for equation in equations:
            left, right, result = numbers_of(equation)
            (symbol,) = set(equation) & set(OPERATIONS)
            assert OPERATIONS[symbol](left, right) == result
        assert int(item.target) == numbers_of(equations[-1])[-1]
        assert item.answer.endswith(f"\n#### {item.target}")
        assert verify(item, item.answer)


def test_operands_are_stated_or_computed_and_all_stated_numbers_are_used(train, held_out):
    for item in train + held_out:
        told, computed = set(numbers_of(item.question)), set()
        used = set()
        for left, right, result in map(numbers_of, equations_of(item)):
            used |= {left, right}
            assert {left, right} <= told | computed
            computed.add(result)
        assert told <= used


@pytest.mark.parametrize("difficulty", LARGEST_VALUE)
@pytest.mark.parametrize("split", ["train", pytest.param("test", marks=pytest.mark.slow)])
def test_numbers_stay_in_range_and_every_step_count_and_operation_occurs(difficulty, split):
    items = list(islice(TASK.items(1, split, difficulty=difficulty), 2000))
    numbers = {number for item in items for number in numbers_of(item.question + item.answer)}
    assert numbers == set(range(2, LARGEST_VALUE[difficulty] + 1))
    assert {len(equations_of(item)) for item in items} == {2, 3, 4}
    symbols = "".join(equation for item in items for equation in equations_of(item))
    assert set("+-*/") <= set(symbols)


def test_lengths_fit_the_tiny_model(train, held_out):
    folder = files("llada_jax") / "assets" / "tiny"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sample = train[:3000] + held_out[:3000]
    questions = tokenizer.encode_batch([item.question for item in sample])
    answers = tokenizer.encode_batch([item.answer for item in sample])
    assert max(map(len, questions)) <= 90
    assert 40 <= min(map(len, answers))
    assert max(map(len, answers)) <= 120


def test_the_vocabulary_is_small(train):
    text = " ".join(f"{item.question} {item.answer}" for item in train)
    assert len(set(re.findall("[A-Za-z]+", text))) <= 200


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("12+5=17\n#### 17", True),
        ("#### 3 is wrong\n####17.", True),
        ("####  17 apples", True),
        ("#### 17\nThat is all.", True),
        ("#### -17", False),
        ("#### 170", False),
        ("17", False),
        ("#### 17\n#### none", False),
        ("#### 17.5", False),
        ("#### 17,000", False),
        ("#### $17", True),
        ("#### 17+3=20", False),
        ("#### 17/2", False),
        ("#### 17 - 2", False),
        ("", False),
    ],
)
def test_verify_reads_the_number_after_the_last_mark(text, right):
    assert verify(Item("", "", "17"), text) is right


def test_drills_list_equations_with_or_without_their_left_sides():
    told = 0
    for index in range(60):
        drill = TASK.item(4, index, "train", difficulty=2, drill=True)
        equations = drill.answer.split()
        lefts = [each.partition("=")[0] for each in equations]
        for left, equation in zip(lefts, equations, strict=True):
            assert int(equation.partition("=")[2]) == eval(left.replace("/", "//"))
        if drill.question == " ".join(lefts):
            told += 1
        else:
            assert (drill.question, len(equations)) == ("Any sums.", 14)
    assert 15 < told < 45
