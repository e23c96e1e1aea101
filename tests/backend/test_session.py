"""The host's side of a step, on executables that only record their inputs."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.backend.canvases import OutputBuffers, pack_canvases
from llada_jax.backend.program import OnDemandProgram
from llada_jax.backend.protocol import Bucket, Executable
from llada_jax.backend.session import FORBIDDEN_LOGIT, Session, Shard
from llada_jax.backend.steps import cache_names
from llada_jax.config import ModelConfig
from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.layers import HIDDEN_SCORE, rotation
from llada_jax.types import Rows
from tests.backend.example_backend import ExampleBackend
from tests.backend.models import GQA, Arrays, random_params

SMALL = ModelConfig(
    family="llada",
    vocab_size=50,
    width=1,
    n_layers=2,
    n_heads=1,
    n_kv_heads=1,
    head_dim=2,
    ffn_width=1,
    rope_theta=100.0,
    norm_eps=1e-5,
    max_length=64,
)
LENGTH = 8
MARGIN = 2
"""The bucket's additional rows and cached positions beyond the requested ones."""


class Recorder:
    """Two shards of one layer each. A row's keys are its token and the number of the forward.

    The outputs are the same memory in every run, as a real executable's are.
    """

    config = SMALL
    largest_head = 4
    embedding = np.arange(SMALL.vocab_size, dtype=np.float32)[:, None]

    def __init__(self, canvases: Sequence[int] = (1,)) -> None:
        self.calls: list[Arrays] = []
        self._canvases, self.output_buffers = canvases, OutputBuffers()
        self._executables: dict[Bucket, list[Shard]] = {}

    def sizes_for(self, rows: int) -> tuple[int, Sequence[int]]:
        return rows, self._canvases

    def body(self, rows: int, cache: int, canvases: int = 1) -> tuple[Bucket, Sequence[Shard]]:
        bucket = Bucket(rows + MARGIN, cache + MARGIN if cache else 0, canvases)
        if bucket not in self._executables:
            self._executables[bucket] = [
                Shard(range(layer, layer + 1), RecordingShard(self, layer, bucket))
                for layer in range(2)
            ]
        return bucket, self._executables[bucket]

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        raise NotImplementedError


class RecordingShard:
    def __init__(self, recorder: Recorder, layer: int, bucket: Bucket):
        self._recorder, self._layer, self._bucket = recorder, layer, bucket
        shape = (1, bucket.all_rows, 2)
        names = (f"new_keys_{layer}", f"new_values_{layer}")
        self._outputs = {name: np.zeros(shape, np.float32) for name in names}
        self._outputs["hidden"] = np.zeros((bucket.all_rows, 1), np.float32)

    def allocate(self, name: str) -> np.ndarray:
        assert name in (f"keys_{self._layer}", f"values_{self._layer}")
        return np.zeros((1, self._bucket.cache, 2), np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if self._layer == 0:
            self._recorder.calls.append({})
        self._recorder.calls[-1] |= {f"{n}@{self._layer}": a.copy() for n, a in arrays.items()}
        forward = len(self._recorder.calls)
        self._outputs["hidden"][...] = arrays["hidden"] + 100
        for kind, sign in (("keys", 1), ("values", -1)):
            out = self._outputs[f"new_{kind}_{self._layer}"]
            out[0, :, 0] = sign * (arrays["hidden"][:, 0] % 100)
            out[0, :, 1] = forward
        return self._outputs


class Forward(NamedTuple):
    """Rows of one canvas in one forward: positions, and whether they are live."""

    positions: list[int]
    live: list[bool]


@st.composite
def forwards(draw: st.DrawFn, batch: int) -> list[list[Forward]]:
    """For each forward, the rows of each canvas; all canvases have the same number of rows."""
    runs = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, LENGTH))
        runs.append([
            Forward(
                draw(st.permutations(range(LENGTH)))[:count],
                draw(st.lists(st.booleans(), min_size=count, max_size=count)),
            )
            for _ in range(batch)
        ])  # fmt: skip
    return runs


def rows_of(forward: Sequence[Forward], tokens: np.ndarray, length: int = LENGTH) -> Rows:
    """Rows that see each other, and the cached positions that have no live row."""
    positions = np.array([canvas.positions for canvas in forward], np.int32)
    live = np.array([canvas.live for canvas in forward], bool)
    batch, count = live.shape
    replaced = ((positions[:, :, None] == np.arange(length)) & live[:, :, None]).any(axis=1)
    sees_cache = np.broadcast_to(~replaced[:, None], (batch, count, length))
    sees_rows = np.broadcast_to(live[:, None], (batch, count, count))
    return Rows(tokens.astype(np.int32), positions, live, sees_cache, sees_rows)  # pyright: ignore


@settings(max_examples=25)
@given(data=st.data(), batch=st.integers(1, 3), canvases=st.sampled_from([(1,), (1, 2), (1, 4)]))
def test_keys_are_written_when_their_position_leaves_the_rows(
    data, batch: int, canvases: tuple[int, ...]
) -> None:
    """Checked from the inputs of each forward: the caches contain the last key and value of each
    position that has left the rows, and are unchanged at positions that still have a row."""
    runs = data.draw(forwards(batch))
    recorder = Recorder(canvases)
    session = Session(recorder, ScoreRules(spread=False))
    cache = session.empty_cache(None, batch, LENGTH)
    held = np.zeros((batch, LENGTH, 2))
    pending: list[dict[int, tuple[int, int]]] = [{} for _ in range(batch)]
    for number, run in enumerate(runs):
        tokens = np.arange(batch * len(run[0].live)).reshape(batch, -1) + 1
        before = len(recorder.calls)
        session.forward_rows(None, rows_of(run, tokens), cache)
        forwards_run = list(pack_canvases([sum(canvas.live) for canvas in run], recorder.sizes_for))
        assert len(recorder.calls) - before == len(forwards_run), f"forward {number}"
        places = {
            b: (before + index, place)
            for index, pack in enumerate(forwards_run)
            for place, b in enumerate(pack.canvases)
        }
        for b, (positions, live) in enumerate(run):
            standing = {p for p, is_live in zip(positions, live, strict=True) if is_live}
            for position in pending[b].keys() - standing:
                held[b, position] = pending[b][position]
            pending[b] = {}
            assert (b in places) == bool(standing)
            if not standing:
                continue
            index, place = places[b]
            for layer in (0, 1):
                keys, values = (
                    recorder.calls[index][f"{name}@{layer}"] for name in cache_names(layer, place)
                )
                np.testing.assert_array_equal(keys[0, :LENGTH], held[b])
                np.testing.assert_array_equal(values[0, :LENGTH], held[b] * [-1, 1])
                assert not keys[0, LENGTH:].any()
            rows = zip(positions, live, tokens[b], strict=True)
            pending[b] = {p: (int(t), index + 1) for p, is_live, t in rows if is_live}


def test_a_new_run_discards_the_previous_one() -> None:
    recorder = Recorder()
    session = Session(recorder, ScoreRules(spread=False))
    for _ in range(2):
        cache = session.empty_cache(None, 1, LENGTH)
        for positions in ([0, 1], [2, 3]):
            rows = rows_of([Forward(positions, [True] * 2)], np.array([[7, 8]]))
            session.forward_rows(None, rows, cache)
    keys = [call["keys_0@0"] for call in recorder.calls]
    assert keys[1].any() and not keys[2].any()


def test_a_repeated_refresh_writes_the_previous_key_first() -> None:
    """Position 2 is refreshed in both forwards; the row at 3 reads it from the cache."""
    recorder = Recorder()
    session = Session(recorder, ScoreRules(spread=False))
    cache = session.empty_cache(None, 1, LENGTH)
    for token in (7, 9):
        rows = rows_of([Forward([3, 2], [True, True])], np.array([[5, token]]))
        seen = np.zeros((1, 2, LENGTH), bool)
        seen[0, 0, 2] = True
        alone = np.eye(2, dtype=bool)[None]
        rows = rows._replace(sees_cache=jnp.asarray(seen), sees_rows=jnp.asarray(alone))
        session.forward_rows(None, rows, cache)
    assert recorder.calls[1]["keys_0@0"][0, 2, 0] == 7
    assert recorder.calls[1]["keys_0@0"][0, 3, 0] == 0, "nobody reads where the window stands"


def test_a_row_that_does_not_write_leaves_the_cache_as_it_is() -> None:
    """A shadow: it feeds another token at a position of the window."""
    recorder = Recorder()
    session = Session(recorder, ScoreRules(spread=False))
    cache = session.empty_cache(None, 1, LENGTH)
    rows = rows_of([Forward([2, 2], [True, True])], np.array([[7, 49]]))
    session.forward_rows(None, rows._replace(writes=jnp.asarray([[True, False]])), cache)
    session.forward_rows(None, rows_of([Forward([3], [True])], np.array([[8]])), cache)
    assert recorder.calls[1]["keys_0@0"][0, 2, 0] == 7


def test_two_threads_on_one_program_get_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RecordingShard.run

    def slow(self: RecordingShard, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        outputs = run(self, arrays)
        time.sleep(1e-3)  # lets the other thread run, if it can
        return outputs

    monkeypatch.setattr(RecordingShard, "run", slow)
    recorder = Recorder()

    def decode(token: int) -> list[np.ndarray]:
        session = Session(recorder, ScoreRules())
        cache = session.empty_cache(None, 1, LENGTH)
        rows = rows_of([Forward([0, 1], [True] * 2)], np.full((1, 2), token))
        return [np.asarray(session.forward_rows(None, rows, cache).hidden) for _ in range(20)]

    with ThreadPoolExecutor(2) as threads:
        for token, found in zip((3, 4), threads.map(decode, (3, 4)), strict=True):
            for hidden in found:
                np.testing.assert_array_equal(hidden, token + 200)


def test_the_cache_of_the_sampler_has_no_heads() -> None:
    cache = Session(Recorder(), ScoreRules()).empty_cache(None, 3, LENGTH)
    assert [part.shape for part in jax.tree.leaves(cache)] == [(3, 0, LENGTH, 0)] * 2
    assert cache.length == LENGTH


@settings(max_examples=15)
@given(data=st.data())
def test_inputs_of_executables(data) -> None:
    """Live rows first, in order, then padding that sees nothing and that nobody sees."""
    count = data.draw(st.integers(1, LENGTH))
    positions = data.draw(st.permutations(range(LENGTH)))[:count]
    live = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    seed = data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 50, (1, count))
    rows = rows_of([Forward(positions, live.tolist())], tokens)
    rows = rows._replace(
        sees_cache=jnp.asarray(rng.random((1, count, LENGTH)) < 0.5),
        sees_rows=jnp.asarray(rng.random((1, count, count)) < 0.5),
    )
    recorder = Recorder()
    session = Session(recorder, ScoreRules(spread=False))
    out = session.forward_rows(None, rows, session.empty_cache(None, 1, LENGTH))
    hidden = np.asarray(out.hidden)[0, :, 0]
    np.testing.assert_array_equal(hidden, np.where(live, tokens[0] + 200, 0))
    if not live.any():
        assert not recorder.calls
        return
    (call,) = recorder.calls
    (run,) = np.nonzero(live)
    bucket = Bucket(len(run) + MARGIN, LENGTH + MARGIN)
    angles = rotation(SMALL, rows.positions)
    bias = np.full((bucket.rows, bucket.cache + bucket.rows), HIDDEN_SCORE)
    seen = np.asarray(rows.sees_cache)[0, run], np.asarray(rows.sees_rows)[0][np.ix_(run, run)]
    bias[: len(run), :LENGTH][seen[0]] = 0
    bias[: len(run), bucket.cache : bucket.cache + len(run)][seen[1]] = 0
    expected = {
        "hidden": padded(tokens[0, run, None], bucket),
        "cos": padded(np.asarray(angles.cos)[0, run, 0], bucket),
        "sin": padded(np.asarray(angles.sin)[0, run, 0], bucket),
        "bias": bias,
    }
    for name, array in expected.items():
        assert call[f"{name}@0"].dtype == np.float32
        np.testing.assert_array_equal(call[f"{name}@0"], array.astype(np.float32))
    np.testing.assert_array_equal(call["hidden@1"], expected["hidden"] + 100)


def padded(values: np.ndarray, bucket: Bucket) -> np.ndarray:
    return np.pad(values, ((0, bucket.rows - len(values)), (0, 0)))


def test_angles_of_late_positions_match_the_model() -> None:
    recorder = Recorder()
    session = Session(recorder, ScoreRules(spread=False))
    cache = session.empty_cache(None, 1, 64)
    for position in (3, 40, 2, 63):
        rows = rows_of([Forward([position], [True])], np.array([[7]]), 64)
        session.forward_rows(None, rows, cache)
        angles = rotation(SMALL, jnp.asarray([[position]], jnp.int32))
        np.testing.assert_array_equal(recorder.calls[-1]["cos@0"][0], angles.cos[0, 0, 0])
        np.testing.assert_array_equal(recorder.calls[-1]["sin@0"][0], angles.sin[0, 0, 0])


RULES = {
    "greedy": ScoreRules(forbidden=(95,), spread=False),
    "two_forbidden": ScoreRules(forbidden=(0, 95), spread=False),
    "all_in_float32": ScoreRules(forbidden=(95,), discounted=(94, 93)),
    "all_in_float64": ScoreRules(
        forbidden=(95,), temperature=0.8, confidence_dtype="float64", noise_dtype="float64"
    ),
}


@pytest.mark.parametrize(("name", "largest"), [("greedy", 128), *((name, 4) for name in RULES)])
def test_scores_match_the_model(name: str, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of 50 of 96 ids, and for more rows than the head takes at once."""
    monkeypatch.setattr("llada_jax.backend.steps.HEAD_CHUNK", 50)
    rules = dataclasses.replace(RULES[name], chunk=50)  # noise is drawn by chunk
    params = on_float16_grid(GQA)
    program = program_of(GQA)
    for count in (2, largest):
        program.head(count)  # compiled in float32, whatever the rules are
    monkeypatch.setattr(program, "largest_head", largest)
    with jax.enable_x64("float64" in (rules.confidence_dtype, rules.noise_dtype)):
        hidden = 3 * np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
        keys = jax.random.split(jax.random.key(1), (2, 5)) if rules.temperature else None
        found = Session(program, rules).score_rows(None, jnp.asarray(hidden), keys)
        expected = jax.jit(score_rows, static_argnums=3)(params, hidden, keys, rules)
    np.testing.assert_array_equal(found.token, expected.token)
    for part in ("confidence", "entropy", "margin"):
        ours, theirs = (np.asarray(getattr(scores, part)) for scores in (found, expected))
        assert ours.shape == (2, 5)
        if part == "confidence" or rules.spread:
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def on_float16_grid(config: ModelConfig):
    """Parameters that the example backend rounds to themselves."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float16).astype(jnp.float32), random_params(config)
    )


_PROGRAMS: dict[ModelConfig, OnDemandProgram] = {}


def program_of(config: ModelConfig) -> OnDemandProgram:
    if config not in _PROGRAMS:
        _PROGRAMS[config] = OnDemandProgram(config, on_float16_grid(config), ExampleBackend())
    return _PROGRAMS[config]


def test_forbidden_ids_get_no_probability() -> None:
    """`exp` of the penalty is exactly 0 next to any logit, and NPUs can add it in float32."""
    assert np.exp(np.float32(FORBIDDEN_LOGIT) + np.float32(1e4)) == 0
    assert np.isfinite(np.float32(FORBIDDEN_LOGIT) * 2)
