"""The file of experts returns the written weights, and damage is refused."""

from dataclasses import replace

import numpy as np
import pytest

from llada_jax.backend.weights import InMemory
from llada_jax.experts.decoding.expert_file import PAGE, ExpertFile, page_aligned, write_experts
from llada_jax.experts.decoding.expert_slots import ExpertSlots
from llada_jax.model.quantize import QuantArray, quantize
from tests.checkpoint.folders import GOLDENS, loaded
from tests.drawn_params import drawn_params


@pytest.fixture(scope="module")
def mixture():
    config = loaded(GOLDENS / "llada-moe", "float32")[0]
    config = config.replace(moe=replace(config.moe, expert_width=32))
    return config, drawn_params(config)


@pytest.fixture
def path(tmp_path, mixture):
    write_experts(tmp_path / "experts", mixture[0], InMemory(mixture[1]), "int4", "name")
    return tmp_path / "experts"


def arrays(file, layer, expert):
    place = page_aligned(file.shape.expert_bytes)
    file.read(layer, expert, place)
    return file.matrices(place)


@pytest.mark.parametrize("bits", [8, 4])
def test_experts_are_quantized_as_in_load(tmp_path, mixture, bits):
    config, params = mixture
    write_experts(tmp_path / "experts", config, InMemory(params), f"int{bits}")
    file = ExpertFile(tmp_path / "experts")
    found = arrays(file, 2, 5).down
    assert isinstance(found, QuantArray)
    values, scale = map(np.asarray, quantize(np.asarray(params.layers[2].ffn.down[5]), bits))
    if bits == 4:
        first, second = np.split(values.astype(np.uint8) + 8, 2, axis=1)
        values = first + 16 * second
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.scale, scale)


def test_integers_of_the_right_format_are_kept(tmp_path, path, mixture):
    config, params = mixture
    layers = [
        layer._replace(ffn=layer.ffn._replace(down=quantize(np.asarray(layer.ffn.down), 4)))
        for layer in params.layers
    ]
    again = InMemory(params._replace(layers=tuple(layers)))
    write_experts(tmp_path / "again", config, again, "int4", "name")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "longer", "tail", "index", "empty", "text"])
def test_an_invalid_file_is_refused_when_opened(path, damage):
    content = bytearray(path.read_bytes())
    changed = {
        "cut": content[PAGE:],
        "longer": content + b"\0",
        "tail": content[:-1] + b"2",
        "index": content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
        "empty": b"",
        "text": b"experts" * 100,
    }
    path.write_bytes(changed[damage])
    with pytest.raises(ValueError, match="is no file of experts, or is cut short or damaged"):
        ExpertFile(path)


def test_a_damaged_expert_is_refused_when_it_is_read(path):
    size = ExpertFile(path).shape.expert_bytes
    with path.open("r+b") as file:
        file.seek(9 * size + 100)
        file.write(b"\xff\0")
    damaged = ExpertFile(path)
    arrays(damaged, 1, 0)
    message = "expert 1 of routed layer 1 is damaged; allowed: the bytes that were written"
    with pytest.raises(ValueError, match=message):
        arrays(damaged, 1, 1)
    everything = np.ones((damaged.shape.n_layers, damaged.shape.n_experts), bool)
    with pytest.raises(ValueError, match=message), ExpertSlots(damaged, everything):
        pass


def test_bad_input_is_refused(tmp_path, mixture):
    config, params = mixture
    weights = InMemory(params)
    with pytest.raises(FileNotFoundError, match="no file"):
        ExpertFile(tmp_path / "experts")
    for changes, dtype, message in (
        ({}, "int3", "dtype is 'int3'; allowed: 'float32', 'bfloat16', 'int8', 'int4'"),
        ({"moe": None}, "int4", "llada_moe has no routed experts to look at; allowed: a mixture"),
        ({"width": 72}, "int4", "dtype is 'int4', but experts have 72 inputs; allowed: a multiple"),
    ):
        with pytest.raises(ValueError, match=message):
            write_experts(tmp_path / "experts", config.replace(**changes), weights, dtype)
    more = config.replace(moe=replace(config.moe, n_experts=9))
    with pytest.raises(ValueError, match="the weights have 24 experts; allowed: 27"):
        write_experts(tmp_path / "experts", more, weights, "int8")
    assert list(tmp_path.iterdir()) == []
