"""What every test relies on: one platform, strict dtypes, repeatable examples, a compile cache."""

import gc
import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from hypothesis import settings

ROOT = Path(__file__).parent.parent
MIXES_DTYPES = ("training", "experiments")
"""Tests with these words in their path run optax, which adds Python floats to integer arrays."""

LOOK_EVERY = 100  # compilations: a look at forty thousand lines takes as long as a small test
COMPILED = "/jax/core/compile/backend_compile_duration"

# By environment, so that the programs which tests start have them too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HF_HUB_OFFLINE"] = "1"
# Most of the suite's time is XLA's, on hundreds of small programs that run once.
# `make test-optimized` tests what XLA optimizes.
QUICK_COMPILES = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ.setdefault("XLA_FLAGS", QUICK_COMPILES)
# With a limit JAX looks at all the programs that are kept before it keeps another one.
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")

import jax  # noqa: E402

from llada_jax import programs  # noqa: E402
from llada_jax.backend.compilation_cache import MAX_BYTES, enable_compilation_cache  # noqa: E402

PROGRAMS = ROOT / ".jax_cache"
enable_compilation_cache(PROGRAMS)
programs.MAX_MAPPINGS = 40_000  # since files share programs, which are compiled again once dropped
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Hydra copies the whole store for every configuration that it composes; nothing changes it there.
ConfigStore.__deepcopy__ = lambda store, memo: store  # pyright: ignore

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
compiled_since: list[str] = []
"""What was compiled since the last look."""


def note_compilation(event: str, seconds: float, **about: str | int) -> None:
    if event == COMPILED:
        compiled_since.append(event)


jax.monitoring.register_event_duration_secs_listener(note_compilation)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Empties the cache of compiled programs if it has grown too large, before workers start."""
    if not hasattr(session.config, "workerinput"):
        if sum(path.stat().st_size for path in PROGRAMS.rglob("*")) > MAX_BYTES:
            shutil.rmtree(PROGRAMS)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imported and collected objects live until the end, so collecting garbage is useless here."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Mixed dtypes are errors, except where optax runs. Holds for fixtures of any scope."""
    where = str(item.path.relative_to(ROOT))
    mixes = any(word in where for word in MIXES_DTYPES)
    with jax.numpy_dtype_promotion("standard" if mixes else "strict"):
        outcome = yield
    if len(compiled_since) > LOOK_EVERY:
        compiled_since.clear()
        programs.drop_old_programs()
    return outcome


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes Python see an installed distribution with the given entry points."""

    def install(points: str) -> None:
        folder = tmp_path / "site" / "own-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(folder.parent))

    return install
