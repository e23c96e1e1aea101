"""Who reads the tiles that a run asks for."""

import pytest

import llada_jax as lj
from experiments.harness.tiled import check_tiles, models_for
from llada_jax.build.denoisers import has_tiles

pytest.importorskip("llvmlite")

WORKER = lj.SamplerConfig.preset("staged", refresh="worker")
ROWS = lj.SamplerConfig.preset("staged")


@pytest.mark.parametrize(
    ("backend", "sampler", "of_run", "of_worker"),
    [
        ("xla", WORKER, False, True),
        ("tiles", WORKER, True, True),
        ("tiles", ROWS, True, None),
    ],
)
def test_tiles_go_to_those_that_read_them(backend, sampler, of_run, of_worker):
    check_tiles("q4_0", backend, sampler)
    model, refresh_on = models_for(lj.load("tiny"), "q4_0", backend, sampler)
    assert has_tiles(model.params) == of_run
    assert (refresh_on and has_tiles(refresh_on.params)) == of_worker


def test_without_tiles_the_worker_runs_the_model_itself():
    check_tiles(None, "xla", WORKER)
    model = lj.load("tiny")
    assert models_for(model, None, "xla", WORKER) == (model, None)


@pytest.mark.parametrize(
    ("tiles", "backend", "sampler", "message"),
    [
        (None, "tiles", ROWS, "tiles is None and backend is 'tiles'; allowed: 'q4_0'"),
        ("q4_0", "xla", ROWS, "tiles is 'q4_0', backend is 'xla' and the sampler has no worker"),
        ("q4_0", "litert", ROWS, "backend is 'litert' and the sampler has no worker; allow"),
        ("q4_0", "litert", WORKER, "whose keys and values no worker can read; allowed: 'xla', 't"),
    ],
)
def test_tiles_that_nothing_reads(tiles, backend, sampler, message):
    with pytest.raises(ValueError, match=message):
        check_tiles(tiles, backend, sampler)
