"""Diffusion language models in JAX, for phones with an NPU.

The public names are those that `__init__.pyi` imports. Each is imported when it is first used, so
that a program loads only the parts of the package that it needs.
"""

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

_IMPORTS = {
    alias.asname or alias.name: (node.module, alias.name)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_IMPORTS)  # pyright: ignore
__version__ = version("llada_jax")


def __getattr__(name: str) -> Any:
    if name not in _IMPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = _IMPORTS[name]
    if module == __name__:
        return import_module(f"{module}.{original}")
    value = globals()[name] = getattr(import_module(module), original)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
