"""Whoever runs an expert, from whichever slot: the forward is the plain one."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.experts.decoding.budgeted_forward import forward_rows_budgeted
from llada_jax.experts.decoding.expert_store import ExpertStore
from llada_jax.experts.policy_run import LayerDecision
from llada_jax.experts.prefetch import Swap
from llada_jax.experts.schedule import Schedule
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.params import Experts
from llada_jax.model.quantize import quantize
from tests.experts.decoding.test_recorded_forward import FAMILIES, model, rows_of


@functools.cache
def plain(family):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)
    return jax.jit(forward_rows, static_argnums=1)(params, config, rows, cache)


def run(family, store, plan):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)
    return forward_rows_budgeted(params, config, rows, cache, store, plan)


def store_of(family, slots):
    config, params = model(family)
    layers = config.n_layers - config.moe.first_layer
    resident = np.arange(config.moe.n_experts) < slots
    return ExpertStore(params, np.tile(resident, (layers, 1)))


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
def test_any_plan_gives_the_plain_forward(family, data):
    """Hosts, slots, residents that change, and transfers ahead of time, all drawn at random."""
    config, _ = model(family)
    n_experts = config.moe.n_experts
    slots = data.draw(st.integers(1, n_experts), "slots")
    store = store_of(family, slots)
    layers = config.n_layers - config.moe.first_layer

    def plan(layer, routing):
        active = np.unique(routing.experts).tolist()
        here = store.resident(layer)
        host = [e for e in active if data.draw(st.booleans(), "on the host")]
        staged = [e for e in active if e not in host and e not in here]
        pool = sorted(here | set(staged))
        after = data.draw(st.permutations(pool), "stay")[:slots]
        ahead = []
        target = (layer + 1) % layers
        absent = sorted(set(range(n_experts)) - store.resident(target))
        if absent and target != layer:
            victim = data.draw(st.sampled_from(sorted(store.resident(target))), "victim")
            ahead = [Swap(target, absent[0], victim)]
        slots_run = [e for e in active if e not in host]
        return decision(family, host, slots_run, after, *ahead)

    equal(family, run(family, store, plan))
    assert all(len(store.resident(layer)) == slots for layer in range(layers))


def test_residents_are_what_the_plan_says():
    store = store_of("llada-moe", 3)
    moved = store.moved

    def plan(layer, routing):
        active = np.unique(routing.experts).tolist()
        on_host, in_slots = [e for e in active if e > 4], [e for e in active if e <= 4]
        return decision("llada-moe", on_host, in_slots, [0, 3, 4])

    equal("llada-moe", run("llada-moe", store, plan))
    assert [store.resident(layer) for layer in range(3)] == [{0, 3, 4}] * 3
    assert store.moved == moved + 6


@pytest.mark.parametrize(
    ("host", "slots"), [([], []), ([0, 1, 2, 3, 4, 5, 6, 7], [0]), ([0, 0], [1])]
)
def test_a_plan_that_forgets_or_repeats_experts_is_refused(host, slots):
    with pytest.raises(ValueError, match=r"the plan runs experts \[.*\]; allowed: each of .* once"):
        run(
            "llada-moe",
            store_of("llada-moe", 1),
            lambda *_: decision("llada-moe", host, slots, [0]),
        )


def test_quantized_experts_are_refused():
    _, params = model("llada-moe")
    layers = [layer._replace(ffn=quantized(layer.ffn)) for layer in params.layers]
    with pytest.raises(ValueError, match="the experts are quantized; allowed: float32 or bfloat16"):
        ExpertStore(params._replace(layers=tuple(layers)), np.eye(3, 8, dtype=bool))


def quantized(ffn):
    assert isinstance(ffn, Experts)
    return ffn._replace(gate=quantize(np.asarray(ffn.gate), 8))
