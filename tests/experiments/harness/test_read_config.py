"""A configuration becomes dataclasses, or one error that names the key and what is allowed."""

from dataclasses import dataclass, field
from typing import Literal

import pytest
from omegaconf import OmegaConf

from experiments.harness.run import read_config
from llada_jax.config import require


@dataclass(frozen=True, kw_only=True)
class Wheel:
    spokes: int
    radius: float = 1.0

    def __post_init__(self):
        require(self.spokes > 0, f"spokes is {self.spokes}; allowed: 1 or more")


@dataclass(frozen=True, kw_only=True)
class Bicycle:
    colour: Literal["red", "green"]
    front: Wheel
    back: Wheel | None = None
    name: str | None = None
    electric: bool = False
    spare: Wheel = field(default_factory=lambda: Wheel(spokes=1))


def read(**values):
    values = {"colour": "red", "front": {"spokes": 8}, **values}
    return read_config(Bicycle, OmegaConf.create(values))


def test_sections_become_dataclasses():
    bicycle = read(back={"spokes": 9, "radius": 2}, name="Ann", electric=True)
    assert bicycle == Bicycle(
        colour="red",
        front=Wheel(spokes=8),
        back=Wheel(spokes=9, radius=2.0),
        name="Ann",
        electric=True,
    )
    assert bicycle.back is not None and type(bicycle.back.radius) is float
    assert read(back=None, name=None) == read()


def test_interpolations_are_resolved():
    assert read(back={"spokes": "${front.spokes}"}).back == Wheel(spokes=8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"color": "red"}, r"^color is no setting; allowed: colour, front, back, name, electric"),
        (
            {"front": {"spoke": 8}},
            r"^front\.spoke is no setting; allowed: spokes, radius \(did you mean spokes\?\)$",
        ),
        ({"back": {"radius": 1.0}}, r"^back\.spokes is missing$"),
        ({"front": 8}, r"^front is 8; allowed: a section of settings$"),
        ({"front": None}, r"^front is None; allowed: a section"),
        ({"front": {"spokes": 8.5}}, r"^front\.spokes is 8\.5; allowed: a whole number$"),
        ({"front": {"spokes": True}}, r"^front\.spokes is True; allowed: a whole number$"),
        ({"front": {"spokes": 8, "radius": "wide"}}, r"^front\.radius is 'wide'; allowed: a num"),
        ({"electric": 1}, r"^electric is 1; allowed: true or false$"),
        ({"name": 7}, r"^name is 7; allowed: text$"),
        ({"colour": "blue"}, r"^colour is 'blue'; allowed: 'red', 'green'$"),
        ({"front": {"spokes": 0}}, r"^front: spokes is 0; allowed: 1 or more$"),
    ],
)
def test_errors_name_the_key_and_what_is_allowed(values, message):
    with pytest.raises(ValueError, match=message):
        read(**values)
