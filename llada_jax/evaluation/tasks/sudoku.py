"""Sudoku of 4x4 and 9x9 cells with one solution: tokens that constrain each other in any order.

The answer is the full grid after `####`, one row per line.

The key of an item is the same if digits are renamed. For a 4x4 puzzle it is the filled cells,
because there are only twelve grids up to renaming; for a 9x9 puzzle it is the solved grid.
"""

from random import Random
from typing import NamedTuple

from llada_jax.evaluation.task import ANSWER_MARK, Item, OwnsKey, Task, is_worked_answer

_EMPTY = "0"


class _Level(NamedTuple):
    box: int  # width of a box
    empty: int  # cells to empty, at most


LEVELS = {0: _Level(2, 6), 1: _Level(2, 9), 2: _Level(3, 30), 3: _Level(3, 48)}
INTRODUCTION = "Solve this Sudoku.\n"

_Grid = list[int]  # row by row; 0 is empty


def verify(item: Item, text: str) -> bool:
    """Tells whether the grid after `####` keeps all filled cells and solves the puzzle."""
    rows = item.question.removeprefix(INTRODUCTION).split("\n")
    size = len(rows)
    _, mark, tail = text.rpartition(ANSWER_MARK)
    lines = [line.strip() for line in tail.strip().split("\n")][:size]
    digits = "".join(map(str, range(1, size + 1)))
    if not mark or [len(line) for line in lines] != [size] * size:
        return False
    cells, puzzle = "".join(lines), "".join(rows)
    keeps = all(old in (_EMPTY, new) for old, new in zip(puzzle, cells, strict=True))
    units = ("".join(cells[cell] for cell in unit) for unit in UNITS[size])
    return keeps and all(sorted(unit) == list(digits) for unit in units)


def _draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws a random grid and empties cells one by one as long as the solution stays unique."""
    box, empty = LEVELS[difficulty]
    size = box * box
    solution = _random_grid(rng, box)
    if size > 4 and not owns(_without_names(solution)):
        return None
    puzzle = emptied(solution, size, empty, rng)
    if size == 4 and not owns(_without_names(puzzle)):
        return None
    target = _written(solution, size)
    return Item(INTRODUCTION + _written(puzzle, size), f"{ANSWER_MARK}\n{target}", target)


def emptied(solution: _Grid, size: int, empty: int, rng: Random) -> _Grid:
    """Empties cells of a grid in random order, up to `empty` of them, skipping those without which
    the solution would not be unique."""
    puzzle = solution.copy()
    for cell in rng.sample(range(size * size), size * size):
        if puzzle.count(0) == empty:
            break
        puzzle[cell] = 0
        if count_solutions(puzzle.copy(), size, 2) > 1:
            puzzle[cell] = solution[cell]
    return puzzle


def _units(box: int) -> list[list[int]]:
    """Returns the cells of each row, column and box."""
    size = box * box
    rows = [[row * size + column for column in range(size)] for row in range(size)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    boxes = [
        [(top + row) * size + left + column for row in range(box) for column in range(box)]
        for top in range(0, size, box)
        for left in range(0, size, box)
    ]
    return rows + columns + boxes


UNITS = {4: _units(2), 9: _units(3)}
PEERS = {
    size: [set().union(*(u for u in units if cell in u)) for cell in range(size * size)]
    for size, units in UNITS.items()
}
"""For each cell, the cells of all its units, including itself."""


def _random_grid(rng: Random, box: int) -> _Grid:
    """Shuffles a canonical grid: its digits, bands, stacks, and the lines of each."""
    size = box * box

    def shuffled_lines() -> list[int]:
        bands = rng.sample(range(box), box)
        return [band * box + line for band in bands for line in rng.sample(range(box), box)]

    digits = rng.sample(range(1, size + 1), size)
    rows, columns = shuffled_lines(), shuffled_lines()
    starts = [box * (row % box) + row // box for row in rows]
    return [digits[(start + column) % size] for start in starts for column in columns]


def count_solutions(grid: _Grid, size: int, limit: int) -> int:
    """Counts the solutions up to `limit`, branching on the cell with the fewest candidates."""
    tightest, options = -1, list(range(size + 1))
    for cell, digit in enumerate(grid):
        if digit:
            continue
        taken = {grid[peer] for peer in PEERS[size][cell]}
        free = [digit for digit in range(1, size + 1) if digit not in taken]
        if len(free) < len(options):
            tightest, options = cell, free
            if len(free) < 2:
                break
    if tightest < 0:
        return 1
    count = 0
    for digit in options:
        grid[tightest] = digit
        count += count_solutions(grid, size, limit - count)
        if count >= limit:
            break
    grid[tightest] = 0
    return count


def _without_names(grid: _Grid) -> str:
    """Renames the digits in the order of their first appearance."""
    names: dict[int, int] = {0: 0}
    return "".join(str(names.setdefault(digit, len(names))) for digit in grid)


def _written(grid: _Grid, size: int) -> str:
    digits = "".join(map(str, grid))
    return "\n".join(digits[start : start + size] for start in range(0, size * size, size))


TASK = Task(
    name="sudoku",
    about="a Sudoku of 4x4 or 9x9 cells with one solution",
    draw=_draw,
    difficulties={
        difficulty: f"{level.box**2}x{level.box**2}, up to {level.empty} empty cells"
        for difficulty, level in LEVELS.items()
    },
    gen_length=128,
    verify=verify,
    strict=is_worked_answer,
)
