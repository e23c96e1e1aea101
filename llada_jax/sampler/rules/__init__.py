"""Rules: which predictions are committed, and what becomes of them. One file for each rule."""

from llada_jax.sampler.rules.entropy_distance import EntropyDistance
from llada_jax.sampler.rules.quota import Quota
from llada_jax.sampler.rules.speculate import Speculate
from llada_jax.sampler.rules.staged import Staged
from llada_jax.sampler.rules.threshold import Threshold
from llada_jax.sampler.rules.token_edit import TokenEdit
from llada_jax.sampler.rules.wino import Wino
