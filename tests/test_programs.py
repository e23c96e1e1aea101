"""Compiled programs are kept, and the oldest ones dropped, far from the limit of mappings."""

from collections import OrderedDict
from itertools import count
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax import programs
from llada_jax.config import ModelConfig
from llada_jax.programs import drop_old_programs, kept, own_jit
from llada_jax.testing import TOY, toy_decode
from tests.drawn_params import drawn_params

LINUX = pytest.mark.skipif(not programs._MAPPINGS.exists(), reason="mappings are Linux's")
SHORT = lj.SamplerConfig.from_flat(gen_length=4, steps=1, block_length=4)


@pytest.fixture
def alone(monkeypatch):
    """Drops all kept programs, and checks the limit at each new shape."""
    monkeypatch.setattr(programs, "_kept", OrderedDict())
    monkeypatch.setattr(programs, "_LOOK_EVERY", 1)


def resident_mib() -> float:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) / 1024


def test_the_oldest_shapes_are_dropped_first(alone, monkeypatch):
    monkeypatch.setattr(programs, "_mappings", lambda: 1000 * len(programs._kept))
    monkeypatch.setattr(programs, "MAX_MAPPINGS", 4000)
    made = []
    program = kept(lambda *shape: made.append(shape) or own_jit(jnp.sin))
    first = program(0)
    for n in range(1, 5):
        program(n)
        assert program(0) is first, "used again and again"
    for n in range(5, 9):
        program(n)
    assert program(8) is program(8)
    assert len(programs._kept) <= 5
    assert made == [(n,) for n in range(9)]
    program(1)
    assert made[-1] == (1,), "made again"


def test_everything_is_dropped_if_other_programs_need_the_room(alone, monkeypatch):
    cleared = []
    monkeypatch.setattr(programs, "_mappings", lambda: 10**6)
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(1))
    kept(lambda: 0)()
    drop_old_programs()
    assert cleared == [1, 1] and not programs._kept


@LINUX
def test_dropped_programs_are_unmapped(alone, monkeypatch):
    monkeypatch.setattr(programs, "MAX_MAPPINGS", 10**6)  # other tests' programs are kept
    sums = kept(lambda *shape: own_jit(lambda x: jnp.sort(x @ x.T).sum()))
    for n in range(2, 8):
        assert float(sums(n)(jnp.ones((n, 1)))) == n * n
    before = programs._mappings()
    monkeypatch.setattr(programs, "MAX_MAPPINGS", before - 6)
    drop_old_programs()
    assert programs._mappings() < before and programs._kept
    assert float(sums(2)(jnp.ones((2, 1)))) == 4


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "host"])
def test_runs_of_many_shapes_stay_within_a_bound_and_agree(alone, monkeypatch, loop):
    def decoded(batch: int) -> np.ndarray:
        return toy_decode([[5, 7]] * batch, SHORT, loop=loop).tokens

    expected = decoded(1)
    monkeypatch.setattr(programs, "MAX_MAPPINGS", programs._mappings())
    most = 0
    for batch in (2, 3):
        np.testing.assert_array_equal(decoded(batch), np.repeat(expected, batch, axis=0))
        most = max(most, len(programs._kept))
    assert most <= (2 if loop == "compiled" else 4)


@LINUX
@pytest.mark.slow
def test_three_hundred_shapes_end_far_from_the_limit():
    """Some 370 mappings each: without a bound, 65,530 end the process at about the 170th."""
    model, most = TOY.replace(max_length=640), 0
    for n in range(300):
        toy_decode([[5] * (1 + 32 * (n % 10))] * (1 + n // 10), SHORT, model)
        most = max(most, programs._mappings())
    assert most < 1.5 * programs.MAX_MAPPINGS


@LINUX
@pytest.mark.slow
def test_memory_stays_flat_over_ten_thousand_runs_of_mixed_lengths():
    model, rng, resident = lj.load("tiny"), np.random.default_rng(0), []
    for n in range(10_000):
        lengths = rng.integers(1, 500, 1 + n % 2)
        lj.generate(model, [rng.integers(20, 400, each).tolist() for each in lengths], SHORT)
        if n % 1000 == 999:
            resident.append(resident_mib())
    assert resident[-1] < 1.02 * resident[1], resident
    assert programs._mappings() < 1.5 * programs.MAX_MAPPINGS


@LINUX
def test_logits_of_many_lengths_stay_within_a_bound(alone, monkeypatch):
    shape = ModelConfig(
        family="llada", vocab_size=16, width=8, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=8,
        ffn_width=8, rope_theta=1e4, norm_eps=1e-5, max_length=64, mask_id=15,
    )  # fmt: skip
    model = lj.Model(shape, drawn_params(shape), None)
    seen = count()
    monkeypatch.setattr(programs, "MAX_MAPPINGS", 1)
    monkeypatch.setattr(programs, "_mappings", lambda: next(seen) % 2 + 1)
    for length in range(1, 4):
        assert lj.forward(model, np.ones((1, length), np.int32)).shape == (1, length, 16)
    assert len(programs._kept) <= 2
