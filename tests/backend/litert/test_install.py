"""Without the optional packages, one error names the extra to install; with them, no warnings."""

import sys
from pathlib import Path

import pytest

import llada_jax as lj
from llada_jax.backend.litert import install
from llada_jax.config import ExportConfig

EXTRA = r"pip install 'llada_jax\[npu\]'"
CONFIG = lj.SamplerConfig.from_flat(gen_length=8, block_length=8, steps=1)
ENTRIES = {
    "litert_converter": install.litert_converter,
    "ai_edge_litert": install.litert_runtime,
    "ai_edge_litert.schema_py_generated": install.litert_schema,
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    def remove(package: str) -> None:
        """Hides the package and its modules, as if it were not installed."""
        top = package.split(".")[0]
        for name in list(sys.modules):
            if name == top or name.startswith(f"{top}."):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return remove


@pytest.mark.parametrize("package", ENTRIES)
def test_every_entry_names_the_extra(package: str, without) -> None:
    without(package)
    name = package.split(".")[0].replace("_", "-")
    with pytest.raises(ImportError, match=rf"^backend 'litert' needs {name} \(.*\); .*{EXTRA}$"):
        ENTRIES[package]()


def test_decoding_and_exporting_name_the_extra(without, tmp_path: Path) -> None:
    model = lj.load("tiny")
    for package in ("litert_converter", "ai_edge_litert"):
        without(package)
        with pytest.raises(ImportError, match=EXTRA):
            lj.generate(model, [[5]], CONFIG, backend="litert")
        with pytest.raises(ImportError, match=EXTRA):
            lj.export("tiny", tmp_path / "model", ExportConfig(rows=(4,), caches=(32,)))
        assert not (tmp_path / "model").exists()


def test_an_export_that_cannot_start_leaves_nothing(without, tmp_path: Path) -> None:
    without("litert_converter")
    with pytest.raises(ImportError, match=EXTRA):
        lj.export("tiny", tmp_path / "model", ExportConfig(rows=(4,), caches=(32,)))
    assert not any(tmp_path.iterdir())


def test_jax_needs_no_extra(without) -> None:
    for package in ("litert_converter", "ai_edge_litert"):
        without(package)
    assert lj.generate(lj.load("tiny"), [[5]], CONFIG).tokens.shape == (1, 9)


def test_an_unknown_backend_is_named_before_anything_is_imported(without) -> None:
    without("ai_edge_litert")
    with pytest.raises(ValueError, match=r"backend is 'tpu'; allowed: 'xla', 'litert'"):
        lj.generate(lj.load("tiny"), [[5]], CONFIG, backend="tpu")
