"""All settings of users, as frozen dataclasses. Imports the standard library only.

Every instance is valid: each class checks its fields when it is constructed, and raises ValueError
with the bad value and the allowed ones. All classes are hashable, so that instances can be static
arguments of `jax.jit`.
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
from llada_jax.config.training import LoopConfig, LoraConfig, Objective, Optimizer, TrainConfig
