"""The worker thread, whose timing never changes the result."""

import random
import threading
import time
import traceback
from concurrent.futures import Executor, Future
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.host_runner import Refresher
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Event
from tests.sampler.toy import CONFIG, Worker, in_parts, toy_decode, toy_denoiser

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
STAGED = SamplerConfig.from_flat(
    gen_length=24, block_length=8, steps=24, cache="blockwise", accept="staged",
    window="multi_block", theta_visible=0.2, theta_stable=0.3, refresh="worker",
)  # fmt: skip


class Delayed(Worker):
    """A worker with random delays."""

    def submit(self, job):
        def later():
            time.sleep(random.random() / 100)
            return job()

        return super().submit(later)


class Synchronous(Executor):
    """A worker that does each job at once, in the caller's thread."""

    def submit(self, job):
        done = Future()
        done.set_result(job())
        return done


def threads():
    return [thread.name for thread in threading.enumerate() if "revision" in thread.name]


def test_the_same_tokens_whatever_the_timing():
    runs = [toy_decode(PROMPTS, STAGED, salt=3, loop="host", worker=Synchronous())]
    for worker_class in (Worker, Delayed):
        with worker_class() as worker:
            runs.append(toy_decode(PROMPTS, STAGED, salt=3, loop="host", worker=worker))
    assert runs[0].trace.refreshed.sum() > 0, "the case must have something to refresh"
    assert runs[0].trace.count(Event.REPLACE).sum() > 0
    for run in runs[1:]:
        assert run.trace.same_decoding(runs[0].trace)
    assert threads() == []


@pytest.mark.parametrize("row", [1, *[pytest.param(row, marks=pytest.mark.slow) for row in (0, 2)]])
def test_it_refreshes_the_same_positions_in_a_batch_as_alone(row):
    together = toy_decode(PROMPTS, STAGED, salt=3, loop="host", worker=Synchronous())
    by_rows = STAGED.replace(refresh="rows")
    alone = toy_decode([PROMPTS[row]], by_rows, salt=3, loop="host")
    refreshed = together.trace.refreshed[: alone.nfe[0], row]
    np.testing.assert_array_equal(refreshed, alone.trace.refreshed[:, 0])
    assert refreshed.sum() > 0
    np.testing.assert_array_equal(together.generated[row], alone.generated[0])
    assert together.nfe[row] == alone.nfe[0]


@pytest.mark.slow
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_batch_decodes_each_row_as_alone(row):
    def decoded(prompts):
        with Worker() as worker:
            return toy_decode(prompts, STAGED, salt=3, loop="host", worker=worker)

    together, alone = decoded(PROMPTS), decoded([PROMPTS[row]])
    assert alone.trace.refreshed.sum() == together.trace.refreshed[:, row].sum() > 0
    np.testing.assert_array_equal(together.generated[row], alone.generated[0])
    assert together.nfe[row] == alone.nfe[0]


class Failing(Worker):
    """Fails at its second job."""

    def __init__(self):
        super().__init__()
        self.jobs = 0

    def submit(self, job):
        self.jobs += 1
        return super().submit(job if self.jobs < 2 else self._fail)

    def _fail(self):
        raise RuntimeError("the kernel met a bad tile")


def test_a_worker_that_fails_ends_the_run_with_its_own_traceback():
    with pytest.raises(RuntimeError, match="bad tile") as caught, Failing() as worker:
        toy_decode(PROMPTS, STAGED, salt=3, loop="host", worker=worker)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "_fail" in frames and worker.jobs == 2
    assert threads() == []


class Held(Worker):
    """Its jobs wait until the run has failed."""

    def __init__(self):
        super().__init__()
        self.submitted, self.failed, self.finished = (threading.Event() for _ in range(3))

    def submit(self, job):
        def later():
            assert self.failed.wait(60)
            job()
            self.finished.set()

        found = super().submit(later)
        self.submitted.set()
        return found


def test_a_run_that_fails_during_a_job_leaves_no_thread():
    config = with_ids(STAGED, CONFIG)
    denoiser, salt = in_parts(toy_denoiser(config)), jnp.int32(3)

    def forward_rows(*args):
        if worker.submitted.is_set():
            worker.failed.set()
            raise KeyboardInterrupt
        return denoiser.forward_rows(*args)

    failing = replace(denoiser, forward_rows=forward_rows)
    with pytest.raises(KeyboardInterrupt), Held() as worker:
        refresher = Refresher(worker, denoiser, salt)
        decode(failing, salt, CONFIG, PROMPTS, config, loop="host", refresher=refresher)
    assert worker.finished.is_set() and threads() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loop": "compiled"}, "refresh is 'worker' and loop is 'compiled'; allowed: 'host'"),
        ({"loop": "host"}, "no worker was given"),
    ],
)
def test_settings_that_a_worker_cannot_run_with(options, message):
    with pytest.raises(ValueError, match=message):
        toy_decode(PROMPTS, STAGED, **options)


@pytest.mark.parametrize(("settings", "rows"), [({}, "shadow"), ({"rescore": "token"}, "refresh")])
@pytest.mark.parametrize("refresh", ["rows", "worker"])
def test_a_worker_refuses_models_with_shifted_outputs(settings, rows, refresh):
    shifted = CONFIG.replace(shift_logits=True)
    config = STAGED.replace(refresh=refresh, **settings)
    message = f"{rows} rows need .* allowed: revision with rescore 'token' and ref"
    with pytest.raises(ValueError, match=message), Worker() as worker:
        toy_decode(PROMPTS, config, shifted, loop="host", worker=worker)


def test_a_worker_needs_the_keys_and_values():
    """Refused before anything runs, although the worker has its model."""
    config, salt = with_ids(STAGED, CONFIG), jnp.int32(3)
    denoiser = toy_denoiser(config)

    def forward_rows(params, rows, cache):
        raise AssertionError("nothing may run")

    def empty_cache(params, batch, length):
        return jax.tree.map(lambda array: array[:, :0], denoiser.empty_cache(params, batch, length))

    aside = replace(denoiser, forward_rows=forward_rows, empty_cache=empty_cache, traceable=False)
    with pytest.raises(ValueError, match=r"keeps keys and values to itself.*; allowed: 'rows', '"):
        decode(
            aside, salt, CONFIG, PROMPTS, config, loop="host",
            refresher=Refresher(Synchronous(), denoiser, salt),
        )  # fmt: skip
