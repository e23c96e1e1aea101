"""The reader of the tiles that a run requests."""

import pytest

import llada_jax as lj
from experiments.harness.tiled import check_tiles

WORKER = lj.SamplerConfig.preset("staged", refresh="worker")
ROWS = lj.SamplerConfig.preset("staged")


def test_a_worker_reads_tiles_if_requested():
    check_tiles("q4_0", "xla", WORKER)
    check_tiles(None, "litert", ROWS)


@pytest.mark.parametrize(
    ("backend", "sampler", "message"),
    [
        ("xla", ROWS, "tiles is 'q4_0', backend is 'xla' and the sampler has no worker; allowed"),
        ("litert", WORKER, "backend is 'litert' and the sampler has a worker; allowed: None"),
    ],
)
def test_unused_tiles_are_refused(backend, sampler, message):
    with pytest.raises(ValueError, match=message):
        check_tiles("q4_0", backend, sampler)
