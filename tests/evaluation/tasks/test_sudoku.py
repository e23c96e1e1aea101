"""Sudoku: one solution, found by another method, and a verifier of any grid."""

from itertools import islice, permutations, product

import pytest

from llada_jax.evaluation.task import Item
from llada_jax.evaluation.tasks.sudoku import INTRODUCTION, LEVELS, TASK, verify


def rows_of(text: str) -> list[str]:
    return text.split("\n")


def puzzle_of(item: Item) -> list[str]:
    return rows_of(item.question.removeprefix(INTRODUCTION))


def is_valid(rows: list[str], box: int) -> bool:
    columns = list(zip(*rows, strict=True))
    boxes = [
        [rows[top + i][left + j] for i, j in product(range(box), repeat=2)]
        for top, left in product(range(0, box * box, box), repeat=2)
    ]
    return all(len(set(unit)) == box * box for unit in [*rows, *columns, *boxes])


@pytest.mark.parametrize("difficulty", [0, 1])
def test_small_puzzles_have_one_solution_among_all_grids(difficulty):
    lines = ["".join(line) for line in permutations("1234")]
    for item in islice(TASK.items(3, "test", difficulty=difficulty), 12):
        fits = [
            [line for line in lines if all(p in ("0", c) for p, c in zip(row, line, strict=True))]
            for row in puzzle_of(item)
        ]
        solutions = ["\n".join(grid) for grid in product(*fits) if is_valid(list(grid), 2)]
        assert solutions == [item.target]


@pytest.mark.parametrize("difficulty", LEVELS)
def test_grids_are_valid_and_have_the_levels_number_of_empty_cells(difficulty):
    level = LEVELS[difficulty]
    for item in islice(TASK.items(4, "train", difficulty=difficulty), 10):
        solution = rows_of(item.target)
        assert is_valid(solution, level.box)
        given = "".join(puzzle_of(item))
        cells = "".join(solution)
        assert all(g in ("0", c) for g, c in zip(given, cells, strict=True))
        assert 0.6 * level.empty <= given.count("0") <= level.empty


def test_the_verifier_accepts_only_grids():
    item = TASK.item(3, 0, "test", difficulty=1)
    rows = rows_of(item.target)
    assert verify(item, f"so\n####\n{item.target}")
    assert verify(item, f"####\n{item.target}\nand so on")
    swapped = [*rows[1::-1], *rows[2:]]
    for wrong in (swapped, rows[:3], [row[:3] for row in rows], ["1234"] * 4, rows[::-1]):
        assert not verify(item, "####\n" + "\n".join(wrong))
    assert not verify(item, item.target)


def test_any_solution_passes_if_there_are_several():
    item = Item(INTRODUCTION + "\n".join(["0000"] * 4), "", "")
    assert verify(item, "####\n1234\n3412\n2143\n4321")
    assert verify(item, "####\n1234\n3412\n4321\n2143")
    assert not verify(item, "####\n1234\n3412\n2143\n4312")


def test_test_puzzles_are_not_training_puzzles_with_renamed_digits():
    shapes = {
        split: {
            canonical("".join(puzzle_of(item)))
            for item in islice(TASK.items(5, split, difficulty=0), 300)
        }
        for split in ("train", "test")
    }
    assert shapes["train"].isdisjoint(shapes["test"])


def canonical(cells: str) -> str:
    """Digits renamed in the order in which they first appear; 0 stays."""
    order = [digit for digit in dict.fromkeys(cells) if digit != "0"]
    return cells.translate(str.maketrans("".join(order), "abcdefghi"[: len(order)]))
