"""Windows: which rows a forward runs, and what it reads from the cache. One file for each."""

from llada_jax.sampler.windows.blockwise import Blockwise
from llada_jax.sampler.windows.dual import DualCache
from llada_jax.sampler.windows.multi_block import MultiBlock
from llada_jax.sampler.windows.prefix import PrefixCache
from llada_jax.sampler.windows.sliding import Sliding
from llada_jax.sampler.windows.whole_canvas import WholeCanvas
