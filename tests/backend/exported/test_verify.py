"""The comparison of an export's files with JAX: small errors pass, and others do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llada_jax.backend.exported import verify
from llada_jax.backend.exported.verify import StoredWeights
from llada_jax.backend.litert import tflite
from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.steps import body_step, head_steps
from llada_jax.backend.weights import InMemory
from llada_jax.config import ModelConfig, Quant
from tests.backend.models import (
    GQA,
    VARIANTS,
    expected_outputs,
    float_weights,
    random_params,
    stored_weights,
)

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

BUCKETS = [Bucket(4, 32), Bucket(8, 32), Bucket(8, 64), Bucket(4, 32, canvases=2)]


def stored(config: ModelConfig, quant: Quant, seed: int = 0) -> StoredWeights:
    return StoredWeights(InMemory(random_params(config, seed)), quant)


def write(path: Path, steps: Any, quant: Quant, config: ModelConfig) -> Path:
    lowered = [lower(step, quant) for step in steps]
    weights = InMemory(random_params(config))
    tflite.write(path, lowered, weights)
    return path


def test_the_reference_is_the_step_on_the_whole() -> None:
    config, bucket = VARIANTS["all"], BUCKETS[0]
    step = body_step(config, range(3), bucket)
    inputs = verify.example(config, range(3), bucket)
    assert {name: array.shape for name, array in inputs.items()} == step.inputs
    expected = expected_outputs(step, float_weights(step, random_params(config)), inputs)
    found = verify.reference(config, range(3), bucket, inputs, stored(config, "float32"))
    assert found.keys() == expected.keys()
    assert all(verify.relative_error(found[name], expected[name]) < 1e-6 for name in found)


@pytest.mark.parametrize("quant", ["float32", "int8", "int4", "int4_block32"])
def test_stored_weights_are_what_the_file_stands_for(quant: Quant) -> None:
    step = body_step(GQA, range(3), BUCKETS[0])
    specs = lower(step, quant).weights
    ours = stored(GQA, quant)
    for name, expected in stored_weights(step, random_params(GQA), specs).items():
        np.testing.assert_allclose(ours.array(name, expected.shape), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("quant", ["float32", "int8"])
def test_files_that_are_right_pass(quant: Quant, tmp_path: Path) -> None:
    steps = [body_step(GQA, range(3), bucket) for bucket in BUCKETS]
    path = write(tmp_path / "x.tflite", steps, quant, GQA)
    weights = stored(GQA, quant)
    limit = 1e-5 if quant == "float32" else 0.03
    checks = list(verify.check_body(path, GQA, range(3), BUCKETS, weights))
    assert {check["signature"] for check in checks} == {bucket.name for bucket in BUCKETS}
    path = write(path, head_steps(GQA, [4, 8]), quant, GQA)
    checks += verify.check_head(path, GQA, [4, 8], weights)
    assert len(checks) == 8
    assert all(0 <= check["error"] < limit for check in checks)


def test_a_file_may_have_forwards_with_and_without_a_cache(tmp_path: Path) -> None:
    buckets = [Bucket(4, 0), Bucket(4, 32)]
    steps = [body_step(GQA, range(3), bucket) for bucket in buckets]
    path = write(tmp_path / "x.tflite", steps, "float32", GQA)
    weights = stored(GQA, "float32")
    checks = list(verify.check_body(path, GQA, range(3), buckets, weights))
    assert [check["error"] < 1e-5 for check in checks] == [True, True]


@pytest.mark.parametrize("quant", ["float32", "int8"])
def test_files_of_other_weights_do_not(quant: Quant, tmp_path: Path) -> None:
    path = write(tmp_path / "x.tflite", [body_step(GQA, range(3), BUCKETS[0])], quant, GQA)
    other = stored(GQA, quant, seed=1)
    message = r"x\.tflite, signature rows4_cache32, differs from JAX by [0-9.]+ \(relative, root m"
    with pytest.raises(RuntimeError, match=message):
        list(verify.check_body(path, GQA, range(3), BUCKETS[:1], other))
    path = write(path, head_steps(GQA, [4]), quant, GQA)
    with pytest.raises(RuntimeError, match=r"x\.tflite, signature rows4.* differs from JAX by"):
        list(verify.check_head(path, GQA, [4], other))


def test_not_a_number_does_not_pass() -> None:
    with pytest.raises(RuntimeError, match=r"the file differs from JAX by nan"):
        verify.require_close(float("nan"), "int8", "the file")
    verify.require_close(0.1, "int8", "the file")
    with pytest.raises(RuntimeError, match=r"by 0\.1 .*; allowed: 0\.001"):
        verify.require_close(0.1, "float32", "the file")
