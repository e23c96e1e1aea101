"""Continuous batches of requests that arrive at any time, on one worker thread.

A batch holds sequences of equal settings on canvases of one length. A sequence that is done gives
its slot to the next one of the same kind; nothing of a row depends on its neighbours, so each
sequence decodes as `lj.generate` decodes it. Batches take turns, a forward each. Canvas lengths and
batch sizes are powers of two, so that few programs are compiled.

What a single step cannot do (other backends, meshes, 64-bit scores, a refresh worker) is decoded
by `lj.generate`, a request at a time.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import llada_jax as lj
from llada_jax.config import require
from llada_jax.model.mesh import mesh_of
from llada_jax.sampler.record import StepView
from llada_jax.serve.sequence import Forward, Request, Sequence

SHUTDOWN = "the server is shutting down"
TOO_LATE = "the request took more than its {:g} seconds"
_SHORTEST_CANVAS = 128
_log = logging.getLogger("llada_jax.serve")
_step = jax.jit(lj.step, donate_argnums=1)


@partial(jax.jit, donate_argnums=0)
def _insert(state: Any, row: Any, index: Any) -> Any:
    """Puts a row into a slot. Keys and values stay: none of a new row counts as settled."""
    where = jnp.arange(state.done.shape[0]) == index

    def choose(old: Any, new: Any) -> Any:
        return jnp.where(where.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    rest = jax.tree.map(choose, state._replace(cache=None), row)
    return rest._replace(cache=state.cache)


@jax.jit
def _take(state: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index][None], state)


class QueueFull(Exception):
    """No more requests may wait."""


@dataclass(frozen=True)
class Waiting:
    """A sequence with its state before the first forward."""

    sequence: Sequence
    row: Any
    key: tuple[Any, ...]


class Batch:
    """Slots of sequences with one key: settings, constraint and length of the canvas."""

    def __init__(self, waiting: Waiting, size: int) -> None:
        request, (*_, length) = waiting.sequence.request, waiting.key
        self.key = waiting.key
        self.slots: list[Sequence | None] = [None] * size
        dummy = [_dummy_prompt(request, length)] * size
        sampler = request.sampler.replace(stop=())
        self._decoding, state = lj.start(
            request.model, dummy, sampler, constraint=request.constraint
        )
        self._state = state._replace(done=jnp.ones(size, bool))

    @property
    def busy(self) -> list[tuple[int, Sequence]]:
        return [(slot, each) for slot, each in enumerate(self.slots) if each is not None]

    def add(self, waiting: Waiting) -> None:
        """Gives a sequence a free slot."""
        slot = self.slots.index(None)
        self.slots[slot] = waiting.sequence
        self._state = _insert(self._state, waiting.row, slot)

    def drop_ended(self) -> None:
        """Frees the slots of sequences that are finished or whose request is over."""
        ended = [slot for slot, each in self.busy if each.finish or each.request.over]
        for slot in ended:
            self.slots[slot] = None
        if ended:
            done = np.array(self._state.done)
            done[ended] = True
            self._state = self._state._replace(done=jnp.asarray(done))

    def forward(self) -> list[Sequence]:
        """Runs a forward; returns the sequences that took part."""
        self._state, record = _step(self._decoding, self._state)
        state, drafts = self._state, self._state.rule.drafts
        shown = (state.tokens, state.status, state.confidence, state.done, state.fault, state.end)
        counts = record.counts
        *arrays, rows = jax.device_get((*shown, counts.live_rows))
        tokens, status, confidence, done, fault, end = arrays
        guesses = None if drafts is None else np.asarray(drafts.token)
        busy = [each for _, each in self.busy]
        for slot, sequence in self.busy:
            if fault[slot] >= 0:
                sequence.request.fail("the model's scores are NaN or infinite")
                continue
            stop = int(end[slot])
            forward = Forward(
                tokens[slot, :stop].copy(),
                status[slot, :stop].copy(),
                confidence[slot, :stop].copy(),
                int(rows[slot]),
                None if guesses is None else guesses[slot, :stop].copy(),
            )
            sequence.advance(forward, bool(done[slot]))
        return busy


def _dummy_prompt(request: Request, length: int) -> list[int]:
    """Returns a prompt whose canvas has this length: it fixes the shapes of a batch."""
    token = int(request.model.config.mask_id == 0)
    block = request.model.config.block_length or 1
    return [token] * max(1, (length - request.sampler.gen_length) // block * block)


class Engine:
    """The worker thread with its batches and the requests that wait.

    Args:
      places: sequences that are decoded at a time.
      max_waiting: sequences and calls that may wait.
    """

    def __init__(self, model: lj.Model, backend: str, places: int, max_waiting: int) -> None:
        require(places >= 1, f"places is {places}; allowed: 1 or more")
        require(max_waiting >= 1, f"queue is {max_waiting}; allowed: 1 or more")
        self.model, self.backend, self.places, self.max_waiting = (
            model,
            backend,
            places,
            max_waiting,
        )
        self.forwards = 0
        """Forwards so far, each counted once for all its sequences."""
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._waiting: deque[Waiting] = deque()
        self._batches: list[Batch] = []
        self._n_waiting, self._lock = 0, threading.Lock()
        self._closing = threading.Event()
        self._on_mesh = model.params is not None and mesh_of(model.params) is not None
        self._thread = threading.Thread(target=self._work, name="llada-serve", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        return self._n_waiting

    @property
    def n_running(self) -> int:
        return sum(len(batch.busy) for batch in self._batches)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closing.is_set()

    def submit(self, request: Request) -> None:
        """Checks a request and queues it; may take seconds for a new constraint.

        Raises ValueError as `lj.generate`, before anything is computed; QueueFull.
        """
        self._reserve(len(request.prompts))
        try:
            if self._is_alone(request):
                self._check(request)
                self._arrived.put(partial(self._alone, request))
            else:
                self._arrived.put(self._prepared(request))
        except BaseException:
            self._release(len(request.prompts))
            raise

    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Runs a function in the worker thread, between forwards. Raises QueueFull."""
        self._reserve(1)
        future: Future[Any] = Future()

        def run() -> None:
            self._release(1)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        self._arrived.put(run)
        return future

    def close(self) -> None:
        """Fails what is left, and ends the thread."""
        self._closing.set()
        self._arrived.put(None)
        self._thread.join()

    def _reserve(self, count: int) -> None:
        with self._lock:
            if self._closing.is_set() or self._n_waiting + count > self.max_waiting:
                raise QueueFull
            self._n_waiting += count

    def _release(self, count: int) -> None:
        with self._lock:
            self._n_waiting -= count

    def _is_alone(self, request: Request) -> bool:
        sampler = request.sampler
        return self.backend != "xla" or self._on_mesh or sampler.parity.wide or sampler.has_worker

    def _options(self, request: Request) -> dict[str, Any]:
        options = {"backend": self.backend, "seed": request.seed, "constraint": request.constraint}
        return {"config": request.sampler, **options}

    def _check(self, request: Request) -> None:
        lj.generate_stream(self.model, request.prompts, **self._options(request))

    def _prepared(self, request: Request) -> list[Waiting]:
        """Returns the rows of a request on canvases of its batch's length."""
        sampler, config = request.sampler.replace(stop=()), self.model.config
        longest = max(map(len, request.prompts)) + sampler.gen_length
        self._check(request)
        length = max(_SHORTEST_CANVAS, 1 << (longest - 1).bit_length())
        room = config.max_length - config.max_length % (config.block_length or 1)
        length = max(min(length, room), longest)
        prompts = [*request.prompts, _dummy_prompt(request, length)]
        _, state = lj.start(
            self.model, prompts, sampler, seed=request.seed, constraint=request.constraint
        )
        rows = state._replace(cache=None)
        length = state.tokens.shape[1]
        key = (sampler, request.constraint, length)
        return [Waiting(each, _take(rows, each.index), key) for each in request.sequences]

    def _work(self) -> None:
        while not self._closing.is_set():
            idle = not self._batches and not self._waiting
            try:
                arrived = self._arrived.get(block=idle)
                if callable(arrived):
                    arrived()
                elif arrived is not None:
                    self._waiting.extend(arrived)
                continue  # take in all that has arrived before the next forward
            except queue.Empty:
                pass
            self._end_late()
            self._admit()
            for batch in list(self._batches):
                self._run(batch)
            self._batches = [batch for batch in self._batches if batch.busy]
        for sequence in self._sequences():
            sequence.request.fail(SHUTDOWN)

    def _sequences(self) -> list[Sequence]:
        running = [each for batch in self._batches for _, each in batch.busy]
        return running + [each.sequence for each in self._waiting]

    def _end_late(self) -> None:
        """Ends requests whose time is over, and drops those that are over."""
        for sequence in self._sequences():
            request = sequence.request
            if request.late and not request.over:
                request.fail(TOO_LATE.format(request.seconds))
        kept = [each for each in self._waiting if not each.sequence.request.over]
        self._release(len(self._waiting) - len(kept))
        self._waiting = deque(kept)
        for batch in self._batches:
            batch.drop_ended()

    def _admit(self) -> None:
        """Gives free slots to sequences that wait, the longest waiting first."""
        left: deque[Waiting] = deque()
        for waiting in self._waiting:
            try:
                batch = self._batch_for(waiting)
                if batch is None:
                    left.append(waiting)
                    continue
                batch.add(waiting)
            except Exception as error:
                self._failed([waiting.sequence], error)
            self._release(1)
        self._waiting = left

    def _batch_for(self, waiting: Waiting) -> Batch | None:
        """Returns a batch with a free slot, a new one if there are places, or None.

        A batch that is smaller than the number of those that wait for it is left to end, so that a
        larger one takes its place.
        """
        alike = sum(each.key == waiting.key for each in self._waiting)
        for batch in self._batches:
            full = None not in batch.slots
            outgrown = 2 * len(batch.slots) <= min(alike, self.places)
            if batch.key == waiting.key and not full and (not outgrown or not batch.busy):
                return batch
        free = self.places - sum(len(batch.slots) for batch in self._batches)
        if free < 1:
            return None
        size = 1 << (min(alike, free) - 1).bit_length()
        batch = Batch(waiting, size if size <= free else size // 2)
        self._batches.append(batch)
        return batch

    def _run(self, batch: Batch) -> None:
        if not batch.busy:
            return
        try:
            sequences = batch.forward()
            self.forwards += 1
        except Exception as error:
            self._failed([each for _, each in batch.busy], error)
            batch.slots = [None] * len(batch.slots)
            return
        for sequence in sequences:
            if sequence.request.error is None:
                sequence.request.changed(sequence)
        batch.drop_ended()

    def _failed(self, sequences: list[Sequence], error: Exception) -> None:
        _log.error("decoding failed", exc_info=error)
        for request in {each.request for each in sequences}:
            request.fail("the server failed while it decoded the request")

    def _alone(self, request: Request) -> None:
        """Decodes a request by `lj.generate`, in the host loop."""
        self._release(len(request.prompts))

        def on_step(view: StepView) -> None:
            if self._closing.is_set():
                request.fail(SHUTDOWN)
            elif request.late:
                request.fail(TOO_LATE.format(request.seconds))
            if request.over:
                raise _Over
            self.forwards += 1
            for sequence in request.sequences:
                if not sequence.finish:
                    row = sequence.index
                    n_existing = sequence.n_prompt + request.sampler.gen_length
                    forward = Forward(
                        view.tokens[row, :n_existing],
                        view.state[row, :n_existing],
                        view.confidence[row, :n_existing],
                        view.rows,
                    )
                    sequence.advance(forward, False)
                    request.changed(sequence)

        try:
            options = self._options(request)
            lj.generate(self.model, request.prompts, on_step=on_step, **options)
            for sequence in request.sequences:
                if not sequence.finish:
                    sequence.end()
                    request.changed(sequence)
        except _Over:
            pass
        except Exception as error:
            self._failed(request.sequences, error)


class _Over(Exception):
    """Ends `lj.generate` once nobody waits for its result."""
