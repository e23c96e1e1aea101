"""Rules: which predictions are committed, and whether committed tokens change."""

from llada_jax.sampler.rules.committing import EntropyBound, EntropyDistance, Quota, Threshold
from llada_jax.sampler.rules.path_planning import PathPlanning
from llada_jax.sampler.rules.speculate import Speculate
from llada_jax.sampler.rules.staged import Staged
from llada_jax.sampler.rules.token_edit import TokenEdit
from llada_jax.sampler.rules.wino import Wino
