"""Unpacks tiles by their documented layout."""

import ml_dtypes
import numpy as np

from llada_jax.model.quantize import QuantArray
from llada_jax.revision.tiles import BIAS, NIBBLE_BYTES, TILE, Tiles


def unpack_q4_0(tiles: Tiles) -> QuantArray:
    """Inverts `pack_q4_0`; returns numpy arrays."""
    nibbles = tiles.blocks[..., :NIBBLE_BYTES]
    # From o i pair column row to [Out, In].
    pairs = np.stack([nibbles & 15, nibbles >> 4], axis=-1)
    parts = pairs.reshape(*nibbles.shape[:2], TILE // 2, TILE, 2).transpose(0, 3, 1, 2, 4)
    values = (parts.reshape(tiles.shape).astype(np.int8) - BIAS).astype(ml_dtypes.int4)
    columns = np.ascontiguousarray(tiles.blocks[..., NIBBLE_BYTES:]).view(np.float16)
    scale = columns.swapaxes(1, 2).reshape(tiles.shape[0], -1).astype(np.float32)
    return QuantArray(values, scale)  # pyright: ignore[reportArgumentType]
