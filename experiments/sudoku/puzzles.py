"""Sudoku of 9x9: random grids, puzzles with one solution, and their canvases.

Grids are filled cell by cell, the cell with the fewest options first, with digits in random order.
Training draws from a pool of grids, each transformed by a random symmetry (digits, bands, stacks,
lines, transposition); test puzzles come from other grids. A puzzle is a grid with cells emptied in
random order while its solution stays unique.

A canvas has nine rows, each of a marker and nine cells. Each row has its own marker, because a
model with relative positions could not distinguish the rows otherwise.
"""

from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from jaxtyping import Int

from llada_jax.evaluation.tasks.sudoku import PEERS, emptied
from llada_jax.training.data import Example

SIZE, CELLS = 9, 81
MASK, EOS, FIRST_MARKER = 0, 10, 11  # token ids 1 to 9 are the digits
VOCAB = FIRST_MARKER + SIZE
IDS = {"vocab_size": VOCAB, "mask_id": MASK, "eos_id": EOS}
LENGTH = SIZE * (SIZE + 1)
MARKERS = np.arange(FIRST_MARKER, VOCAB)
Puzzle = tuple[list[int], list[int]]
"""The cells, 0 if empty, and their solution."""


def random_grid(rng: Random) -> list[int]:
    """Returns the 81 digits of a full grid, row by row."""
    grid = [0] * CELLS
    while not _filled(grid, rng):
        grid = [0] * CELLS
    return grid


def _filled(grid: list[int], rng: Random) -> bool:
    """Fills the empty cells in place, and returns whether that is possible."""
    empty = [cell for cell, digit in enumerate(grid) if not digit]
    if not empty:
        return True
    options = {
        cell: [digit for digit in range(1, SIZE + 1) if digit not in taken]
        for cell in empty
        for taken in [{grid[peer] for peer in PEERS[SIZE][cell]}]
    }
    fewest = min(map(len, options.values()))
    cell = rng.choice([c for c in empty if len(options[c]) == fewest])
    for digit in rng.sample(options[cell], fewest):
        grid[cell] = digit
        if _filled(grid, rng):
            return True
    grid[cell] = 0
    return False


def random_symmetry(grid: Int[np.ndarray, "9 9"], rng: np.random.Generator) -> np.ndarray:
    rows, columns = (
        np.concatenate([3 * band + rng.permutation(3) for band in rng.permutation(3)])
        for _ in range(2)
    )
    digits = np.concatenate([[0], 1 + rng.permutation(SIZE)])
    seen = digits[grid[np.ix_(rows, columns)]]
    return seen.T if rng.random() < 0.5 else seen


def puzzle(solution: list[int], blanks: int, rng: Random) -> list[int] | None:
    """Empties `blanks` cells of a grid. Returns None if the solution would not be unique."""
    found = emptied(solution, SIZE, blanks, rng)
    return found if found.count(0) == blanks else None


def canvas(cells: Int[np.ndarray, "81"] | list[int]) -> list[int]:
    """Returns the tokens of a canvas; an empty cell, 0, is [MASK]."""
    rows = np.asarray(cells).reshape(SIZE, SIZE)
    return np.concatenate([MARKERS[:, None], rows], axis=1).reshape(-1).tolist()


def cells_of(tokens: Int[np.ndarray, "90"]) -> Int[np.ndarray, "81"]:
    """Returns the cells of a canvas."""
    return np.asarray(tokens).reshape(SIZE, SIZE + 1)[:, 1:].reshape(-1)


@dataclass(frozen=True)
class Pool:
    """Training examples, a pure function of the seed and the index."""

    seed: int
    grids: int

    @cached_property
    def _grids(self) -> np.ndarray:
        drawn = [random_grid(Random(f"{self.seed} pool {i}")) for i in range(self.grids)]
        return np.array(drawn).reshape(-1, SIZE, SIZE)

    def __call__(self, index: int) -> Example:
        rng = np.random.default_rng([self.seed, index])
        grid = self._grids[rng.integers(self.grids)]
        return Example([], canvas(random_symmetry(grid, rng)))


def scored_puzzles(seed: int, blanks: int, count: int) -> list[Puzzle]:
    """Returns `count` puzzles with `blanks` blanks, from grids outside the training pool."""
    found, number = [], 0
    while len(found) < count:
        rng = Random(f"{seed} scored {blanks} {number}")
        solution = random_grid(rng)
        asked = puzzle(solution, blanks, rng)
        found += [] if asked is None else [(asked, solution)]
        number += 1
    return found
