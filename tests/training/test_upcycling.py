"""A mixture of a dense parent's neurons: copied parameters, and the initial outputs."""

import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.config import MoEConfig
from llada_jax.model.forward import forward
from llada_jax.model.params import Experts
from llada_jax.training.upcycling import dense_shape, upcycle
from tests.drawn_params import drawn_params
from tests.training.echo import MODEL

MOE = MoEConfig(n_experts=4, experts_per_token=4, expert_width=MODEL.ffn_width // 4)
MIXTURE = MODEL.replace(family="llada_moe", moe=MOE)
PARENT = drawn_params(MODEL)


def test_with_all_experts_and_an_even_router_it_equals_the_parent():
    made = upcycle(PARENT, MIXTURE, 0)
    even = []
    for layer in made.layers:
        assert isinstance(layer.ffn, Experts)
        even.append(layer._replace(ffn=layer.ffn._replace(router=0 * layer.ffn.router)))
    tokens = jnp.arange(12).reshape(2, 6)
    found = forward(made._replace(layers=tuple(even)), MIXTURE, tokens)
    np.testing.assert_allclose(found, forward(PARENT, MODEL, tokens), atol=1e-4)


def test_every_neuron_is_copied_equally_often():
    moe = MoEConfig(n_experts=8, experts_per_token=2, expert_width=MODEL.ffn_width // 4)
    made = upcycle(PARENT, MIXTURE.replace(moe=moe), 3)
    gates = np.asarray(made.layers[0].ffn.gate).reshape(-1, MODEL.width)
    _, copies = np.unique(gates, axis=0, return_counts=True)
    assert len(copies) == MODEL.ffn_width and set(copies) == {2}
    assert dense_shape(MIXTURE) == MODEL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shared_width": 8}, "first_layer, shared_width are 0, 8; allowed: 0, 0"),
        ({"expert_width": 1}, r"the experts have 4 neurons; allowed: ffn_width \("),
    ],
)
def test_mixtures_that_the_parent_cannot_fill_are_refused(changes, message):
    moe = MoEConfig(**{**vars(MOE), **changes})
    with pytest.raises(ValueError, match=message):
        upcycle(PARENT, MIXTURE.replace(moe=moe), 0)
