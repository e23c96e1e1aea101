"""Canvases that share a forward: grouping, slots, and the same tokens as decoded singly."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax.backend import session
from llada_jax.backend.canvases import EMPTY_ROWS, pack_canvases, pack_sizes
from llada_jax.backend.program import CANVASES, ROW_BUCKETS, bucket_size
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.steps import body_step, resized
from tests.backend.example_backend import ExampleBackend
from tests.backend.models import GQA, float_weights, quantized, random_inputs, random_params

MODEL = lj.Model(GQA.replace(n_layers=2), random_params(GQA.replace(n_layers=2)), None)
PROMPTS = [[5, 20, 31, 7, 9, 40, 41, 2, 60], [8, 3, 77], [12, 50, 51, 6, 33, 1], [44, 45]]
SHORT = lj.SamplerConfig.from_flat(gen_length=16, block_length=8, threshold=0.05)
ON_XLA = ExampleBackend()


def sizes_for(rows: int) -> tuple[int, Sequence[int]]:
    bucket = bucket_size(rows, ROW_BUCKETS)
    return bucket, pack_sizes(CANVASES, bucket, ROW_BUCKETS[-1])


@given(counts=st.lists(st.integers(0, 150), max_size=12))
def test_each_canvas_with_rows_runs_once_in_its_own_bucket_of_rows(counts: list[int]) -> None:
    found = list(pack_canvases(counts, sizes_for))
    ran = [canvas for pack in found for canvas in pack.canvases]
    assert sorted(ran) == [canvas for canvas, count in enumerate(counts) if count]
    for canvases, places, rows in found:
        assert all(sizes_for(counts[canvas])[0] == rows for canvas in canvases)
        assert len(canvases) <= places
        assert places == 1 or places * rows <= ROW_BUCKETS[-1]
        assert (places - len(canvases)) * rows <= EMPTY_ROWS


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([32, 32, 32, 32], [([0, 1, 2, 3], 4)]),
        ([32, 8, 32, 5], [([0, 2], 2), ([1, 3], 2)]),
        ([8, 0, 7, 8], [([0, 2, 3], 4)]),
        ([32, 32, 32], [([0, 1], 2), ([2], 1)]),
        ([96, 96], [([0], 1), ([1], 1)]),
        ([0, 0], []),
    ],
)
def test_slots_stay_empty_only_if_that_is_cheaper(
    counts: list[int], expected: list[tuple[list[int], int]]
) -> None:
    assert [(pack.canvases, pack.slots) for pack in pack_canvases(counts, sizes_for)] == expected


@pytest.mark.parametrize("cache", [0, 32])
def test_a_canvas_gets_the_same_results_in_every_slot(cache: int) -> None:
    """Other slots contain other numbers, in one compiled step of all layers."""
    alone, packed = Bucket(4, cache), Bucket(4, cache, 3)
    step = body_step(GQA, range(GQA.n_layers), alone)
    weights = float_weights(step, random_params(GQA))
    canvases = [random_inputs(step, seed) for seed in range(3)]
    inputs = resized(canvases[0], packed)
    for place, canvas in enumerate(canvases):
        for name, array in canvas.items():
            if array.shape[0] == 4:
                inputs[name][4 * place :][:4] = array
            else:
                inputs[f"canvas{place}_{name}" if place else name] = array
    wide = body_step(GQA, range(GQA.n_layers), packed)
    assert {name: array.shape for name, array in inputs.items()} == dict(wide.inputs)
    found = jax.jit(wide.function)(weights, inputs)
    run = jax.jit(step.function)
    for place, canvas in enumerate(canvases):
        for name, expected in run(weights, canvas).items():
            array = np.asarray(found[name])
            mine = np.split(array, 3, axis=0 if name == "hidden" else 1)[place]
            np.testing.assert_allclose(mine, expected, rtol=0, atol=2e-5)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the number of canvases of each forward from now on."""
    found: list[int] = []
    original = session.Session._run

    def run(self: Any, pack: Any, asked: Any) -> Any:
        found.append(len(pack.canvases))
        return original(self, pack, asked)

    monkeypatch.setattr(session.Session, "_run", run)
    return found


def assert_tokens_of_singles(
    model: lj.Model, backend: Any, monkeypatch: pytest.MonkeyPatch, cache: Any, batch: int
) -> None:
    prompts, config = PROMPTS[:batch], SHORT.replace(cache=cache)
    ran = counted(monkeypatch)
    together = lj.generate(model, prompts, config, backend=backend)
    assert max(ran) > 1 and len(ran) < together.nfe.sum(), "forwards must be shared"
    assert len(set(together.nfe.tolist())) > 1, "a canvas must end before another one"
    for row, prompt in enumerate(prompts):
        alone = lj.generate(model, [prompt], config, backend=backend)
        np.testing.assert_array_equal(together.generated[row], alone.generated[0])
        assert together.nfe[row] == alone.nfe[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "cache", "batch"),
    [("float32", "blockwise", 3), ("int8", "dual", 4)],
)
def test_litert_gives_a_batch_the_tokens_of_singles(
    dtype: str, cache: Any, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
    pytest.importorskip("litert_converter", reason="needs the extra npu")
    params = MODEL.params if dtype == "float32" else quantized(MODEL.params, 8)
    model = lj.Model(MODEL.config, params, None)
    assert_tokens_of_singles(model, "litert", monkeypatch, cache, batch)


@pytest.mark.parametrize(
    ("cache", "batch"), [("dual", 2), pytest.param("blockwise", 4, marks=pytest.mark.slow)]
)
def test_steps_on_xla_give_a_batch_the_tokens_of_singles(
    cache: Any, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_tokens_of_singles(MODEL, ON_XLA, monkeypatch, cache, batch)


def test_a_streams_next_canvas_does_not_see_the_previous_one() -> None:
    config, prompts = SHORT.replace(cache="dual"), PROMPTS[:2]
    together = lj.generate(MODEL, prompts, config, backend=ON_XLA).generated
    several = [*prompts, *prompts[::-1]]
    stream = lj.generate_stream(MODEL, several, config, backend=ON_XLA, places=2)
    for found, expected in zip(stream, [*together, *together[::-1]], strict=True):
        np.testing.assert_array_equal(found.generated[0], expected)
