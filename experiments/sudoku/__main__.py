"""Compares decoding orders on Sudoku with a small model (after arXiv 2502.06768).

    python -m experiments.sudoku hydra.run.dir=outputs/sudoku
    python -m experiments.sudoku trained=experiments/sudoku/trained items=1000 blanks=[40,50]
    python -m experiments.sudoku --config-name sudoku_revising hydra.run.dir=outputs/sudoku_revising

The verb trains a masked-diffusion model on random grids, fits a quality head to it, and decodes
puzzles with several numbers of blanks: in random order, by confidence, by margin, in parallel, and
with revision. It replicates the paper's ranking of the orders, not its test set. The third command
trains the model on its own errors, and compares ways to correct them. The same command continues
from the last checkpoint. The run folder gets `metrics.jsonl`, `checkpoints/`, `model/`,
`results.json`, `quality_head.json` and `sudoku.png`.
"""

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.evaluate.config import DecoderConfig
from experiments.harness.pictures import ScorePoint, save, score_curves
from experiments.harness.results import ResultRow, share_row
from experiments.harness.run import Run, entry_point
from experiments.sudoku import puzzles
from experiments.sudoku.quality_head import QualityHead, QualityRemask, fit_quality_head
from llada_jax.checkpoint import load_params, save_huggingface
from llada_jax.config import ModelConfig, TrainConfig, require, require_counts
from llada_jax.sampler.config import SamplerConfig
from llada_jax.training.data import batches
from llada_jax.training.loop import require_steps, train
from llada_jax.training.objectives import LossAndMetrics, Objective, Reader

PUBLISHED: Mapping[str, tuple[float, str]] = {
    "random": (0.07, "arXiv 2502.06768, abstract: below 7 %, on puzzles of its own"),
    "top_margin": (0.9, "arXiv 2502.06768, abstract: about 90 %, on puzzles of its own"),
    "threshold_0.999": (0.943, "nonet's README: 1.28 M parameters, on puzzles of its own"),
}
"""Published exact match of the same order, on other puzzles."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """A decoder that commits at a threshold, and remasks tokens that the quality head doubts."""

    name: str
    threshold: float
    doubt: float = 0.5


@dataclass(frozen=True, kw_only=True)
class SudokuConfig:
    """Settings of the verb; conf/sudoku.yaml explains each."""

    model: ModelConfig
    train: TrainConfig
    objective: Objective
    decoders: tuple[DecoderConfig, ...]
    quality_heads: tuple[HeadConfig, ...] = ()
    trained: str | None = None
    parent: str | None = None
    grids: int = 5000
    seed: int = 0
    head_steps: int = 300
    blanks: tuple[int, ...] = (25, 35, 45, 50)
    items: int = 200
    batch_size: int = 50

    def __post_init__(self) -> None:
        require_counts(self, "grids", "head_steps", "items", "batch_size")
        names = [decoder.name for decoder in (*self.decoders, *self.quality_heads)]
        require(len(set(names)) == len(names), f"decoders are {names}; allowed: each name once")
        require(len(self.blanks) > 0, "blanks is empty; allowed: one or more numbers")
        for blanks in self.blanks:
            require(0 < blanks <= 56, f"blanks has {blanks}; allowed: 1 to 56")
        lengths = self.train.block_length, self.train.max_gen_length, self.train.length_multiple
        require(
            set(lengths) == {puzzles.LENGTH} and self.train.objective == "pretrain",
            f"block_length, max_gen_length, length_multiple are {lengths}, objective "
            f"{self.train.objective!r}; allowed: {puzzles.LENGTH} and 'pretrain', as a canvas is",
        )

    @property
    def shape(self) -> ModelConfig:
        """The model's shape with the token ids of Sudoku canvases."""
        return self.model.replace(**puzzles.IDS)


@dataclass(frozen=True, kw_only=True)
class _CellsOf(Objective):
    """An objective restricted to cells; markers are never masked."""

    inner: Objective

    def __call__(self, reader: Reader, batch: Any, key: jax.Array) -> LossAndMetrics:
        return self.inner(reader, _cells_alone(batch), key)


def _cells_alone(batch: Any) -> Any:
    """Returns a batch without markers among its targets."""
    return batch._replace(target=batch.target & (batch.tokens < puzzles.FIRST_MARKER))


def replicate(config: SudokuConfig, run: Run) -> None:
    """Trains, decodes in every order, and draws exact match by blanks."""
    require_steps(run.folder, config.train)
    model = None if config.trained is None else trained_before(config.trained, config.shape)
    run.begin()
    pool = puzzles.Pool(config.seed, config.grids)
    model = model or _trained(config, run, pool)
    unseen = islice(batches(pool, config.train, puzzles.EOS, config.train.steps), config.head_steps)
    head, _ = fit_quality_head(model.params, model.config, map(_cells_alone, unseen))
    content = {"weight": head.weight.tolist(), "bias": head.bias.item()}
    run.write("quality_head.json", json.dumps(content) + "\n")
    rows = list(tqdm(_scores(config, model, orders(config, head)), unit="result"))
    points: dict[str, list[ScorePoint]] = {}
    for row, blanks in rows[::2]:
        low, high = row.interval or (row.value, row.value)
        order = row.name.partition("/")[0]
        points.setdefault(order, []).append(ScorePoint(blanks, row.value, low, high))
    figure = score_curves("Sudoku, by order of commits", points, "empty cells")
    save(figure, run.folder / "sudoku.png")
    run.finish([row for row, _ in rows])


def trained_before(folder: str, shape: ModelConfig) -> lj.Model:
    """Loads a trained model of a shape. Raises ValueError for another."""
    stored, params, _ = load_params(folder, "float32")
    require(stored == shape, f"trained {folder!r} is {stored}; allowed: {shape}")
    return lj.Model(stored, params, None)


def _trained(config: SudokuConfig, run: Run, pool: puzzles.Pool) -> lj.Model:
    """Trains a model, and stores it in the Hugging Face layout."""
    objective = _CellsOf(inner=config.objective)
    parent = None if config.parent is None else trained_before(config.parent, config.shape).params
    state = train(run.folder, config.shape, config.train, pool, parent=parent, objective=objective)
    model = lj.Model(config.shape, state.params, None)
    save_huggingface(run.folder / "model", model.config, model.params, "float32")
    return model


def orders(config: SudokuConfig, head: QualityHead) -> dict[str, SamplerConfig]:
    """Returns samplers by name, each with the whole canvas visible."""
    whole = {"gen_length": puzzles.LENGTH, "block_length": puzzles.LENGTH, "steps": puzzles.LENGTH}
    samplers = {decoder.name: decoder.sampler.replace(**whole) for decoder in config.decoders}
    for head_config in config.quality_heads:
        rule = QualityRemask.of(head, threshold=head_config.threshold, doubt=head_config.doubt)
        samplers[head_config.name] = SamplerConfig.from_flat(rule=rule, **whole)
    return samplers


def _scores(
    config: SudokuConfig, model: lj.Model, samplers: Mapping[str, SamplerConfig]
) -> Iterator[tuple[ResultRow, int]]:
    """Yields exact match and forwards of each order on puzzles of each number of blanks."""
    for blanks in config.blanks:
        to_solve = puzzles.scored_puzzles(config.seed + 1, blanks, config.items)
        for order, sampler in samplers.items():
            right, forwards = _decoded(model, sampler, to_solve, config)
            name, n = f"{order}/{blanks}_blanks", len(right)
            reference, source = PUBLISHED.get(order, (None, None))
            known = {"reference": reference, "source": source}
            yield share_row(f"{name}/exact_match", sum(right), n, "of puzzles", **known), blanks
            yield ResultRow(f"{name}/nfe", float(np.mean(forwards)), "forwards", n=n), blanks


def _decoded(
    model: lj.Model,
    sampler: SamplerConfig,
    to_solve: Sequence[puzzles.Puzzle],
    config: SudokuConfig,
) -> tuple[list[bool], list[int]]:
    right: list[bool] = []
    forwards: list[int] = []
    for first in range(0, len(to_solve), config.batch_size):
        blanked, solutions = zip(*to_solve[first : first + config.batch_size], strict=True)
        result = lj.infill(
            model, [*map(puzzles.canvas, blanked)], sampler, seed=config.seed + first
        )
        answers = (puzzles.cells_of(tokens).tolist() for tokens in result.generated)
        right += map(operator.eq, answers, solutions)
        forwards += np.asarray(result.nfe).tolist()
    return right, forwards


main = entry_point("sudoku", replicate, SudokuConfig)
