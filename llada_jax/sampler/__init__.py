"""The sampler: a state machine made of small policies. It never imports the model or a backend.

Rules and windows are imported here, since they are what a `SamplerConfig` names.
"""

from inspect import cleandoc

from llada_jax.config.policies import described
from llada_jax.config.sampler import Parity, SamplerConfig
from llada_jax.sampler import rules, windows

SamplerConfig.__doc__ = f"{cleandoc(SamplerConfig.__doc__ or '')}\n{described([Parity])}"
