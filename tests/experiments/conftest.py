"""A model of random weights with a tokenizer, for experiments that need no sensible answers.
Its widths are multiples of a tile's width."""

import shutil
from pathlib import Path

import pytest

import llada_jax as lj
from llada_jax.checkpoint import model_path, save_huggingface
from llada_jax.text import Tokenizer
from tests.drawn_params import drawn_params


@pytest.fixture(scope="session")
def random_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "random"
    tokenizer = Tokenizer.from_folder(model_path("tiny"))
    config = lj.ModelConfig(
        family="llada",
        vocab_size=-(-tokenizer.vocab_size // 32) * 32,
        width=32,
        n_layers=1,
        n_heads=2,
        n_kv_heads=2,
        head_dim=16,
        ffn_width=32,
        rope_theta=1e4,
        norm_eps=1e-5,
        max_length=256,
        mask_id=tokenizer.mask_id,
        eos_id=tokenizer.eos_id,
    )
    save_huggingface(folder, config, drawn_params(config), "float32")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_path("tiny") / name, folder)
    return folder
