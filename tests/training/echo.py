"""The smallest model that trains, a run of a few steps, and a task that it learns."""

import numpy as np

from llada_jax.config import ModelConfig, TrainConfig
from llada_jax.training.data import Example, ExampleSource, TrainingBatch, batches

MODEL = ModelConfig(
    family="llada",
    vocab_size=16,
    width=16,
    n_layers=1,
    n_heads=2,
    n_kv_heads=2,
    head_dim=8,
    ffn_width=16,
    rope_theta=1e4,
    norm_eps=1e-5,
    max_length=64,
    mask_id=0,
    eos_id=1,
)
CONFIG = TrainConfig(
    steps=40,
    warmup_steps=0,
    decay_steps=0,
    peak_lr=0.01,
    batch_size=8,
    block_length=4,
    max_gen_length=8,
    length_multiple=16,
)


def example(index: int) -> Example:
    """The answer repeats the prompt."""
    digits = np.random.default_rng(index).integers(3, 16, 3).tolist()
    return Example([2, *digits], digits)


def batch_at(source: ExampleSource, config: TrainConfig, eos_id: int, step: int) -> TrainingBatch:
    return next(batches(source, config, eos_id, step))
