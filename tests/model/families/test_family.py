"""A user-defined model family, passed as an argument or added by an entry point."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import llada_jax as lj
from llada_jax.checkpoint import model_path
from llada_jax.model.families.family import Family, add_family, families

LLADA = families()["llada"]
MINE = replace(
    LLADA,
    model_types=("my_dllm",),
    architecture="MyDiffusionLM",
    names={path: f"mine.{name}" for path, name in LLADA.names.items()},
)


@pytest.fixture
def checkpoint(tmp_path):
    """The bundled model, with the tensor names of a user-defined family."""
    folder = tmp_path / "mine"
    shutil.copytree(model_path("tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    strings = {"model_type": "my_dllm", "architectures": ["MyDiffusionLM"]}
    (folder / "config.json").write_text(json.dumps(config | strings))
    tensors = load_file(folder / "model.safetensors")
    save_file({f"mine.{key}": value for key, value in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
    families.cache_clear()
    yield folder
    families.cache_clear()


def test_a_family_is_an_argument(checkpoint):
    with pytest.raises(ValueError, match=r"model_type is 'my_dllm'; allowed: .*'llada'"):
        lj.load(checkpoint)
    model = lj.load(checkpoint, family=MINE)
    assert model.config.family == "my_dllm"
    expected = lj.load("tiny", "float32")
    np.testing.assert_array_equal(model.params.embedding, expected.params.embedding)
    # Registering a family twice is not a conflict.
    assert lj.load(checkpoint, family=MINE).config == model.config


def test_a_family_is_an_entry_point(checkpoint, installed):
    installed("[llada_jax.families]\nmine = tests.model.families.test_family:MINE\n")
    assert lj.load(checkpoint).config.family == "mine"


def test_an_invalid_family_or_a_taken_model_type_is_refused():
    with pytest.raises(ValueError, match="family is 3; allowed: a Family"):
        lj.load("tiny", family=3)  # pyright: ignore
    with pytest.raises(ValueError, match="family is 'lama'; allowed: llada, llada_moe, "):
        lj.load("tiny", family="lama")
    with pytest.raises(ValueError, match=r"answers to \['llada'\], as 'llada' does; allowed"):
        add_family(replace(MINE, model_types=("llada",)))
    assert isinstance(MINE, Family)
