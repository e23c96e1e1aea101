"""Parameters in memory in another dtype, as they could have been loaded."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from llada_jax.checkpoint.tensors import kept_dtype
from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams, ParamSpec, abstract_params
from llada_jax.model.quantize import quantize

WIDTHS = {"float32": np.float32, "bfloat16": "bfloat16", "int8": "bfloat16", "int4": "bfloat16"}


def cast_params(config: ModelConfig, params: ModelParams, dtype: str | None) -> ModelParams:
    """Parameters of floats, as `load` gives them with this dtype; None leaves them so."""
    if dtype is None:
        return params

    def cast(keys: Sequence[Any], spec: ParamSpec, leaf: Any) -> Any:
        if dtype in ("int8", "int4") and spec.quantizable:
            return quantize(np.asarray(leaf), int(dtype.removeprefix("int")))
        return leaf.astype(kept_dtype(keys[-1].name, leaf.dtype, np.dtype(WIDTHS[dtype])))

    return jax.tree.map_with_path(cast, abstract_params(config), params)
