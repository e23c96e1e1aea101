"""Checkpoints of our own: bit for bit, and never half of one."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from orbax.checkpoint import v1 as ocp

from llada_jax.checkpoint import save_orbax
from tests.checkpoint.folders import FAMILIES, GOLDENS, loaded, same_bits

MODEL = GOLDENS / "llada-gqa"
DESCRIPTION = "llada_jax.json"


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, None) for family in FAMILIES), ("llada2-moe", "int8"), ("llada-gqa", "bfloat16"),
     ("llada-gqa", "int8"), ("llada-gqa", "int4"), ("dream", "int4")],
)  # fmt: skip
def test_round_trip_bit_for_bit(family: str, dtype: str | None, tmp_path: Path) -> None:
    config, params = loaded(GOLDENS / family, dtype)
    save_orbax(tmp_path / "saved", config, params)
    again, restored = loaded(tmp_path / "saved")
    assert again == config
    assert hash(again) == hash(config)
    assert same_bits(restored, params)
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]


def test_a_relative_folder_inside_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, params = loaded(MODEL)
    save_orbax("runs/one", config, params)
    assert same_bits(loaded("runs/one")[1], params)


def test_a_new_checkpoint_replaces_an_old_one(tmp_path: Path) -> None:
    save_orbax(tmp_path / "saved", *loaded(MODEL))
    config, params = loaded(GOLDENS / "llada-mha", "int8")
    save_orbax(tmp_path / "saved", config, params)
    again, restored = loaded(tmp_path / "saved")
    assert again == config
    assert same_bits(restored, params)
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"exists; allowed: a new or empty folder, or a checkpoin"):
        save_orbax(tmp_path, *loaded(MODEL))
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("existing", [True, False])
def test_an_interrupted_save_changes_nothing(
    existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, params = loaded(MODEL)
    if existing:
        save_orbax(tmp_path / "saved", config, params)

    def interrupted(path: str, tree: Any) -> None:
        Path(path).mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(ocp, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_orbax(tmp_path / "saved", *loaded(GOLDENS / "llada-mha"))
    assert [file.name for file in tmp_path.iterdir()] == (["saved"] if existing else [])
    assert not existing or same_bits(loaded(tmp_path / "saved")[1], params)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"llada_jax\.json is no JSON: "),
        ("{}", r"llada_jax\.json describes no model: family is missing"),
        ('{"config": {"moe": null}, "dtypes": {}}', r"describes no model: .*missing"),
    ],
)
def test_an_unusable_description(content: str, message: str, tmp_path: Path) -> None:
    save_orbax(tmp_path / "saved", *loaded(MODEL))
    (tmp_path / "saved" / DESCRIPTION).write_text(content)
    with pytest.raises(ValueError, match=message):
        loaded(tmp_path / "saved")


def test_a_description_that_lacks_a_parameter(tmp_path: Path) -> None:
    save_orbax(tmp_path / "saved", *loaded(MODEL))
    file = tmp_path / "saved" / DESCRIPTION
    description = json.loads(file.read_text())
    del description["dtypes"]["layers.1.ffn.down"]
    file.write_text(json.dumps(description))
    with pytest.raises(ValueError, match=r"llada_jax\.json lacks layers\.1\.ffn\.down"):
        loaded(tmp_path / "saved")


def test_a_dtype_that_is_none(tmp_path: Path) -> None:
    save_orbax(tmp_path / "saved", *loaded(MODEL))
    file = tmp_path / "saved" / DESCRIPTION
    description = json.loads(file.read_text())
    description["dtypes"]["head"] = "-1"
    file.write_text(json.dumps(description))
    with pytest.raises(ValueError, match=r"head is '-1'; allowed: float32, bfloat16"):
        loaded(tmp_path / "saved")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_tree_is_named(tmp_path: Path) -> None:
    """Orbax leaves coroutines behind where it fails: collected here, not in another test."""
    save_orbax(tmp_path / "saved", *loaded(MODEL))
    for file in (tmp_path / "saved" / "params").rglob("manifest.ocdbt"):
        file.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"saved/params is damaged: \w+: "):
        loaded(tmp_path / "saved")
    gc.collect()


def test_no_tree(tmp_path: Path) -> None:
    save_orbax(tmp_path / "saved", *loaded(MODEL))
    (tmp_path / "saved" / "params").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"no params in"):
        loaded(tmp_path / "saved")
