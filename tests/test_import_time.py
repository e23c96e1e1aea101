"""The public names cost little more than `import jax`: they load no other heavy package, and those
that decode do not load the parts of the package that they do not use."""

import json
import subprocess
import sys

import pytest

import llada_jax as lj

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
    """The packages and backends that an interpreter has loaded with all public names."""
    return run(f"from llada_jax import *\n{PACKAGES}\n{BACKENDS}").splitlines()


@pytest.fixture(scope="module")
def after_llada_jax(printed) -> set[str]:
    return packages_of(printed[0])


@pytest.mark.parametrize("package", HEAVY)
def test_import_leaves_out(package, after_llada_jax):
    assert package not in after_llada_jax


def test_import_loads_nothing_heavy_beyond_jax(after_llada_jax):
    assert after_llada_jax - packages_after("import jax") <= LIGHT


def test_decoding_loads_neither_other_backends_nor_other_parts():
    code = f"import llada_jax as lj\nlj.generate, lj.SamplerConfig\n{PACKAGES}"
    parts = ("text", "checkpoint", "phones", "evaluation", "training", "backend.litert")
    others = tuple(f"llada_jax.{part}" for part in parts)
    assert not [name for name in json.loads(run(code)) if name.startswith(others)]


def test_the_package_itself_loads_nothing_and_lists_every_public_name():
    code = f"import llada_jax\n{PACKAGES}\nprint(json.dumps(dir(llada_jax)))"
    loaded, names = run(code).splitlines()
    assert packages_of(loaded) == packages_after("pass") | {"llada_jax"}
    assert set(lj.__all__) <= set(json.loads(names))
    with pytest.raises(AttributeError, match="'llada_jax' has no attribute 'generat'"):
        lj.generat  # noqa: B018


def test_a_heavy_import_is_detected():
    assert "jinja2" in packages_after("import jinja2")


def test_import_starts_no_backend(printed):
    assert printed[1:] == ["False"]
