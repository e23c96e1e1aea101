"""Conversions of a model's weights: `export` for phones, and `tiled` for the NPU's tiles."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from llada_jax import checkpoint
from llada_jax.api.contract import contract_of
from llada_jax.api.loading import for_family, with_tokenizer_ids
from llada_jax.api.model import Model
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.manifest import Manifest
from llada_jax.backend.exported.writer import write_export
from llada_jax.backend.protocol import Inputs
from llada_jax.config import ExportConfig, require
from llada_jax.revision.tiled_forward import pack_params


def export(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    settings: ExportConfig | None = None,
    *,
    verify: bool = True,
    samples: Sequence[Inputs] = (),
) -> Manifest:
    """Writes a model as a folder of `.tflite` files, which `load` takes.

    A checkpoint of any size is read tensor by tensor; see `llada_jax.backend.exported.writer`. An
    interrupted export continues when the same call is repeated.

    Args:
      settings: Default: int8, for the CPU.
      verify: Whether to compare every file's outputs with JAX before the folder gets its name.
      samples: Forwards recorded by `llada_jax.backend.program.Recorder`, which phones with static
        quantization need.

    Raises:
      FileNotFoundError, ValueError: One message that names the error, before anything is written.
      ImportError: The extra `npu` is not installed.
    """
    weights, tokenizer_path = checkpoint.open_checkpoint(source)
    tokenizer = checkpoint.read_tokenizer(tokenizer_path)
    config = with_tokenizer_ids(weights.config, tokenizer)
    settings = settings or ExportConfig()
    fingerprint = partial(checkpoint.fingerprint, source)
    contract = contract_of(config, settings, for_family(tokenizer, config))
    export_job = Export(
        config, weights, settings, str(source), tokenizer, verify, samples, fingerprint, contract
    )
    return write_export(Path(folder), export_job)


def tiled(model: Model) -> Model:
    """Returns the model with its matrices in the NPU's tile layout, for `generate(refresh_on=)`.

    Tiles are int4 in groups of 32. A model loaded as int4 keeps its integers.

    Raises:
      ValueError: The model is an export, custom or has experts, or a matrix cannot be tiled.
    """
    require(model.artifact is None, "the model is an export; allowed: a model with parameters")
    require(model.functions is None, "the model is custom; allowed: a model of a known family")
    tiles = pack_params(model.params, model.config)
    return model.replace(params=tiles, fingerprint=model.fingerprint)
