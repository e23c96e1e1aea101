"""Shapes come with the package or from a user's file."""

import pytest

from llada_jax.config import MoEConfig
from llada_jax.model.architecture import ARCHITECTURES, architecture

NAMES = sorted(file.stem for file in ARCHITECTURES.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_shape_is_read_whole(name):
    moe = architecture(name).moe
    assert moe is None or isinstance(moe, MoEConfig)


def test_a_custom_shape_is_read_by_its_path(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text((ARCHITECTURES / "tiny.yaml").read_text().replace("128", "64"))
    assert architecture(mine).width == 64 == architecture(str(mine)).width
    mine.write_text("width: 64")
    with pytest.raises(ValueError, match=r"mine\.yaml: family is missing"):
        architecture(mine)


@pytest.mark.parametrize("name", ["llada_9b", "llada_9b.yaml"])
def test_an_unknown_shape_names_the_known(name):
    with pytest.raises(ValueError, match=f"shape is '{name}'; allowed: .*llada_8b, .*, or a YAML"):
        architecture(name)
