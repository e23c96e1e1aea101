"""Windows: which rows a forward runs, and which part of the cache it reads."""

from llada_jax.sampler.windows.multi_block import MultiBlock
from llada_jax.sampler.windows.single_block import (
    Blockwise,
    DualCache,
    PrefixCache,
    Sliding,
    WholeCanvas,
)
