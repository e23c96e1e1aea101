"""The executables that a forward gets from a model in memory."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.backend.program import ROW_BUCKETS, OnDemandProgram
from llada_jax.backend.protocol import Bucket, Executable, Step, Weights
from tests.backend.models import GQA, random_params


class Counting:
    """A backend that only counts the steps to compile."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        self.names += [step.name for step in steps]
        return {step.name: object() for step in steps}  # pyright: ignore


@given(rows=st.integers(1, 300), cache=st.integers(0, 300))
def test_buckets_are_large_enough_and_little_larger(rows: int, cache: int) -> None:
    program = OnDemandProgram(GQA, random_params(GQA), Counting())
    bucket, shards = program.body(rows, cache)
    assert rows <= bucket.rows and bucket.rows - rows < 32
    assert bucket.rows in ROW_BUCKETS or bucket.rows % 32 == 0
    assert cache <= bucket.cache < cache + 32 and bucket.cache % 32 == 0
    assert [shard.layers for shard in shards] == [range(GQA.n_layers)]
    assert rows <= program.head(rows)[0]


def test_each_bucket_is_compiled_once() -> None:
    backend = Counting()
    program = OnDemandProgram(GQA, random_params(GQA), backend)
    for rows, cache in ((3, 0), (4, 0), (4, 10), (3, 32), (5, 32)):
        program.body(rows, cache)
    assert backend.names == ["rows4_cache0", "rows4_cache32", "rows8_cache32"]
    for rows in (3, 4, 1):
        program.head(rows)
    heads = ["rows4", "rows4_chunk0", "rows1", "rows1_chunk0"]
    assert backend.names[3:] == heads


def test_programs_of_the_last_two_canvas_lengths_are_kept() -> None:
    backend = Counting()
    program = OnDemandProgram(GQA, random_params(GQA), backend)
    for cache in (32, 64, 32, 96, 32):  # 64 is dropped for 96
        program.body(4, cache)
        program.body(8, cache)
    assert len(backend.names) == 6
    program.body(4, 64)
    assert backend.names[6:] == ["rows4_cache64"]


def test_a_head_may_run_elsewhere() -> None:
    body, head = Counting(), Counting()
    program = OnDemandProgram(GQA, random_params(GQA), body, head, (2, 48))
    assert program.body(3, 0)[0] == Bucket(48, 0)
    assert program.body(49, 0)[0] == Bucket(64, 0)
    program.head(3)
    assert body.names == ["rows48_cache0", "rows64_cache0"]
    assert head.names == ["rows4", "rows4_chunk0"]


def test_embeddings_match_the_model() -> None:
    params = random_params(GQA)
    found = OnDemandProgram(GQA, params, Counting()).embedding[np.array([3, 95, 3])]
    np.testing.assert_array_equal(found, params.embedding[np.array([3, 95, 3])])
    assert found.dtype == np.float32
