"""Compiled programs are kept in the configured folder; environment variables take precedence."""

import os
import subprocess
import sys

import pytest

from llada_jax.backend.compilation_cache import enable_compilation_cache
from llada_jax.backend.resources import this_cpu

CODE = """
from llada_jax.backend.compilation_cache import enable_compilation_cache
import jax
enable_compilation_cache()
jax.jit(lambda x: jax.lax.sort(x) @ x)(jax.numpy.arange(512.0))
"""


@pytest.mark.parametrize("named", [True, False])
def test_a_process_leaves_its_programs(named, tmp_path):
    kept = {name: text for name, text in os.environ.items() if not name.startswith("JAX_")}
    folder = tmp_path / "llada_jax" / "programs" / this_cpu()
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")} if named else {}
    own["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment = {**kept, "XDG_CACHE_HOME": str(tmp_path), **own}
    subprocess.run([sys.executable, "-c", CODE], env=environment, check=True)
    assert folder.exists() != named
    assert list((tmp_path / "own" if named else folder).glob("*-cache"))


def test_environment_variables_win(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    enable_compilation_cache(tmp_path)
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == ""
