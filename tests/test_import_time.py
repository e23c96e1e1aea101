"""`import llada_jax` costs little more than `import jax`: it loads no other heavy package."""

import json
import subprocess
import sys

import pytest

LIGHT = {
    *("llada_jax", "jaxtyping", "wadler_lindig", "numpy", "ml_dtypes"),
    *("tokenizers", "safetensors", "tqdm"),
}
"""Allowed in addition to jax's packages. Each takes at most about 1 % of jax's import time."""

HEAVY = (
    *("hydra", "omegaconf", "orbax", "flax", "optax", "gguf", "matplotlib", "jinja2", "lm_eval"),
    *("litert_converter", "ai_edge_litert", "ai_edge_quantizer", "onnx", "onnxruntime", "ortools"),
)


def run(code: str) -> str:
    """The output of a fresh interpreter."""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


PACKAGES = "import json, sys\nprint(json.dumps(list(sys.modules)))"
BACKENDS = """
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
"""


def packages_after(statement: str) -> set[str]:
    """Top-level packages outside the standard library that a fresh interpreter has loaded."""
    return packages_of(run(f"{statement}\n{PACKAGES}"))


def packages_of(printed: str) -> set[str]:
    return {name.split(".")[0] for name in json.loads(printed)} - sys.stdlib_module_names


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """The packages and backends that an interpreter has loaded after importing the package."""
    return run(f"import llada_jax\n{PACKAGES}\n{BACKENDS}").splitlines()


@pytest.fixture(scope="module")
def after_llada_jax(printed) -> set[str]:
    return packages_of(printed[0])


@pytest.mark.parametrize("package", HEAVY)
def test_import_leaves_out(package, after_llada_jax):
    assert package not in after_llada_jax


def test_import_loads_nothing_heavy_beyond_jax(after_llada_jax):
    assert after_llada_jax - packages_after("import jax") <= LIGHT


def test_a_heavy_import_is_detected():
    assert "jinja2" in packages_after("import jinja2")


def test_import_starts_no_backend(printed):
    assert printed[1:] == ["False"]
