"""LiteRT computes the same as the steps, with the numbers that the file stores."""

import gc
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.backend.litert import runtime
from llada_jax.backend.litert.runtime import LiteRT, tflite
from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Bucket, Executable, Step
from llada_jax.backend.session import FORBIDDEN_LOGIT
from llada_jax.backend.steps import body_step, head_step, head_steps
from llada_jax.backend.weights import InMemory
from llada_jax.config import Quant
from llada_jax.model.quantize import linear
from tests.backend.models import (
    GQA,
    MOE,
    VARIANTS,
    expected_outputs,
    float_weights,
    quantized,
    random_inputs,
    random_params,
    relative_error,
    stored_weights,
)

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

FLOAT_ERROR = 1e-5
# In addition to the stored weights' rounding, LiteRT rounds activations of products to 8 bits.
# Measured root mean square error of the outputs, relative to the outputs: 0.006 to 0.009 for the
# body of `WIDE`; rounding the weights costs 0.007 to 0.009 (int8) and 0.10 to 0.15 (int4).
ACTIVATION_ERROR = 0.013
CONFIDENCE_ERROR = 0.02
WIDE = VARIANTS["all"].replace(
    width=128, ffn_width=256, n_layers=2, head_dim=32, rotary_dims=16, tied_embeddings=False
)
BUCKETS = (Bucket(1, 0), Bucket(1, 32), Bucket(4, 32), Bucket(8, 64))


def spread_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize(
    "variant", ["all", *(pytest.param(v, marks=pytest.mark.slow) for v in ("mha", "one_kv_head"))]
)
def test_float32_is_the_steps_own_function_in_every_bucket_of_a_file(variant: str) -> None:
    config = VARIANTS[variant].replace(n_layers=2 if variant == "all" else 1)
    params = random_params(config)
    steps = [body_step(config, range(config.n_layers), bucket) for bucket in BUCKETS]
    executables = LiteRT().compile(steps, InMemory(params))
    assert executables.keys() == {step.name for step in steps}
    for seed, step in enumerate(steps):
        inputs = random_inputs(step, seed)
        found = executables[step.name].run(inputs)
        expected = expected_outputs(step, float_weights(step, params), inputs)
        assert found.keys() == expected.keys()
        for name in expected:
            assert found[name].dtype == np.float32
            assert found[name].shape == expected[name].shape
            assert relative_error(found[name], expected[name]) < FLOAT_ERROR


@pytest.mark.parametrize("chunk", [8192, 40])
def test_the_head_in_float32(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llada_jax.backend.steps.HEAD_CHUNK", chunk)
    params = random_params(GQA)
    steps = head_steps(GQA, [1, 8])
    executables = LiteRT().compile(steps, InMemory(params))
    for step in steps:
        inputs = random_inputs(step)
        inputs["hidden"] *= 5
        if "penalty" in inputs:
            inputs["penalty"] = np.zeros(GQA.vocab_size, np.float32)
            inputs["penalty"][:5] = FORBIDDEN_LOGIT
        found = executables[step.name].run(inputs)
        expected = expected_outputs(step, float_weights(step, params), inputs)
        assert found.keys() == expected.keys()
        for name in expected:
            assert relative_error(found[name], expected[name]) < FLOAT_ERROR
        if "token" in found:
            np.testing.assert_array_equal(found["token"], expected["token"])


def test_the_lowest_id_wins_ties() -> None:
    rows = np.random.default_rng(0).standard_normal((12, GQA.width)).astype(np.float32)
    params = random_params(GQA)._replace(head=jnp.asarray(np.tile(rows, (8, 1))))
    step = head_step(GQA, 12)
    inputs = {"hidden": rows, "penalty": np.zeros(GQA.vocab_size, np.float32)}
    found = LiteRT().compile([step], InMemory(params))[step.name].run(inputs)
    np.testing.assert_array_equal(found["token"], np.arange(12))


def one_product(quant: Quant) -> tuple[Step, InMemory]:
    """A product with one matrix of a model, for 128 rows."""
    name = "layers.0.ffn.gate"

    def function(weights, inputs):
        return {"out": linear(inputs["x"], weights[name])}

    params = random_params(WIDE)
    if quant == "int4_block32":
        params = quantized(params, 4)
    return Step("product", function, {name: (256, 128)}, {"x": (128, 128)}), InMemory(params)


@pytest.mark.parametrize("quant", ["float32", "int8", "int4", "int4_block32", "int4_block128"])
def test_stored_numbers_restore_the_weights(quant: Quant) -> None:
    """Rows of the unit matrix are exact in 8 bits, so the product is the weights themselves.

    The CPU's kernels keep the scales of blocks in bfloat16.
    """
    step, weights = one_product(quant)
    run = LiteRT(quant).compile([step], weights)[step.name].run
    found = run({"x": np.eye(128, dtype=np.float32)})["out"].T
    params = random_params(WIDE) if quant != "int4_block32" else quantized(random_params(WIDE), 4)
    (expected,) = stored_weights(step, params, lower(step, quant).weights).values()
    limit = {"float32": 1e-6, "int8": 1e-6, "int4": 1e-6}.get(quant, 2**-8)
    assert relative_error(found, expected) < limit


@pytest.mark.parametrize("quant", ["int8", "int4", "int4_block32", "int4_block128"])
def test_integer_files_match_the_step_with_rounded_weights(quant: Quant) -> None:
    params = random_params(WIDE)
    steps = [body_step(WIDE, range(2), bucket) for bucket in BUCKETS[1:]]
    executables = LiteRT(quant).compile(steps, InMemory(params))
    for step in steps:
        inputs = random_inputs(step)
        weights = stored_weights(step, params, lower(step, quant).weights)
        found = executables[step.name].run(inputs)
        for name, expected in expected_outputs(step, weights, inputs).items():
            assert spread_error(found[name], expected) < ACTIVATION_ERROR


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_the_head_of_an_integer_model_picks_the_same_tokens(quant: Quant) -> None:
    params = random_params(WIDE)
    step = head_step(WIDE, 16)
    inputs = {"hidden": 5 * random_inputs(step)["hidden"],
              "penalty": np.zeros(WIDE.vocab_size, np.float32)}  # fmt: skip
    found = LiteRT(quant).compile([step], InMemory(params))[step.name].run(inputs)
    weights = stored_weights(step, params, lower(step, quant).weights)
    expected = expected_outputs(step, weights, inputs)
    np.testing.assert_array_equal(found["token"], expected["token"])
    assert relative_error(found["confidence"], expected["confidence"]) < CONFIDENCE_ERROR


def test_allocated_inputs_are_read_in_place() -> None:
    step = body_step(GQA, range(3), Bucket(4, 32))
    executable = LiteRT().compile([step], InMemory(random_params(GQA)))[step.name]
    plain = random_inputs(step)
    expected = {name: array.copy() for name, array in executable.run(plain).items()}
    inputs = {name: executable.allocate(name) for name in step.inputs}
    for name, array in inputs.items():
        assert array.shape == step.inputs[name] and array.dtype == np.float32
        assert not array.any()
        array[...] = plain[name]
    for name, array in executable.run(inputs).items():
        np.testing.assert_array_equal(array, expected[name])
    inputs["hidden"] *= 2
    assert (executable.run(inputs)["hidden"] != expected["hidden"]).any()


def test_a_view_of_an_allocated_input_is_copied() -> None:
    step, weights = one_product("float32")
    executable = LiteRT().compile([step], weights)[step.name]
    x = executable.allocate("x")
    x[...] = np.random.default_rng(0).standard_normal(x.shape)
    expected = executable.run({"x": x.T.copy()})["out"].copy()
    np.testing.assert_array_equal(executable.run({"x": x.T})["out"], expected)


def test_one_steps_memory_serves_another_step() -> None:
    """As in a session: caches stay in place while the number of rows changes."""
    config = GQA
    params = random_params(config)
    small, large = (body_step(config, range(3), Bucket(rows, 32)) for rows in (4, 8))
    executables = LiteRT().compile([small, large], InMemory(params))
    caches = {n: executables[small.name].allocate(n) for n in small.inputs if "s_" in n}
    assert len(caches) == 2 * config.n_layers
    plain = random_inputs(large)
    for name, array in caches.items():
        array[...] = plain[name]
    for step in (small, large):
        inputs = random_inputs(step) | plain if step is large else random_inputs(step)
        inputs |= {name: plain[name] for name in caches}
        expected = {n: a.copy() for n, a in executables[step.name].run(inputs).items()}
        found = executables[step.name].run(inputs | caches)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


def test_outputs_become_inputs_of_the_next_shard() -> None:
    params = random_params(GQA)
    first, second = (body_step(GQA, layers, Bucket(8, 0)) for layers in (range(2), range(2, 3)))
    whole = body_step(GQA, range(3), Bucket(8, 0))
    inputs = random_inputs(whole)
    executables = [
        LiteRT().compile([step], InMemory(params))[step.name] for step in (first, second)
    ]
    middle = executables[0].run(inputs)["hidden"]
    found = executables[1].run({**inputs, "hidden": middle})["hidden"]
    expected = expected_outputs(whole, float_weights(whole, params), inputs)["hidden"]
    assert relative_error(found, expected) < FLOAT_ERROR


def test_any_array_may_be_an_input() -> None:
    step = body_step(GQA, range(1), Bucket(4, 0))
    run = LiteRT().compile([step], InMemory(random_params(GQA)))[step.name].run
    inputs = random_inputs(step)
    expected = {name: array.copy() for name, array in run(inputs).items()}
    odd = {name: np.asfortranarray(array.astype(np.float64)) for name, array in inputs.items()}
    for name, array in run(odd).items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("quant", ["float32", "int8"])
def test_the_number_of_threads_changes_nothing(
    quant: Quant, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = body_step(WIDE, range(2), Bucket(8, 32))
    inputs = random_inputs(step)

    def with_threads(count: int) -> Executable:
        monkeypatch.setattr(runtime, "available_cores", lambda: count)
        return LiteRT(quant).compile([step], InMemory(random_params(WIDE)))[step.name]

    one, two = map(with_threads, (1, 2))
    expected = two.run(inputs)
    for name, array in one.run(inputs).items():
        np.testing.assert_array_equal(array, expected[name])


def test_unsupported_input_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tflite, "convert", lambda steps: pytest.fail("the converter was started"))
    steps = [body_step(config, range(3), Bucket(4, 32)) for config in (GQA, MOE)]
    with pytest.raises(ValueError, match=r"litert cannot take sort at layer_1 of rows4_cache32 "):
        LiteRT().compile(steps, InMemory(random_params(MOE)))


def test_packed_weights_that_are_cut_short_are_packed_again(tmp_path: Path) -> None:
    """As after an interruption of the first opening."""
    step = lower(body_step(WIDE, range(1), Bucket(4, 0)), "int8")
    path, packed = tmp_path / "x.tflite", tmp_path / "packed"
    tflite.write(path, [step], InMemory(random_params(WIDE)))
    inputs = random_inputs(body_step(WIDE, range(1), Bucket(4, 0)))
    expected = LiteRT("int8").open(path)[step.name].run(inputs)["hidden"].copy()
    for share in (None, 0, 0.01, 0.5, 0.999):
        if share is not None:
            packed.write_bytes(packed.read_bytes()[: int(share * packed.stat().st_size)])
        found = LiteRT("int8").open(path, packed)[step.name].run(inputs)["hidden"]
        np.testing.assert_array_equal(found, expected)
        assert packed.stat().st_size > 50_000


def test_compiling_leaves_no_files_and_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    step = body_step(GQA, range(1), Bucket(4, 0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        executables = LiteRT().compile([step], InMemory(random_params(GQA)))
        expected = executables[step.name].run(random_inputs(step))["hidden"].copy()
        again = executables[step.name].run(random_inputs(step))["hidden"]
        np.testing.assert_array_equal(again, expected)
        del executables, again
        gc.collect()
    assert not any(tmp_path.iterdir())
    assert not seen


def test_a_run_writes_nothing_to_the_terminal() -> None:
    code = """
import llada_jax as lj
config = lj.SamplerConfig.from_flat(gen_length=8, block_length=8, steps=1)
lj.generate(lj.load("tiny"), [[5]], config, backend="litert")
print("decoded", flush=True)
import os
os._exit(0)  # LiteRT prints when the process ends, after all Python
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "decoded\n" and done.stderr == ""


@pytest.mark.parametrize(
    "quant", ["int8", *(pytest.param(q, marks=pytest.mark.slow) for q in ("float32", "int4"))]
)
def test_programs_of_one_model_share_its_packed_weights(quant: Quant) -> None:
    """A file of packed weights is written once and read for every shape, with the same results."""
    weights, together = InMemory(random_params(WIDE)), LiteRT(quant)
    sizes = []
    for bucket in BUCKETS:
        step = body_step(WIDE, range(2), bucket)
        inputs = random_inputs(step)
        alone = LiteRT(quant).compile([step], weights)[bucket.name].run(inputs)
        found = together.compile([step], weights)[bucket.name].run(inputs)
        for name, array in alone.items():
            np.testing.assert_array_equal(found[name], array)
        (packed,) = together.packed_folder(weights).iterdir()
        sizes.append(packed.stat().st_size)
    assert sizes[0] > 0 and len(set(sizes)) == 1
