"""Policy gradients for decoders: which tokens a run chose, how likely they were, and a step."""

from llada_jax.training.policy.canvases import (
    Canvases,
    masked_answers,
    token_batch,
    trajectory_canvases,
)
from llada_jax.training.policy.grpo import GRPO, advantages, grpo_step, log_probabilities
