"""Everything a user can set, as frozen dataclasses. Standard library only.

A configuration that exists is valid: each class checks itself when it is built and names the bad
value and what is allowed. All of them are hashable, so they pass to `jax.jit` as static arguments.
"""

from llada_jax.config.checks import (
    ascending_counts,
    numbered_lines,
    parse_json,
    read_object,
    require,
    require_choice,
    require_choices,
    require_counts,
    require_multiple,
    require_numbers,
    require_seed,
    require_value,
    shortened,
)
from llada_jax.config.export_settings import (
    STATIC_PRECISIONS,
    ExportConfig,
    PhoneConfig,
    Precision,
    Quant,
    Soc,
)
from llada_jax.config.model import ONE_DEVICE, MeshConfig, ModelConfig, MoEConfig, Router
from llada_jax.config.parity import HOUSE, FloatDtype, Loop, Parity, Remasking
from llada_jax.config.timed_buckets import LatencyTable
from llada_jax.config.training import LoraConfig, Objective, Optimizer, TrainConfig
