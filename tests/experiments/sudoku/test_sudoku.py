"""The replication of the Sudoku experiment: its puzzles, and a run of a few steps."""

import json
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments.harness.run import REPOSITORY, read_config
from experiments.sudoku import __main__ as entry
from experiments.sudoku.puzzles import (
    EOS,
    LENGTH,
    MARKERS,
    MASK,
    Pool,
    canvas,
    cells_of,
    puzzle,
    random_grid,
    random_symmetry,
    scored_puzzles,
)
from llada_jax.evaluation.tasks.sudoku import UNITS, count_solutions
from tests.experiments.in_process import run_experiment
from tests.training.echo import batch_at

SMALL = [
    "train.steps=2", "train.warmup_steps=0", "train.decay_steps=1", "train.batch_size=4",
    "train.log_every=1", "train.checkpoint_every=2", "model.width=16", "model.n_layers=1",
    "model.head_dim=4", "model.ffn_width=16", "grids=3", "head_steps=1", "blanks=[3]", "items=2",
    "batch_size=2",
]  # fmt: skip


def is_full(cells) -> bool:
    return all(sorted(cells[place] for place in unit) == list(range(1, 10)) for unit in UNITS[9])


def test_grids_are_full_and_differ():
    grids = [random_grid(Random(seed)) for seed in range(5)]
    assert all(map(is_full, grids))
    assert all(a != b for a, b in pairwise(grids))
    assert random_grid(Random(0)) == grids[0]


def test_a_symmetry_leaves_a_grid_full():
    grid = np.array(random_grid(Random(1))).reshape(9, 9)
    rng = np.random.default_rng(0)
    seen = [random_symmetry(grid, rng).reshape(-1).tolist() for _ in range(20)]
    assert all(map(is_full, seen))
    assert len({tuple(each) for each in seen}) == 20


def test_puzzles_have_one_solution():
    for asked, solution in scored_puzzles(seed=5, blanks=45, count=3):
        assert asked.count(0) == 45
        assert count_solutions(asked.copy(), 9, 2) == 1
        assert all(cell in (0, right) for cell, right in zip(asked, solution, strict=True))
    assert puzzle(random_grid(Random(0)), 81, Random(0)) is None


def test_canvases_are_read_back():
    cells = random_grid(Random(2))
    tokens = canvas(cells)
    assert len(tokens) == LENGTH
    assert tokens[::10] == MARKERS.tolist()
    assert cells_of(np.array(tokens)).tolist() == cells
    assert Pool(0, 2)(7) == Pool(0, 2)(7)


def test_the_configuration_is_valid_and_masks_only_cells():
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        config = read_config(entry.SudokuConfig, compose("sudoku"))
    batch = batch_at(Pool(0, 2), config.train.replace(batch_size=2), EOS, 0)
    assert batch.tokens.shape == (2, LENGTH)
    assert batch.target.all()
    assert config.shape.mask_id == MASK


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blanks": (60,)}, "blanks has 60; allowed: 1 to 56"),
        ({"blanks": ()}, "blanks is empty"),
        ({"items": 0}, "items is 0"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        config = read_config(entry.SudokuConfig, compose("sudoku"))
    with pytest.raises(ValueError, match=message):
        type(config)(**{**vars(config), **changes})


@pytest.mark.slow
def test_a_run_decodes_in_every_order(tmp_path):
    run_experiment(entry.main, [*SMALL, f"hydra.run.dir={tmp_path}"])
    rows = {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    for order in ("random", "top_probability", "top_margin", "edit", "quality_head"):
        assert 0 <= rows[f"{order}/3_blanks/exact_match"]["value"] <= 1
        assert rows[f"{order}/3_blanks/nfe"]["n"] == 2
    assert rows["random/3_blanks/nfe"]["value"] == 3
    assert rows["top_margin/3_blanks/exact_match"]["reference"] == 0.9
    assert (tmp_path / "sudoku.png").stat().st_size > 0
    again = [f"trained={tmp_path / 'model'}", f"hydra.run.dir={tmp_path / 'again'}"]
    run_experiment(entry.main, [*SMALL, *again])
    assert json.loads((tmp_path / "again/results.json").read_text()) == list(rows.values())
    assert not (tmp_path / "again/checkpoints").exists()


def test_a_trained_model_must_have_the_configured_shape():
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        config = read_config(entry.SudokuConfig, compose("sudoku"))
    folder = str(REPOSITORY / "experiments/sudoku/trained")
    assert entry.trained_before(folder, config.shape).config == config.shape
    with pytest.raises(ValueError, match=r"trained .* allowed"):
        entry.trained_before(folder, config.shape.replace(width=64))
