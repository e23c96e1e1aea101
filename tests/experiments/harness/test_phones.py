"""What the device experiments share."""

import pytest

from experiments.harness.phones import ARCHITECTURES, model_shape
from llada_jax.config import MoEConfig


@pytest.mark.parametrize("name", sorted(f.stem for f in ARCHITECTURES.glob("*.yaml")))
def test_every_shape_is_read_whole(name):
    moe = model_shape(name).moe
    assert moe is None or isinstance(moe, MoEConfig)


def test_an_unknown_shape_names_the_known():
    with pytest.raises(ValueError, match=r"shape is 'llada_9b'; allowed: .*llada_8b"):
        model_shape("llada_9b")
