"""Drafters: what proposes the tokens after the last certain one, for rules that verify them."""

from llada_jax.sampler.drafters.lookup import Lookup
from llada_jax.sampler.drafters.own import Own
