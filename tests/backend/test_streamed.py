"""Layers that are streamed: the tokens stay, memory is what was asked, failures end the run."""

import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.backend.layer_file import PAGE, LayerFile, write_layers
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.steps import body_step
from llada_jax.backend.streamed_program import StreamedProgram, first_layers_alike
from llada_jax.backend.streamed_weights import StreamedWeights
from llada_jax.backend.weights import InMemory
from llada_jax.config import ModelConfig
from llada_jax.model.head import score_rows
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import QuantArray
from tests.backend.models import GQA, MOE, quantized, random_inputs, random_params

SETTINGS = lj.SamplerConfig(gen_length=16, block_length=8, steps=8, cache="blockwise")


def kept(file: LayerFile, share: float) -> range:
    """A share of the layers: those that stay in memory."""
    return range(int(share * len(file.layers)))


@contextmanager
def streamed(
    config: ModelConfig, params: ModelParams, folder: Path, share: float
) -> Iterator[tuple[StreamedWeights, StreamedProgram]]:
    file = write_layers(folder / "layers.bin", config, InMemory(params))
    with StreamedWeights(file, kept(file, share)) as weights:
        yield weights, StreamedProgram(config, params._replace(layers=()), weights)
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}


def decoded(config: ModelConfig, params: Any, backend: Any, batch: int = 1) -> np.ndarray:
    prompts = np.arange(batch * 5).reshape(batch, 5) % 60 + 20
    model = lj.Model(config, params, None)
    return lj.generate(model, prompts, SETTINGS, backend=backend, loop="host").tokens


@pytest.fixture(scope="module")
def tiny() -> lj.Model:
    return lj.load("tiny")


@pytest.fixture(scope="module")
def tiny_program(tiny: lj.Model) -> StreamedProgram:
    """One program, compiled once, for the layers of one store after another."""
    return StreamedProgram(tiny.config, tiny.params._replace(layers=()))


@pytest.fixture
def streamed_tiny(tiny, tiny_program, tmp_path):
    """Decodes with a share of the layers in memory, and returns the tokens and the stalls."""

    def tokens_and_stalls(share: float, batch: int = 1):
        file = write_layers(tmp_path / "layers.bin", tiny.config, InMemory(tiny.params))
        with StreamedWeights(file, kept(file, share)) as tiny_program.weights:
            tokens = decoded(tiny.config, None, tiny_program, batch)
            return tokens, tiny_program.weights.stalls

    return tokens_and_stalls


@pytest.fixture(scope="module")
def tiny_tokens(tiny: lj.Model) -> np.ndarray:
    return decoded(tiny.config, tiny.params, "xla")


@pytest.mark.parametrize("share", [pytest.param(0, marks=pytest.mark.slow), 0.5, 1])
def test_the_bundled_model_says_the_same(share, streamed_tiny, tiny_tokens):
    tokens, stalls = streamed_tiny(share)
    np.testing.assert_array_equal(tokens, tiny_tokens)
    assert len(stalls) >= 8 and min(stalls) >= 0


def test_a_batch_takes_turns(streamed_tiny, tiny_tokens):
    tokens, _ = streamed_tiny(0, batch=2)
    assert tokens.shape[0] == 2
    np.testing.assert_array_equal(tokens[:1], tiny_tokens)


@pytest.mark.parametrize("kind", ["int8", "int4", "experts"])
def test_other_weights_stream_as_well(kind, tmp_path):
    """Two forwards of all layers against the layers in memory."""
    config = MOE if kind == "experts" else GQA
    params = random_params(config)
    if kind != "experts":
        params = quantized(params, int(kind.removeprefix("int")))
    step = body_step(config, range(config.n_layers), Bucket(4, 0))
    inputs = random_inputs(step)
    leaves = InMemory(params)
    wanted = jax.jit(step.function)(
        {name: next(leaves.rows(name)) for name in step.weights}, inputs
    )
    with streamed(config, params, tmp_path, 0) as (_, program):
        bucket, shards = program.body(4, 0)
        assert bucket == Bucket(4, 0) and len(shards) == config.n_layers
        for _ in range(2):
            found = dict(inputs)
            for shard in shards:
                found |= shard.executable.run(found)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def test_a_quantized_head_stays_quantized(tmp_path):
    params = quantized(random_params(GQA), 8)
    with streamed(GQA, params, tmp_path, 1) as (_, program):
        rows, steps = program.head(3)
        hidden = np.random.default_rng(0).standard_normal((rows, GQA.width)).astype(np.float32)
        penalty = np.zeros(GQA.vocab_size, np.float32)
        out = steps[f"rows{rows}"].run({"hidden": hidden, "penalty": penalty})
    wanted = score_rows(params, jnp.asarray(hidden)[None], None)
    np.testing.assert_array_equal(out["token"], wanted.token[0])
    np.testing.assert_allclose(out["confidence"], wanted.confidence[0], rtol=1e-5)


def test_memory_is_that_of_the_layers_that_stay_and_two_slots(tmp_path):
    config, params = GQA.replace(n_layers=12), random_params(GQA.replace(n_layers=1))
    params = params._replace(layers=params.layers * 12)
    file = write_layers(tmp_path / "layers.bin", config, InMemory(params))
    (size,) = {layer.size for layer in file.layers}
    layers = {}
    for share in (0, 0.25, 0.5, 1):
        with StreamedWeights(file, kept(file, share)) as weights:
            layers[share] = weights.memory_bytes / size
        file = LayerFile(tmp_path / "layers.bin", file.layers)
    file.close()
    assert layers == {0: 2, 0.25: 5, 0.5: 8, 1: 12}


def test_the_file_gives_back_what_was_written(tmp_path):
    params = quantized(random_params(MOE), 8)._replace()
    file = write_layers(tmp_path / "layers.bin", MOE, InMemory(params))
    assert [path.name for path in tmp_path.iterdir()] == ["layers.bin"]
    for index, layer in enumerate(file.layers):
        memory = np.zeros(layer.size, np.uint8)
        file.read(index, memory)
        views = layer.views(memory)
        leaves = jax.tree.leaves(params.layers[index])
        assert len(views) == len(leaves) and layer.size % PAGE == layer.offset % PAGE == 0
        for view, leaf in zip(views.values(), leaves, strict=True):
            np.testing.assert_array_equal(view, np.asarray(leaf))
    file.close()


def test_a_file_that_was_cut_is_refused(tmp_path):
    file = write_layers(tmp_path / "layers.bin", GQA, InMemory(random_params(GQA)))
    file.close()
    (tmp_path / "cut.bin").write_bytes((tmp_path / "layers.bin").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"cut\.bin has \d+ bytes; allowed: \d+"):
        LayerFile(tmp_path / "cut.bin", file.layers)


def test_writing_that_fails_leaves_no_file(tmp_path):
    class Broken(InMemory):
        def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
            if name.startswith("layers.1."):
                raise OSError("the checkpoint is gone")
            return super().rows(name, start, stop)

    with pytest.raises(OSError, match="the checkpoint is gone"):
        write_layers(tmp_path / "layers.bin", GQA, Broken(random_params(GQA)))
    assert not list(tmp_path.iterdir())


def test_a_failing_thread_ends_the_run_with_its_own_traceback(streamed_tiny, monkeypatch):
    reads = []

    def failing_read(self: LayerFile, index: int, into: np.ndarray) -> None:
        reads.append(index)
        if len(reads) > 9:
            raise OSError("the disk is gone")
        plain_read(self, index, into)

    plain_read = LayerFile.read
    monkeypatch.setattr(LayerFile, "read", failing_read)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        streamed_tiny(0)
    functions = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert functions[-1] == "failing_read" and "_run" in functions and "acquire" in functions
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}


def test_a_run_that_ends_early_leaves_no_thread(tiny, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with streamed(tiny.config, tiny.params, tmp_path, 0) as (weights, _):
            weights.acquire(0)
            raise KeyboardInterrupt
    assert "prefetch" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ValueError, match="the weights are closed; allowed: inside of `with`"):
        weights.acquire(1)


def run_layers(weights: StreamedWeights, forwards: int, n_layers: int) -> None:
    for _ in range(forwards):
        for layer in range(n_layers):
            weights.acquire(layer)
            weights.release(layer)


def test_nothing_is_overwritten_before_it_was_used(tmp_path, monkeypatch):
    """Three layers take turns in two slots, which change roles; the first two wait for nobody."""
    file = write_layers(tmp_path / "layers.bin", GQA, InMemory(random_params(GQA)))
    log: list[str] = []
    monkeypatch.setattr(file, "read", lambda index, into: log.append(f"read {index}"))
    with StreamedWeights(file, ()) as weights:
        for layer in [*range(3)] * 4:
            weights.acquire(layer)
            log.append(f"released {layer}")
            weights.release(layer)
    read = [entry for entry in log if entry.startswith("read")]
    assert read[:12] == ["read 0", "read 1", "read 2"] * 4
    for number, entry in enumerate(log):
        if entry in read:
            ahead = [each.startswith("read") for each in log[:number]]
            assert 2 * sum(ahead) - len(ahead) <= 1


def test_a_slower_path_makes_the_forward_wait(tmp_path, monkeypatch):
    """Nine transfers of 20 ms each cannot take less, however busy the machine is."""
    file = write_layers(tmp_path / "layers.bin", GQA, InMemory(random_params(GQA)))
    monkeypatch.setattr(file, "read", lambda index, into: time.sleep(0.02))
    began = time.monotonic()
    with StreamedWeights(file, ()) as weights:
        run_layers(weights, 3, 3)
        assert time.monotonic() - began >= 0.18 and sum(weights.stalls) > 0


def test_layers_of_equal_shapes_share_a_function():
    assert first_layers_alike(GQA.replace(n_layers=4)) == [0, 0, 0, 3]
    assert first_layers_alike(MOE) == [0, 1, 2]


def test_a_quantized_layer_is_one_array_for_values_and_one_for_scales(tmp_path):
    params = quantized(random_params(GQA), 8)
    file = write_layers(tmp_path / "layers.bin", GQA, InMemory(params))
    with StreamedWeights(file, range(GQA.n_layers)) as weights:
        query = weights.acquire(0)["layers.0.attention.query"]
        assert isinstance(query, QuantArray) and query.values.dtype == np.int8
