"""Sudoku of 9x9: random grids, puzzles with one solution, and their canvases.

Grids are filled cell by cell, the tightest first, with digits in random order. Training draws from
a pool of them, each seen through a random symmetry (digits, bands, stacks, lines, transposition);
puzzles that are scored come from grids of their own. A puzzle is a grid with cells emptied in
random order as long as its solution stays the only one.

A canvas has nine rows of a marker, which says which row it is, and nine cells: a model whose
positions are relative could not tell them apart.
"""

from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from jaxtyping import Int

from llada_jax.evaluation.tasks.sudoku import PEERS, emptied
from llada_jax.training.data import Example

SIZE, CELLS = 9, 81
MASK, EOS, FIRST_MARKER = 0, 10, 11  # digits are themselves
VOCAB = FIRST_MARKER + SIZE
IDS = {"vocab_size": VOCAB, "mask_id": MASK, "eos_id": EOS}
LENGTH = SIZE * (SIZE + 1)
MARKERS = np.arange(FIRST_MARKER, VOCAB)
Puzzle = tuple[list[int], list[int]]
"""Cells of which some are empty, and their solution."""


def random_grid(rng: Random) -> list[int]:
    """Returns the 81 digits of a full grid, row by row."""
    grid = [0] * CELLS
    while not _filled(grid, rng):
        grid = [0] * CELLS
    return grid


def _filled(grid: list[int], rng: Random) -> bool:
    """Fills the empty cells, the tightest first; tells whether that can be done."""
    empty = [place for place, digit in enumerate(grid) if not digit]
    if not empty:
        return True
    options = {
        place: [digit for digit in range(1, SIZE + 1) if digit not in taken]
        for place in empty
        for taken in [{grid[peer] for peer in PEERS[SIZE][place]}]
    }
    fewest = min(map(len, options.values()))
    place = rng.choice([each for each in empty if len(options[each]) == fewest])
    for digit in rng.sample(options[place], fewest):
        grid[place] = digit
        if _filled(grid, rng):
            return True
    grid[place] = 0
    return False


def seen_otherwise(grid: Int[np.ndarray, "9 9"], rng: np.random.Generator) -> np.ndarray:
    """Returns a grid through a random symmetry of Sudoku."""
    rows, columns = (
        np.concatenate([3 * band + rng.permutation(3) for band in rng.permutation(3)])
        for _ in range(2)
    )
    digits = np.concatenate([[0], 1 + rng.permutation(SIZE)])
    seen = digits[grid[np.ix_(rows, columns)]]
    return seen.T if rng.random() < 0.5 else seen


def puzzle(solution: list[int], blanks: int, rng: Random) -> list[int] | None:
    """Empties so many cells of a grid; None where no more can be without a second solution."""
    found = emptied(solution, SIZE, blanks, rng)
    return found if found.count(0) == blanks else None


def canvas(cells: Int[np.ndarray, "81"] | list[int]) -> list[int]:
    """Writes cells, of which empty ones are 0 and so [MASK], with the markers of their rows."""
    rows = np.asarray(cells).reshape(SIZE, SIZE)
    return np.concatenate([MARKERS[:, None], rows], axis=1).reshape(-1).tolist()


def cells_of(tokens: Int[np.ndarray, "90"]) -> Int[np.ndarray, "81"]:
    """Reads the cells of a canvas."""
    return np.asarray(tokens).reshape(SIZE, SIZE + 1)[:, 1:].reshape(-1)


@dataclass(frozen=True)
class Pool:
    """Examples to train on: a pure function of the seed and the index."""

    seed: int
    grids: int

    @cached_property
    def _grids(self) -> np.ndarray:
        drawn = [random_grid(Random(f"{self.seed} pool {i}")) for i in range(self.grids)]
        return np.array(drawn).reshape(-1, SIZE, SIZE)

    def __call__(self, index: int) -> Example:
        rng = np.random.default_rng([self.seed, index])
        grid = self._grids[rng.integers(self.grids)]
        return Example([], canvas(seen_otherwise(grid, rng)))


def scored_puzzles(seed: int, blanks: int, count: int) -> list[Puzzle]:
    """Returns puzzles with so many blanks, and their solutions, of grids outside the pool."""
    found, number = [], 0
    while len(found) < count:
        rng = Random(f"{seed} scored {blanks} {number}")
        solution = random_grid(rng)
        asked = puzzle(solution, blanks, rng)
        found += [] if asked is None else [(asked, solution)]
        number += 1
    return found
