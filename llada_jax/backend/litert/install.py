"""Imports the optional packages of the extra `npu`, with an error that names the extra."""

from importlib import import_module
from typing import Any

from llada_jax.backend.silenced import silenced


def _modules(package: str, *names: str) -> list[Any]:
    try:
        with silenced(package):
            return [import_module(f"{package.replace('-', '_')}.{name}") for name in names]
    except ImportError as error:
        raise ImportError(
            f"backend 'litert' needs {package} ({error}); "
            "install the extra: pip install 'llada_jax[npu]'"
        ) from error


def require_npu() -> None:
    """Raises ImportError unless all packages for the backend `litert` are installed."""
    litert_converter()
    litert_schema()
    litert_runtime()


def litert_converter() -> list[Any]:
    """Returns MLIR, its pass manager, the StableHLO dialect and the API of `litert-converter`."""
    mlir = ("mlir.ir", "mlir.passmanager", "mlir.dialects.stablehlo")
    return _modules("litert-converter", *mlir, "converter_api_ext")


def litert_schema() -> Any:
    """Returns the classes of TFLite's flatbuffers."""
    return _modules("ai-edge-litert", "schema_py_generated")[0]


def litert_runtime() -> Any:
    """Returns LiteRT's package, with the submodules for running files imported."""
    names = ("compiled_model", "cpu_options", "environment", "hardware_accelerator", "options")
    _modules("ai-edge-litert", *names, "tensor_buffer")
    return import_module("ai_edge_litert")
