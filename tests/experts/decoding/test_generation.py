"""Decoding with experts in view: routing as recorded, and generation within a budget."""

import functools
from dataclasses import replace
from tempfile import TemporaryDirectory

import jax
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.backend.weights import InMemory
from llada_jax.experts.decoding.expert_file import ExpertFile, write_experts
from llada_jax.experts.decoding.generation import (
    generate_within_budget,
    record_routing,
    write_experts_of,
)
from llada_jax.experts.policy_run import POLICIES, replay
from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.schedule import ExpertCosts
from tests.checkpoint.folders import GOLDENS
from tests.drawn_params import cast_params, drawn_params

COSTS = ExpertCosts(
    cpu_expert=3.0, cpu_row=1.0, cpu_first=0.5, accelerator=1.0, transfer=4.0, dense=2.0
)
SAMPLER = lj.SamplerConfig.from_flat(
    gen_length=16, block_length=8, steps=16, cache="blockwise", mask_id=319
)
PROMPTS = [[5, 9, 17, 33], [7, 7, 8]]


@functools.cache
def model(family):
    return lj.load(GOLDENS / family, "float32")


@functools.cache
def recorded(family):
    return record_routing(model(family), PROMPTS, SAMPLER)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada-moe", "llada2-moe"])
def test_recording_changes_nothing(family):
    result, trace = recorded(family)
    plain = lj.generate(model(family), PROMPTS, SAMPLER, loop="host")
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    moe = model(family).config.moe
    assert trace.n_steps == len(result.trace.rows)
    assert trace.n_experts == moe.n_experts
    assert trace.n_layers == model(family).config.n_layers - moe.first_layer
    block = model(family).config.block_length or 1
    assert trace.committed.sum() == sum(16 + -(len(p) + 16) % block for p in PROMPTS)
    live = result.trace.live_rows.sum(axis=1)
    per_layer = trace.loads.sum(axis=-1)
    np.testing.assert_array_equal(
        per_layer, np.repeat(live[:, None], trace.n_layers, 1) * moe.experts_per_token
    )


@pytest.mark.slow
def test_rows_change_after_a_commit_or_in_a_new_block():
    result, trace = recorded("llada-moe")
    commits = np.zeros((trace.n_steps, 2), int)
    np.add.at(commits, (result.trace.event_step, result.trace.event_row), 1)
    for step in range(1, trace.n_steps):
        if not trace.begins_block[step] and trace.experts.shape[2] == 16:
            live = trace.experts[step, 0, :, 0] >= 0
            assert (trace.changed[step] & live).sum() <= commits[step - 1].sum()
    assert trace.begins_block.sum() == 2


@pytest.mark.slow
def test_a_recorded_trace_is_saved_and_simulated(tmp_path):
    _, trace = recorded("llada2-moe")
    trace.save(tmp_path / "routing.npz")
    loaded = RoutingTrace.load(tmp_path / "routing.npz")
    outcome = replay(loaded, POLICIES["hybrimoe"], COSTS, 6, profile_steps=4)
    assert outcome.committed.sum() == trace.committed[4:].sum()
    assert 0 < outcome.hit_rate <= 1


@functools.cache
def experts_of(family, dtype="float32"):
    with TemporaryDirectory() as folder:
        write_experts_of(GOLDENS / family, f"{folder}/experts", dtype)
        return ExpertFile(f"{folder}/experts")  # which stays open


def budgeted(family, policy, slots, dtype="float32", **options):
    dense = lj.load(GOLDENS / family, dtype, experts=False)
    file = experts_of(family, dtype)
    return generate_within_budget(
        dense, file, PROMPTS, POLICIES[policy], COSTS, slots, config=SAMPLER, **options
    )


@pytest.mark.parametrize(
    "name",  # tide schedules as ktransformers does
    [pytest.param("ktransformers", marks=pytest.mark.slow), "adapmoe", "tide", "hybrimoe"],
)
def test_a_budget_does_not_change_results(name):
    result, profile = recorded("llada-moe")
    run = budgeted("llada-moe", name, 3, profile=profile.loads)
    np.testing.assert_array_equal(run.result.tokens, result.tokens)
    np.testing.assert_array_equal(run.loads, profile.loads)
    assert run.slots.read > 0
    assert 0 < run.policy_run.hits < run.policy_run.uses
    assert [run.slots.resident(n) for n in range(3)] == [
        set(np.flatnonzero(each).tolist()) for each in run.policy_run.resident
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_tokens_do_not_depend_on_the_budget(dtype, tmp_path):
    """A shared expert and dense layers stay in memory."""
    config = model("llada2-moe").config
    moe = replace(config.moe, expert_width=32, shared_width=32)
    config = config.replace(ffn_width=64, moe=moe)
    floats = drawn_params(config)
    cast = jax.tree.map(  # in bfloat16, rounding would decide about tokens
        lambda leaf: leaf.astype("float32") if leaf.dtype == "bfloat16" else leaf,
        cast_params(config, floats, dtype),
    )
    mixture = lj.Model(config, cast, None)
    plain = lj.generate(mixture, PROMPTS, SAMPLER, loop="host")
    write_experts(tmp_path / "experts", config, InMemory(floats), dtype)
    file = ExpertFile(tmp_path / "experts")
    for slots in (1, 16):
        run = generate_within_budget(
            mixture, file, PROMPTS, POLICIES["hybrimoe"], COSTS, slots, config=SAMPLER
        )
        np.testing.assert_array_equal(run.result.tokens, plain.tokens)
    assert run.slots.read == 0


@pytest.mark.parametrize("name", ["lru", "hybrimoe"])
def test_non_finite_router_scores_end_the_run(name):
    broken = model("llada-moe")
    layers = [
        layer._replace(ffn=layer.ffn._replace(router=layer.ffn.router * np.nan))
        for layer in broken.params.layers
    ]
    broken = broken.replace(params=broken.params._replace(layers=tuple(layers)))
    with pytest.raises(Exception, match=r"layer 0 has .* router scores that are NaN or infinite"):
        generate_within_budget(
            broken, experts_of("llada-moe"), PROMPTS, POLICIES[name], COSTS, 3, config=SAMPLER
        )


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="llada has no routed experts to look at; allowed: a mixt"):
        record_routing(lj.load("tiny"), [[1]])
    file, mixture = experts_of("llada-moe"), model("llada-moe")
    wanted = {
        "the profile has 2 layers of 8 experts; allowed: 3 layers of 8": dict(
            profile=np.zeros((1, 2, 8), int)
        ),
        "slots is 9; allowed: 1 to 8 experts of a layer": dict(slots=9),
        r"has experts of \(3, 8, .*\); allowed: \(2, 16": dict(model=model("llada2-moe")),
        "has the experts of another model; allowed: those of": dict(
            file=experts_of("llada-moe"), model=mixture.replace(fingerprint="f" * 32)
        ),
    }
    for message, changes in wanted.items():
        asked = dict(model=mixture, file=file, policy=POLICIES["mrs"], slots=2) | changes
        with pytest.raises(ValueError, match=message):
            generate_within_budget(prompts=PROMPTS, costs=COSTS, config=SAMPLER, **asked)
    dense = lj.load(GOLDENS / "llada-moe", "float32", experts=False)
    with pytest.raises(
        ValueError, match="the experts are not in memory; allowed: a model that has them"
    ):
        lj.forward(dense, [[1, 2]])
