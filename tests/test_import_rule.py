"""Checks allowed imports by parsing every module. A room is a file or folder of `llada_jax`."""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "llada_jax"

DATA = {"config", "architecture", "types", "rows", "on_mesh"}
EVERYONES = {"atomic", "cache_folder", "inside", "locked"}
"""Rooms that all others may import."""
EVERYTHING = {
    *DATA,
    *(
        "config_files",
        "text",
        "chat_template",
        "tokenizer_json",
        "tokenizer_sources",
        "messages",
        "pattern_probe",
        "archive",
        "content",
        "programs",
        "model",
        "checkpoint",
        "view",
        "sampler",
        "revision",
        "lowered",
        "llvm_code",
        "backend",
        "phones",
        "swap",
        "constraint",
        "draft",
    ),
    *(
        "sampling_engine",
        "hdl",
        "experts",
        "experts_decoding",
        "training",
        "evaluation",
        "tasks",
        "api",
        "serve",
        "cli",
        "testing",
        "table",
    ),
}

ALLOWED = {
    "io": set(),
    "atomic": set(),
    "cache_folder": set(),
    "locked": {"config"},
    "programs": set(),
    "inside": set(),
    "config": set(),
    "config_files": {"config"},
    "architecture": {"config_files", "config"},
    "types": {"config"},
    "rows": {"types", "config"},
    "on_mesh": {"types", "config"},
    "chat_template": set(),
    "messages": {"config"},
    "pattern_probe": set(),
    "tokenizer_json": {"pattern_probe", "config"},
    "tokenizer_sources": {"tokenizer_json", "config"},
    "text": {"chat_template", "messages", "tokenizer_json", "tokenizer_sources", "config"},
    "archive": {"config"},
    "content": set(),
    "model": {"config_files", *DATA},
    "checkpoint": {"content", "model", "text", "tokenizer_sources", "config_files", *DATA},
    "constraint": {"archive", "text", "config"},
    "draft": {"checkpoint", "model", "sampler", *DATA},
    "view": {"config"},
    "sampler": {"archive", "constraint", "programs", "view", *DATA},
    "llvm_code": set(),
    "revision": {"llvm_code", "model", *DATA},
    "lowered": set(),
    "backend": {"content", "llvm_code", "lowered", "model", "text", "config_files", *DATA},
    "swap": {"architecture", "config"},
    "phones": {"lowered", "swap", "experts", "architecture", "config_files", "config"},
    "sampling_engine": {"config"},
    "hdl": {"sampling_engine", "config"},
    "experts": {"archive", "config"},
    "experts_decoding": {"experts", "model", *DATA},
    "table": set(),
    "tasks": {"config_files", "config"},
    "training": {"sampler", "model", "messages", "text", "checkpoint", "tasks", *DATA},
    "evaluation": {"sampler", "model", "text", "checkpoint", "table", "tasks", *DATA},
    "api": EVERYTHING,
    "testing": EVERYTHING,
    "serve": EVERYTHING | {"__init__"},  # on the public names
    "cli": EVERYTHING | {"__init__"},
    "__init__": EVERYTHING,
}

THIRD_PARTY = {
    "atomic": set(),
    "cache_folder": set(),
    "locked": set(),
    "chat_template": {"jinja2"},
    "pattern_probe": {"tokenizers"},
    "tokenizer_json": {"tokenizers"},
    "tokenizer_sources": set(),
    "inside": set(),
    "config": set(),
    "config_files": {"yaml"},
    "architecture": set(),
    "content": {"tqdm"},
    "lowered": set(),
    "table": set(),
    "tasks": {"numpy"},
    "view": {"jinja2"},
    "swap": {"numpy"},
    "sampling_engine": {"numpy", "ml_dtypes"},
    "hdl": {"numpy", "ml_dtypes"},
    "experts": {"numpy", "jaxtyping"},
}
"""Rooms that may only use these packages and the standard library."""

ROOM_OF_MODULE = {
    **{f"llada_jax.evaluation.{name}": "tasks" for name in ("prompts", "task", "tasks", "wording")},
    "llada_jax.model.architecture": "architecture",  # plain data, of `model` by its subject
    "llada_jax.sampling_engine.hdl": "hdl",
    "llada_jax.experts.decoding.generation": "api",
    "llada_jax.experts.decoding": "experts_decoding",
    # They lower steps, which takes JAX.
    **{f"llada_jax.phones.{name}": "api" for name in ("calibration", "graphs", "phone")},
    **{f"llada_jax.evaluation.{name}": "api" for name in ("evaluate", "lm_eval_model")},  # decode
}
"""Files and folders of one room that belong to another one."""


def room_of(module: str) -> str:
    """`llada_jax.model.params` -> `model`; each file of `io` is a separate room."""
    module = module.replace("llada_jax.io.", "llada_jax.")
    for owned, room in ROOM_OF_MODULE.items():
        if module == owned or module.startswith(owned + "."):
            return room
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path, module: str) -> Iterator[str]:
    """Modules that a file imports, wherever in the file, by absolute name."""
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def breach(room: str, imported: str) -> str | None:
    """The error of this import in this room, or None."""
    top = imported.split(".")[0]
    if top == "llada_jax":
        target = room_of(imported)
        if target not in ALLOWED:
            return "imports its own package instead of a room"
        return None if target in {room, *EVERYONES, *ALLOWED[room]} else f"may not import {target}"
    if top in ("experiments", "tests", "notebooks"):
        return f"may not import {top}"
    if room in THIRD_PARTY and top not in {*sys.stdlib_module_names, *THIRD_PARTY[room]}:
        return f"may not import {top}"
    return None


def modules_of(package: Path) -> list[Path]:
    """Source files; those of a stub's module are the stub's, which lists what it imports lazily."""
    stubs = {*package.rglob("*.pyi")}
    return sorted(stubs | {p for p in package.rglob("*.py") if p.with_suffix(".pyi") not in stubs})


def breaches(package: Path) -> list[str]:
    """One line for each import that breaks the rule, in a folder laid out as `llada_jax`."""
    found = []
    for path in modules_of(package):
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        room = room_of(module)
        if room not in ALLOWED:
            found.append(f"{path.relative_to(package)}: {room} is no room of the table")
            continue
        for imported in imports(path, module):
            if wrong := breach(room, imported):
                found.append(f"{path.relative_to(package)}: {wrong} ({imported})")
    return found


def test_every_module_keeps_the_rule():
    assert breaches(PACKAGE) == []


def test_the_harness_imports_no_verb_and_nothing_private():
    experiments = PACKAGE.parent / "experiments"
    verbs = {path.stem for path in experiments.iterdir()} - {"__init__", "harness"}
    forbidden = ("hydra._internal", "unittest.mock", *(f"experiments.{verb}" for verb in verbs))
    found = [
        f"{path.name}: {imported}"
        for path in sorted((experiments / "harness").glob("*.py"))
        for imported in imports(path, f"experiments.harness.{path.stem}")
        if any(f"{imported}.".startswith(f"{module}.") for module in forbidden)
    ]
    assert found == []


def test_modules_have_no_circular_imports():
    """The rule also holds inside functions and for annotations."""
    paths = {}
    for path in modules_of(PACKAGE):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for module, path in paths.items():
        found = {
            name if name in paths else name.rpartition(".")[0] for name in imports(path, module)
        }
        graph[module] = (found & paths.keys()) - {module}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_table_names_rooms_that_exist_or_are_planned():
    assert set().union(*ALLOWED.values()) <= set(ALLOWED)
    assert set(THIRD_PARTY) <= set(ALLOWED)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("sampler/step.py", "from llada_jax.model.forward import forward_rows"),
        ("sampler/step.py", "import llada_jax.backend.xla as xla"),
        ("sampler/step.py", "from llada_jax import model"),
        ("sampler/step.py", "from llada_jax import generate"),
        ("sampler/step.py", "from ..model import forward"),
        ("sampler/step.py", "from .. import model"),
        ("sampler/__init__.py", "from ..model import forward"),
        ("sampler/step.py", "def late():\n    from llada_jax.model import layers"),
        ("rows.py", "from llada_jax.model import layers"),
        ("model/layers.py", "import experiments.generate.__main__"),
        ("io/atomic.py", "import numpy as np"),
        ("io/atomic.py", "from llada_jax.config import require"),
        ("config.py", "import numpy as np"),
        ("lowered.py", "import jax"),
        ("lowered.py", "from llada_jax.backend import lower"),
        ("swap/planner.py", "import jax.numpy as jnp"),
        ("sampling_engine/machine.py", "import jax.numpy as jnp"),
        ("sampling_engine/machine.py", "from llada_jax.sampling_engine.hdl import top_k"),
        ("experts/cache.py", "import jax"),
        ("experts/cache.py", "from llada_jax.experts.decoding import expert_file"),
        ("experts/decoding/expert_file.py", "from llada_jax import api"),
        ("experts/cache.py", "from llada_jax.swap import planner"),
        ("evaluation/tasks/sums.py", "from llada_jax.text import Tokenizer"),
        ("helpers.py", "import os"),
    ],
)
def test_a_planted_violation_is_detected(tmp_path, path, source):
    planted = tmp_path / "llada_jax" / path
    planted.parent.mkdir(parents=True)
    planted.write_text(source)
    assert len(breaches(tmp_path / "llada_jax")) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("sampler/step.py", "from llada_jax.types import Rows\nfrom . import accept"),
        ("sampler/__init__.py", "from .step import step"),
        ("swap/address_space.py", "from llada_jax.io import atomic"),
        ("api.py", "from llada_jax import checkpoint, sampler"),
        ("phones/cost.py", "from llada_jax.lowered import Lowered"),
        ("swap/planner.py", "import heapq\nimport numpy as np"),
        ("sampling_engine/hdl/cell.py", "import numpy as np"),
        ("training/data.py", "from llada_jax.evaluation.tasks import word_problems"),
        ("__init__.py", "from llada_jax.api import load"),
    ],
)
def test_an_allowed_import_passes(tmp_path, path, source):
    planted = tmp_path / "llada_jax" / path
    planted.parent.mkdir(parents=True)
    planted.write_text(source)
    assert breaches(tmp_path / "llada_jax") == []
