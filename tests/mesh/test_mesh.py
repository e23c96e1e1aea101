"""The division of a model over a mesh, refused shapes, and the head that is folded from parts."""

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import llada_jax as lj
from llada_jax.checkpoint.tensors import ArrayParts
from llada_jax.model.architecture.parameters import named_specs
from llada_jax.model.head import ScoreRules, head_weight, over_ids
from llada_jax.model.measures import absorb_head, finish_head, merged, start_head
from llada_jax.model.mesh import partition_of, require_divides
from llada_jax.model.moe import moe_feed_forward
from llada_jax.model.quantize import QuantArray, WeightShard, quantize
from llada_jax.types import HeadRequest
from tests.drawn_params import drawn_params
from tests.mesh.models import divisible
from tests.model.test_head import random_case

VOCAB = 96
RULES = ScoreRules(forbidden=(3,), temperature=0.7, chunk=20, anywhere=VOCAB)


class Shape:
    """A mesh of more devices than there are."""

    def __init__(self, data: int = 1, model: int = 1, expert: int = 1) -> None:
        self.shape = {"data": data, "model": model, "expert": expert}


def test_a_mesh_larger_than_the_devices_is_refused() -> None:
    count = len(jax.devices())
    with pytest.raises(ValueError, match=f"takes {2 * count} devices; allowed: up to {count}, "):
        lj.mesh(data=2, model=count)
    with pytest.raises(ValueError, match="model is 0; allowed"):
        lj.mesh(model=0)


@pytest.mark.parametrize(
    ("family", "dtype", "mesh", "message"),
    [
        (
            "llada",
            None,
            Shape(model=3),
            r"mesh.model is 3; allowed: 1, 2, 4, 8 \(for 128 v",
        ),
        ("llada", "int4", Shape(model=4), r"mesh.model is 4; allowed: 1, 2 .*2 groups of 32"),
        ("llada", None, Shape(expert=2), r"mesh.expert is 2; allowed: 1 \(for 0 experts"),
        ("llada_moe", None, Shape(model=4, expert=8), r"mesh.expert is 8; allowed: 1, 2, 4 "),
    ],
)
def test_sizes_that_do_not_divide_are_refused(
    family: str, dtype: str | None, mesh: Shape, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        require_divides(divisible(family), mesh, dtype)  # pyright: ignore


def test_integers_and_their_scales_are_on_the_same_device() -> None:
    specs = named_specs(divisible("llada_moe"))
    names = ("attention.output", "attention.query", "ffn.down", "ffn.router")
    output, query, down, router = (
        partition_of(specs[f"layers.0.{each}"], "int8") for each in names
    )
    assert output == QuantArray(P(None, "model"), P(None, None))
    assert query == QuantArray(P("model", None), P("model", None))
    assert isinstance(down, QuantArray) and down.values == P(("expert", "model"), None, None)
    assert router == P(None, None)
    grouped = partition_of(named_specs(divisible("llada"))["layers.0.ffn.down"], "int4")
    assert grouped == QuantArray(P(None, "model"), P(None, "model"))


def test_local_experts_add_up_to_all_experts() -> None:
    config = divisible("llada_moe")
    experts, x = (
        drawn_params(config).layers[0].ffn,
        jax.random.normal(jax.random.key(0), (2, 5, 64)),
    )
    every = {"gate", "up", "down"}
    for quantized in (False, True):
        whole = {name: getattr(experts, name) for name in every}
        if quantized:
            whole = {name: quantize(np.asarray(each), 8) for name, each in whole.items()}
        parts = {name: WeightShard(each, ("expert", "model")) for name, each in whole.items()}
        given, cut = experts._replace(**whole), experts._replace(**parts)
        run = jax.shard_map(
            partial(moe_feed_forward, config=config.moe),
            mesh=lj.mesh(), in_specs=P(), out_specs=P(), check_vma=False,
        )  # fmt: skip
        expected = jax.jit(moe_feed_forward, static_argnums=2)(x, given, config.moe)
        np.testing.assert_allclose(jax.jit(run)(x, cut), expected, rtol=1e-5, atol=1e-5)


def test_parts_of_the_vocabulary_merge_to_the_whole() -> None:
    params, hidden = random_case(VOCAB, 8, 5)
    keys = jax.random.split(jax.random.key(0), hidden.shape[:2])
    rng = np.random.default_rng(0)
    asked = HeadRequest(
        top_k=3,
        n_classes=4,
        listed=jnp.asarray(rng.integers(0, VOCAB, (*hidden.shape[:2], 6))),
        class_of=jnp.asarray(rng.integers(0, 4, VOCAB)),
        previous=hidden[:, ::-1] * 0.9,
        class_mass=True,
        class_samples=True,
    )

    @jax.jit
    def in_parts(*bounds):
        rows, nothing = start_head(hidden, asked, RULES)

        def absorb(seen, logits, start):
            return absorb_head(seen, logits, start, keys, asked, RULES)

        found = [
            over_ids(head_weight(params), rows, RULES, absorb, nothing, first, VOCAB // 4)
            for first in bounds
        ]
        pairs = merged(merged(found[0], found[1]), merged(found[2], found[3]))
        return finish_head(reduce(merged, found)), finish_head(pairs)

    def whole():
        rules = ScoreRules(forbidden=(3,), temperature=0.7, chunk=20)
        rows, nothing = start_head(hidden, asked, rules)

        def absorb(seen, logits, start):
            return absorb_head(seen, logits, start, keys, asked, rules)

        return finish_head(over_ids(head_weight(params), rows, rules, absorb, nothing))

    expected = jax.jit(whole)()
    for found in in_parts(0, 24, 48, 72):
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_only_the_parts_of_an_array_that_are_held_here_are_filled() -> None:
    class Where:
        """Two of four devices, which divide the columns of the first half of the rows."""

        def addressable_devices_indices_map(self, shape):
            return {0: (slice(0, 2), slice(0, 3)), 1: (slice(0, 2), slice(3, 6))}

    parts = ArrayParts((4, 6), np.dtype(np.int32), Where())  # pyright: ignore
    assert parts.rows_within(0, 4) == (0, 2)
    assert parts.rows_within(2, 4) == (2, 2)
    whole = np.arange(24).reshape(4, 6)
    parts.write(range(0, 4), whole)
    first, second = (each.buffer.copy() for each in parts._parts.values())
    np.testing.assert_array_equal(np.hstack([first, second]), whole[:2])
    parts.write(np.array([3, 1, 0, 2]), whole)
    first, second = (each.buffer for each in parts._parts.values())
    np.testing.assert_array_equal(np.hstack([first, second]), whole[[2, 1]])
