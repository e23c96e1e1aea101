"""What a training asks of a model: values, each of which corrupts canvases and says what counts.

`masked` teaches to fill masks. The others keep that in half of each batch, and in the other half
show tokens that may be wrong, and count every token: so the model learns what it should revise.
"""

from llada_jax.training.objectives.objective import OBJECTIVES, Masked, Objective, Reader
from llada_jax.training.objectives.revision import Edit, Uniform
from llada_jax.training.objectives.self_fill import SelfFill
