"""The steps against the model's functions: the same numbers from named arrays of static shapes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.backend import steps
from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.session import FORBIDDEN_LOGIT
from llada_jax.backend.steps import (
    attend_by_canvas,
    body_step,
    head_chunks,
    head_step,
    head_steps,
    logits_step,
)
from llada_jax.config import ModelConfig
from llada_jax.model.forward import forward_rows
from llada_jax.model.head import ScoreRules, logits_of, score_rows
from llada_jax.model.layers import (
    HIDDEN_SCORE,
    CachedLayer,
    attend,
    rotation,
)
from llada_jax.rows import make_rows
from llada_jax.types import KVCache
from tests.backend.models import (
    GQA,
    VARIANTS,
    Arrays,
    expected_outputs,
    float_weights,
    random_inputs,
    random_params,
    relative_error,
)

ROWS = 8
FEW, HEAD_DIM = 3, 8


def a_forward(config: ModelConfig, cached: int):
    """Rows in the middle of a partly cached canvas, and the model's outputs for them."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, config.vocab_size, (1, ROWS)).astype(np.int32)
    positions = np.arange(5, 5 + ROWS, dtype=np.int32)[None]
    live = np.ones((1, ROWS), bool)
    visible = rng.random((1, cached)) < 0.7
    rows = make_rows(jnp.asarray(tokens), jnp.asarray(positions), jnp.asarray(live),
                     jnp.asarray(visible))  # fmt: skip
    shape = (2, config.n_layers, 1, config.n_kv_heads, cached, config.head_dim)
    cache = KVCache(*map(tuple, jnp.asarray(rng.standard_normal(shape), jnp.float32)))
    out = jax.jit(forward_rows, static_argnums=1)(random_params(config), config, rows, cache)
    return rows, cache, out


def inputs_of(config: ModelConfig, rows, cache: KVCache, layers: range) -> Arrays:
    """The inputs that a host passes for these rows, except `hidden`."""
    angles = rotation(config, rows.positions)
    inputs = {
        "cos": angles.cos[0, :, 0],
        "sin": angles.sin[0, :, 0],
        "bias": np.where(np.concatenate([rows.sees_cache, rows.sees_rows], -1)[0], 0, HIDDEN_SCORE),
    }
    if cache.length:
        for layer in layers:
            inputs[f"keys_{layer}"] = cache.keys[layer][0]
            inputs[f"values_{layer}"] = cache.values[layer][0]
    return {name: np.asarray(array) for name, array in inputs.items()}


@pytest.mark.parametrize(
    ("variant", "cuts", "cached"),
    [
        ("mha", (0, 2), 0),
        ("one_kv_head", (0, 1), 32),
        ("all", (0, 1, 2), 0),
        ("all", (0, 1, 3), 32),
    ],
)
def test_consecutive_shards_match_the_models_forward(
    variant: str, cuts: tuple[int, ...], cached: int
) -> None:
    config = VARIANTS[variant].replace(n_layers=cuts[-1])
    params = random_params(config)
    rows, cache, expected = a_forward(config, cached)
    hidden = np.asarray(params.embedding[rows.tokens[0]])
    for start, stop in itertools.pairwise(cuts):
        layers = range(start, stop)
        step = body_step(config, layers, Bucket(ROWS, cached))
        inputs = {"hidden": hidden, **inputs_of(config, rows, cache, layers)}
        assert {name: array.shape for name, array in inputs.items()} == step.inputs
        out = expected_outputs(step, float_weights(step, params), inputs)
        for layer in layers:
            for kind in ("keys", "values"):
                fresh = np.asarray(getattr(expected, kind))[layer, 0].swapaxes(0, 1)
                assert relative_error(out[f"new_{kind}_{layer}"], fresh) < 1e-5
        hidden = out["hidden"]
    assert relative_error(hidden, np.asarray(expected.hidden)[0]) < 1e-5


@pytest.mark.parametrize(
    ("chunk", "forbidden"), [(8192, ()), (8192, (95,)), (64, (3, 40, 95)), (25, (0, 24, 25))]
)
def test_the_greedy_head_matches_the_model(
    chunk: int, forbidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "HEAD_CHUNK", chunk)
    params = random_params(GQA)
    step = head_step(GQA, 16)
    assert len(step.weights) == -(-96 // chunk)
    hidden = 6 * random_inputs(step)["hidden"]
    # Rows with forbidden tokens as the argmax.
    for row, token in enumerate(forbidden):
        hidden[row] = 20 * np.asarray(params.head)[token]
    penalty = np.zeros(GQA.vocab_size, np.float32)
    penalty[list(forbidden)] = FORBIDDEN_LOGIT
    found = expected_outputs(
        step, float_weights(step, params), {"hidden": hidden, "penalty": penalty}
    )
    rules = ScoreRules(forbidden=forbidden, spread=False)
    assert rules.plain
    expected = score_rows(params, jnp.asarray(hidden)[None], None, rules)
    np.testing.assert_array_equal(found["token"], expected.token[0])
    np.testing.assert_allclose(found["confidence"], expected.confidence[0], rtol=1e-5)
    assert not np.isin(found["token"], forbidden).any()
    free = np.asarray(logits_of(params, jnp.asarray(hidden)[None]))[0].argmax(axis=-1)
    assert free[: len(forbidden)].tolist() == list(forbidden), "the case must forbid something"


@pytest.mark.parametrize("chunk", [8192, 32, 7])
def test_the_lowest_id_wins_ties_within_and_between_chunks(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "HEAD_CHUNK", chunk)
    rows = np.random.default_rng(0).standard_normal((12, GQA.width)).astype(np.float32)
    params = random_params(GQA)._replace(head=jnp.asarray(np.tile(rows, (8, 1))))
    step = head_step(GQA, 12)
    inputs = {"hidden": rows, "penalty": np.zeros(GQA.vocab_size, np.float32)}
    found = expected_outputs(step, float_weights(step, params), inputs)
    np.testing.assert_array_equal(found["token"], np.arange(12))


def test_a_head_with_confidence_1_is_finite() -> None:
    params = random_params(GQA)
    step = head_step(GQA, 4)
    inputs = {"hidden": np.zeros((4, GQA.width), np.float32)}
    inputs["hidden"][1:] = 1e4 * np.asarray(params.head)[1:4]
    inputs["penalty"] = np.zeros(GQA.vocab_size, np.float32)
    found = expected_outputs(step, float_weights(step, params), inputs)
    np.testing.assert_allclose(found["confidence"], [1 / GQA.vocab_size, 1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize(("chunk", "tied"), [(8192, False), (36, False), (32, True)])
def test_chunks_of_logits_match_the_model(
    chunk: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "HEAD_CHUNK", chunk)
    config = GQA.replace(tied_embeddings=tied)
    params = random_params(config)
    hidden = random_inputs(logits_step(config, 8, 0))["hidden"]
    parts = []
    for index, (start, stop) in enumerate(head_chunks(config)):
        step = logits_step(config, 8, index)
        part = expected_outputs(step, float_weights(step, params), {"hidden": hidden})["logits"]
        assert part.shape == (8, stop - start)
        parts.append(part)
    expected = np.asarray(logits_of(params, jnp.asarray(hidden)[None]))[0]
    assert relative_error(np.concatenate(parts, axis=1), expected) < 1e-6


def test_all_of_the_vocabulary_is_in_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in (1, 7, 32, 95, 96, 97):
        monkeypatch.setattr(steps, "HEAD_CHUNK", chunk)
        ids = [i for start, stop in head_chunks(GQA) for i in range(start, stop)]
        assert ids == list(range(96))


@pytest.mark.parametrize("rows", [2, 16])
def test_no_array_of_a_lowered_head_has_all_logits(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def largest() -> int:
        operations = [op for step in head_steps(GQA, [rows]) for op in lower(step).operations]
        tensors = [t for op in operations for t in (*op.inputs, *op.outputs)]
        return max(t.size for t in tensors if t.shape and t.shape[0] == rows)

    assert largest() == rows * GQA.vocab_size, "one chunk has them all"
    monkeypatch.setattr(steps, "HEAD_CHUNK", 32)
    assert largest() <= rows * max(32, GQA.width) < rows * GQA.vocab_size


def test_the_vocabulary_of_the_8b_model_is_streamed() -> None:
    """Only shapes are traced: 126,464 logits per row never exist at the same time."""
    big = GQA.replace(vocab_size=126_464, mask_id=None, eos_id=None, eot_id=None, pad_id=None)
    tensors = [
        tensor
        for operation in lower(head_step(big, 32), "int8").operations
        for tensor in (*operation.inputs, *operation.outputs)
        if tensor.shape[:1] == (32,)
    ]
    assert max(tensor.size for tensor in tensors) == 32 * steps.HEAD_CHUNK


def test_a_head_has_a_step_for_every_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "HEAD_CHUNK", 40)
    names = [step.name for step in head_steps(GQA, [1, 8])]
    chunks = [f"rows{rows}_chunk{chunk}" for rows in (1, 8) for chunk in range(3)]
    assert names == ["rows1", "rows8", *chunks]
    tied = head_step(GQA.replace(tied_embeddings=True), 8)
    assert list(tied.weights) == ["embedding[0:40]", "embedding[40:80]", "embedding[80:96]"]


@jax.jit
def attend_in_turn(query, keys, values, hidden, caches):
    """The model's attention, canvas by canvas."""
    parts = []
    for canvas, cache in enumerate(caches):
        own = slice(canvas * FEW, (canvas + 1) * FEW)
        visible = ~hidden[:, own, :-FEW], ~hidden[:, own, -FEW:]
        cache = CachedLayer(cache.keys[None], cache.values[None], 0)
        parts.append(attend(query[:, own], (keys[:, own], values[:, own]), visible, cache))
    return jnp.concatenate(parts, axis=1)


@pytest.mark.parametrize("canvases", [1, 2])
@pytest.mark.parametrize("cached", [0, 5])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
def test_attention_matches_the_model(canvases, cached, heads, kv_heads):
    rng = np.random.default_rng(0)

    def noise(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    rows = canvases * FEW
    query = noise(1, rows, heads, HEAD_DIM)
    keys, values = noise(1, rows, kv_heads, HEAD_DIM), noise(1, rows, kv_heads, HEAD_DIM)
    hidden = rng.random((1, rows, cached + FEW)) < 0.3
    hidden[..., -1] = False  # a row that sees nothing gives any value
    bias = jnp.where(hidden, jnp.float32(HIDDEN_SCORE), jnp.float32(0))
    caches = [
        CachedLayer(noise(kv_heads, cached, HEAD_DIM), noise(kv_heads, cached, HEAD_DIM), 0)
        for _ in range(canvases)
    ]
    np.testing.assert_allclose(
        jax.jit(attend_by_canvas)(query, (keys, values), bias, caches),
        attend_in_turn(query, keys, values, hidden, caches),
        rtol=1e-5,
        atol=1e-6,
    )
