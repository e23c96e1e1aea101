"""Windows: which rows a forward runs, and what it reads from the cache. One file a window."""

from llada_jax.config.policies import register
from llada_jax.sampler.windows.blockwise import Blockwise
from llada_jax.sampler.windows.dual import DualCache
from llada_jax.sampler.windows.multi_block import MultiBlock
from llada_jax.sampler.windows.prefix import PrefixCache
from llada_jax.sampler.windows.sliding import Sliding
from llada_jax.sampler.windows.whole_canvas import WholeCanvas

register("window", (WholeCanvas, PrefixCache, DualCache, Blockwise, MultiBlock, Sliding))
