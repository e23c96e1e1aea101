"""Whoever runs an expert, from whichever slot: the forward is the plain one."""

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.backend.weights import InMemory
from llada_jax.experts.cache import Swap
from llada_jax.experts.decoding.budgeted_forward import forward_rows_budgeted
from llada_jax.experts.decoding.expert_file import ExpertFile, write_experts
from llada_jax.experts.decoding.expert_slots import ExpertSlots
from llada_jax.experts.policy_run import LayerDecision
from llada_jax.experts.schedule import Schedule
from llada_jax.model.forward import cache_for, forward_rows
from tests.experts.decoding.test_recording import FAMILIES, model, rows_of


@functools.cache
def plain(family):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)
    return jax.jit(forward_rows, static_argnums=1)(params, config, rows, cache)


def run(family, slots, plan):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)
    return forward_rows_budgeted(params, config, rows, cache, slots, plan)


@functools.cache
def file_of(family):
    config, params = model(family)
    with TemporaryDirectory() as folder:
        path = Path(folder, "experts")
        write_experts(path, config, InMemory(params), "float32")
        return ExpertFile(path)  # which stays open


def slots_of(family, slots):
    config, _ = model(family)
    layers = config.n_layers - config.moe.first_layer
    resident = np.arange(config.moe.n_experts) < slots
    return ExpertSlots(file_of(family), np.tile(resident, (layers, 1)))


def decision(family, cpu, slots, after, *swaps):
    resident = np.isin(np.arange(model(family)[0].moe.n_experts), after)
    return LayerDecision(Schedule(cpu, slots, []), resident, swaps)


def equal(family, out):
    expected = plain(family)
    for name in ("hidden", "keys", "values"):
        found = np.asarray(getattr(out, name))
        np.testing.assert_allclose(found, getattr(expected, name), rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_plan_gives_the_result_of_the_plain_forward(family, data):
    """Hosts, slots, residents that change, and transfers ahead of time, all drawn at random."""
    config, _ = model(family)
    n_experts = config.moe.n_experts
    held = data.draw(st.integers(1, n_experts), "slots")
    layers = config.n_layers - config.moe.first_layer

    def plan(layer, routing):
        active = np.unique(routing.experts).tolist()
        here = slots.resident(layer)
        host = [e for e in active if data.draw(st.booleans(), "on the host")]
        pool = sorted(here | set(active))
        after = data.draw(st.permutations(pool), "stay")[:held]
        ahead = []
        target = (layer + 1) % layers
        absent = sorted(set(range(n_experts)) - slots.resident(target))
        if absent and target != layer:
            victim = data.draw(st.sampled_from(sorted(slots.resident(target))), "victim")
            ahead = [Swap(target, absent[0], victim)]
        return decision(family, host, [e for e in active if e not in host], after, *ahead)

    with slots_of(family, held) as slots:
        equal(family, run(family, slots, plan))
        assert all(len(slots.resident(layer)) == held for layer in range(layers))


def test_residents_match_the_plan():
    def plan(layer, routing):
        active = np.unique(routing.experts).tolist()
        on_host, in_slots = [e for e in active if e > 4], [e for e in active if e <= 4]
        return decision("llada-moe", on_host, in_slots, [0, 3, 4])

    with slots_of("llada-moe", 3) as slots:
        equal("llada-moe", run("llada-moe", slots, plan))
        assert [slots.resident(layer) for layer in range(3)] == [{0, 3, 4}] * 3
        assert slots.read == 3 * 5


@pytest.mark.parametrize(
    ("host", "slots"), [([], []), ([0, 1, 2, 3, 4, 5, 6, 7], [0]), ([0, 0], [1])]
)
def test_a_plan_with_missing_or_repeated_experts_is_refused(host, slots):
    with (
        slots_of("llada-moe", 1) as held,
        pytest.raises(ValueError, match=r"the plan runs experts \[.*\]; allowed: each of .* once"),
    ):
        run("llada-moe", held, lambda *_: decision("llada-moe", host, slots, [0]))
