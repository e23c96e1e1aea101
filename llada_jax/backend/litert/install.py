"""The optional packages of the extra `npu`, imported when they are used."""

from types import ModuleType, SimpleNamespace
from typing import Any

from llada_jax.backend.silenced import silenced

_NPU = "install the extra: pip install 'llada_jax[npu]'"


def require_npu() -> None:
    """Raises ImportError unless all that the backend `litert` needs is installed."""
    litert_converter()
    litert_schema()
    litert_runtime()


def litert_converter() -> tuple[Any, Any, Any, Any]:
    """Returns MLIR, its pass manager, the StableHLO dialect and the API of `litert-converter`."""
    try:
        with silenced("litert-converter"):
            from litert_converter import converter_api_ext  # pyright: ignore
            from litert_converter.mlir import ir, passmanager
            from litert_converter.mlir.dialects import stablehlo
    except ImportError as error:
        raise ImportError(f"backend 'litert' needs litert-converter ({error}); {_NPU}") from error
    return ir, passmanager, stablehlo, converter_api_ext


def litert_schema() -> ModuleType:
    """Returns the classes of TFLite's flatbuffers."""
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError as error:
        raise ImportError(f"backend 'litert' needs ai-edge-litert ({error}); {_NPU}") from error
    return schema_py_generated


def litert_runtime() -> Any:
    """Returns LiteRT's `CompiledModel`, `Environment` and their options."""
    try:
        with silenced("LiteRT"):
            import ai_edge_litert
            from ai_edge_litert.compiled_model import CompiledModel
            from ai_edge_litert.cpu_options import CpuOptions
            from ai_edge_litert.environment import Environment
            from ai_edge_litert.hardware_accelerator import HardwareAccelerator
            from ai_edge_litert.options import Options
            from ai_edge_litert.tensor_buffer import TensorBuffer
    except ImportError as error:
        raise ImportError(f"backend 'litert' needs ai-edge-litert ({error}); {_NPU}") from error
    return SimpleNamespace(
        __file__=ai_edge_litert.__file__,
        CompiledModel=CompiledModel,
        CpuOptions=CpuOptions,
        Environment=Environment,
        HardwareAccelerator=HardwareAccelerator,
        Options=Options,
        TensorBuffer=TensorBuffer,
    )
