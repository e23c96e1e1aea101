"""The optional packages of the extra `npu`, imported when they are used."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from llada_jax.backend.silenced import silenced


@contextmanager
def _importing(package: str) -> Iterator[None]:
    try:
        with silenced(package):
            yield
    except ImportError as error:
        raise ImportError(
            f"backend 'litert' needs {package} ({error}); "
            "install the extra: pip install 'llada_jax[npu]'"
        ) from error


def require_npu() -> None:
    """Raises ImportError unless all that the backend `litert` needs is installed."""
    litert_converter()
    litert_schema()
    litert_runtime()


def litert_converter() -> tuple[Any, Any, Any, Any]:
    """Returns MLIR, its pass manager, the StableHLO dialect and the API of `litert-converter`."""
    with _importing("litert-converter"):
        from litert_converter import converter_api_ext  # pyright: ignore
        from litert_converter.mlir import ir, passmanager
        from litert_converter.mlir.dialects import stablehlo
    return ir, passmanager, stablehlo, converter_api_ext


def litert_schema() -> ModuleType:
    """Returns the classes of TFLite's flatbuffers."""
    with _importing("ai-edge-litert"):
        from ai_edge_litert import schema_py_generated
    return schema_py_generated


def litert_runtime() -> Any:
    """Returns LiteRT's package with the modules that run files."""
    with _importing("ai-edge-litert"):
        import ai_edge_litert
        import ai_edge_litert.compiled_model
        import ai_edge_litert.cpu_options
        import ai_edge_litert.environment
        import ai_edge_litert.hardware_accelerator
        import ai_edge_litert.options
        import ai_edge_litert.tensor_buffer
    return ai_edge_litert
