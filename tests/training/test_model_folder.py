"""An exported run loads again, and its log is short."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.checkpoint import load_params
from llada_jax.text import Tokenizer
from llada_jax.training.model_folder import (
    CARD_FILE,
    LOG_FILE,
    export_model,
    thinned,
)
from tests.drawn_params import drawn_params
from tests.training import echo

TOKENIZER_FOLDER = Path(__file__).parents[2] / "llada_jax" / "assets" / "tiny"
MODEL = echo.MODEL.replace(
    vocab_size=512, width=8, head_dim=4, rotary_dims=4, ffn_width=8,
    mask_id=3, eos_id=0, eot_id=6, pad_id=0,
)  # fmt: skip


@pytest.fixture
def params():
    return drawn_params(MODEL)


def export(folder: Path, params, tokenizer_folder: Path = TOKENIZER_FOLDER) -> None:
    rows = [{"step": step, "loss": 1 / 3} for step in range(1, 301)]
    tokenizer = Tokenizer.from_folder(tokenizer_folder)
    export_model(folder, MODEL, params, tokenizer, "a card\n", rows)


def test_the_model_loads_again_in_bfloat16(tmp_path, params):
    export(tmp_path / "model", params)
    config, loaded, tokenizer_folder = load_params(tmp_path / "model")
    assert config == MODEL
    assert tokenizer_folder == tmp_path / "model"
    for read, wrote in zip(*map(jax.tree.leaves, (loaded, params)), strict=True):
        np.testing.assert_array_equal(read, wrote.astype(jnp.bfloat16))


def test_the_folder_has_tokenizer_card_and_log(tmp_path, params):
    export(tmp_path / "model", params)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "model" / name).read_bytes() == (TOKENIZER_FOLDER / name).read_bytes()
    assert (tmp_path / "model" / CARD_FILE).read_text() == "a card\n"
    rows = [json.loads(line) for line in (tmp_path / "model" / LOG_FILE).read_text().splitlines()]
    assert rows[-1] == {"step": 300, "loss": 0.33333}
    assert len(rows) <= 120


def test_a_failed_export_leaves_nothing(tmp_path, params):
    with pytest.raises(FileNotFoundError):
        export(tmp_path / "model", params, tmp_path / "no_tokenizer")
    assert list(tmp_path.iterdir()) == []


def test_an_export_into_its_own_tokenizer_folder_keeps_the_tokenizer(tmp_path, params):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER_FOLDER / name, tmp_path / name)
    export(tmp_path, params, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (TOKENIZER_FOLDER / name).read_bytes()


@pytest.mark.parametrize(("count", "most"), [(0, 5), (1, 5), (5, 5), (6, 5), (301, 100)])
def test_a_thinned_log_is_even_and_ends_with_the_last_row(count, most):
    rows = [{"step": step} for step in range(count)]
    kept = thinned(rows, most)
    assert len(kept) <= most
    assert kept[-1:] == rows[-1:]
    assert len({b["step"] - a["step"] for a, b in pairwise(kept)}) <= 1
