"""What every test relies on: one platform, strict dtypes, repeatable examples, a compile cache."""

import os
from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
MIXES_DTYPES = ("training", "experiments")
"""Tests with these words in their path run optax, which adds Python floats to integer arrays."""

LOOK_EVERY = 16  # tests: a look at twenty thousand lines takes as long as a small test


# By environment, so that the programs which tests start have them too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is XLA's, on hundreds of small programs that run once.
# `XLA_FLAGS= make test` tests what XLA optimizes.
QUICK_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILES)

import jax  # noqa: E402

from experiments.harness.compiled_programs import keep_compiled_programs  # noqa: E402
from llada_jax.programs import drop_old_programs  # noqa: E402

keep_compiled_programs(ROOT / ".jax_cache")
jax.config.update("jax_numpy_dtype_promotion", "strict")

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
finished_tests = count()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Mixed dtypes are errors, except where optax runs. Holds for fixtures of any scope."""
    where = str(item.path.relative_to(ROOT))
    mixes = any(word in where for word in MIXES_DTYPES)
    with jax.numpy_dtype_promotion("standard" if mixes else "strict"):
        outcome = yield
    if next(finished_tests) % LOOK_EVERY == 0:
        drop_old_programs()
    return outcome


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs, as far as Python can tell, a distribution with the entry points that are given."""

    def install(points: str) -> None:
        folder = tmp_path / "site" / "own-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(folder.parent))

    return install
