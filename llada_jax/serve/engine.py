"""Continuous batches of requests that arrive at any time, on one worker thread.

A batch holds sequences with the same settings and canvas length. When a sequence finishes, the next
queued one of the same kind takes its slot. No row of a forward depends on another row, so a
sequence gets the same tokens as from `lj.generate`. Batches take turns, one forward each. Canvas
lengths and batch sizes are powers of two, which bounds the number of programs that JAX compiles.

`lj.step` supports neither other backends nor meshes, 64-bit scores or a refresh worker. Requests
that need one of them are decoded by `lj.generate`, one request at a time.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import llada_jax as lj
from llada_jax.api.decoding import stepping_run
from llada_jax.model.mesh import mesh_of
from llada_jax.sampler.record import StepView
from llada_jax.sampler.text_runner import TextRunner
from llada_jax.serve.requests import MAX_TOP_LOGPROBS
from llada_jax.serve.sequence import Forward, Request, Sequence
from llada_jax.types import KVCache

SHUTDOWN = "the server is shutting down"
TOO_LATE = "the request took more than its {:g} seconds"
_SHORTEST_CANVAS = 128
_NO_CACHE = KVCache((), ())
_log = logging.getLogger("llada_jax.serve")
_step = jax.jit(lj.step, donate_argnums=1)


@partial(jax.jit, donate_argnums=0)
def _insert(state: Any, row: Any, index: Any) -> Any:
    """Writes a sequence's state into a slot. The KV cache of the slot's previous sequence stays: a
    new row marks none of its positions as cached, so they are computed before they are read."""
    is_slot = jnp.arange(state.done.shape[0]) == index

    def choose(old: Any, new: Any) -> Any:
        return jnp.where(is_slot.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    others = jax.tree.map(choose, state._replace(cache=None), row)
    return others._replace(cache=state.cache)


class QueueFull(Exception):
    """The queue has as many sequences as it may hold."""


@dataclass(frozen=True, eq=False)
class Kind:
    """What sequences of a batch share."""

    sampler: lj.SamplerConfig
    """Settings for answers of one block, because only the state of a sequence depends on their
    length; with a constraint, whose texts have to fit in the answer, of the requested length."""
    constraint: lj.Constraint | None
    top_logprobs: int
    length: int
    """Positions of the canvas."""


_kind = lru_cache(maxsize=64)(Kind)  # equal kinds are one object, and are compared by identity


@dataclass(frozen=True)
class QueuedSequence:
    """A sequence that waits for a slot."""

    sequence: Sequence
    row: Any
    """State before the first forward, without a KV cache."""
    kind: Kind


class Batch:
    """Slots for sequences of a kind, which one forward advances together."""

    def __init__(self, model: lj.Model, kind: Kind, size: int) -> None:
        self.kind = kind
        self.slots: list[Sequence | None] = [None] * size
        dummy = [[int(model.config.mask_id == 0)]] * size  # any id but the mask's
        decoding, state = lj.start(
            model,
            dummy,
            kind.sampler,
            constraint=kind.constraint,
            top_logprobs=kind.top_logprobs,
            prompt_length=kind.length - kind.sampler.gen_length,
        )
        self._state = state._replace(done=jnp.ones(size, bool))
        self._step: Callable[..., Any] = partial(_step, decoding)
        if kind.constraint is not None:
            self._step = TextRunner(decoding, state.tokens.shape).step

    @property
    def busy(self) -> list[tuple[int, Sequence]]:
        """Occupied slots with their sequences."""
        return [
            (slot, sequence) for slot, sequence in enumerate(self.slots) if sequence is not None
        ]

    def add(self, queued: QueuedSequence) -> None:
        """Puts a sequence into a free slot."""
        slot = self.slots.index(None)
        self.slots[slot] = queued.sequence
        self._state = _insert(self._state, queued.row, slot)

    def drop_ended(self) -> None:
        """Frees the slots of sequences that have finished, failed or been cancelled."""
        ended = [slot for slot, sequence in self.busy if sequence.finish or sequence.request.over]
        for slot in ended:
            self.slots[slot] = None
        if ended:
            done = np.array(self._state.done)
            done[ended] = True
            self._state = self._state._replace(done=jnp.asarray(done))

    def forward(self) -> list[Sequence]:
        """Runs one forward, and returns the sequences that it advanced or failed."""
        self._state, record, *_ = self._step(self._state)
        state, drafts = self._state, self._state.rule.drafts
        canvases = state.tokens, state.status, state.confidence, drafts and drafts.token, state.top
        numbers = state.done, state.fault, state.end, record.counts.live_rows
        canvases, (done, fault, end, rows) = jax.device_get((canvases, numbers))
        busy = [sequence for _, sequence in self.busy]
        for slot, sequence in self.busy:
            if fault[slot] >= 0:
                sequence.request.fail("the model's scores are NaN or infinite")
                continue
            forward = Forward.of_row(slot, int(end[slot]), int(rows[slot]), *canvases)
            sequence.advance(forward, bool(done[slot]))
        return busy


class Engine:
    """Decodes requests in a worker thread. Any thread may submit them.

    Args:
      places: Maximum number of sequences that are decoded at a time, 1 or more.
      max_waiting: Maximum number of sequences and calls in the queue, 1 or more.
    """

    def __init__(self, model: lj.Model, backend: str, places: int, max_waiting: int) -> None:
        self.model, self.backend = model, backend
        self.places, self.max_waiting = places, max_waiting
        self.forwards = 0
        """Forwards so far; one forward of a batch counts once."""
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Functions to call and lists of `QueuedSequence`; None wakes the thread to end it."""
        self._queued: deque[QueuedSequence] = deque()
        self._batches: list[Batch] = []
        self._n_waiting, self._lock = 0, threading.Lock()
        self._closing = threading.Event()
        self._on_mesh = model.params is not None and mesh_of(model.params) is not None
        self._thread = threading.Thread(target=self._work, name="llada-serve", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Number of queued sequences and calls."""
        return self._n_waiting

    @property
    def n_running(self) -> int:
        """Number of sequences with a slot in a batch."""
        return sum(len(batch.busy) for batch in self._batches)

    @property
    def alive(self) -> bool:
        """Whether requests are still decoded."""
        return self._thread.is_alive() and not self._closing.is_set()

    def submit(self, request: Request) -> None:
        """Checks a request and queues it. Compiling a new constraint can take seconds.

        Raises:
          ValueError: `lj.generate` would refuse the request.
          QueueFull: The queue has no room for its sequences, or the engine is closing.
        """
        self._reserve(len(request.prompts))
        try:
            if self._needs_generate(request):
                self._check(request)
                self._inbox.put(partial(self._generate, request))
            else:
                self._inbox.put(self._queued_sequences(request))
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

        self._inbox.put(run)
        return future

    def close(self) -> None:
        """Ends the thread, and fails all requests that have not finished."""
        self._closing.set()
        self._inbox.put(None)
        self._thread.join()

    def _reserve(self, count: int) -> None:
        with self._lock:
            if self._closing.is_set() or self._n_waiting + count > self.max_waiting:
                raise QueueFull
            self._n_waiting += count

    def _release(self, count: int) -> None:
        with self._lock:
            self._n_waiting -= count

    def _needs_generate(self, request: Request) -> bool:
        """Whether `lj.step` cannot decode the request."""
        sampler = request.sampler
        return self.backend != "xla" or self._on_mesh or sampler.parity.wide or sampler.has_worker

    def _options(self, request: Request) -> dict[str, Any]:
        return {
            "config": request.sampler,
            "backend": self.backend,
            "seed": request.seed,
            "constraint": request.constraint,
            "top_logprobs": request.top_logprobs,
        }

    def _check(self, request: Request) -> None:
        # A stream checks its arguments when it is made, and decodes only once it is read.
        lj.generate_stream(self.model, request.prompts, **self._options(request))

    def _queued_sequences(self, request: Request) -> list[QueuedSequence]:
        """Returns a request's sequences with their states, padded to a batch's canvas length."""
        sampler, config = request.sampler.replace(stop=()), self.model.config
        longest = max(map(len, request.prompts)) + sampler.gen_length
        self._check(request)
        length = max(_SHORTEST_CANVAS, 1 << (longest - 1).bit_length())
        room = config.max_length - config.max_length % (config.block_length or 1)
        length = max(min(length, room), longest)
        # Requests for different numbers of top tokens share batches.
        top = MAX_TOP_LOGPROBS if request.top_logprobs else 0
        run = stepping_run(
            self.model,
            request.prompts,
            sampler,
            seed=request.seed,
            constraint=request.constraint,
            top_logprobs=top,
            prompt_length=length - sampler.gen_length,
        )
        if request.constraint is None:
            sampler = sampler.replace(
                gen_length=sampler.block_length, steps=sampler.steps_per_block
            )
        kind = _kind(sampler, request.constraint, top, run.layout.length)
        return [
            QueuedSequence(sequence, run.state([index], cache=_NO_CACHE)._replace(cache=None), kind)
            for index, sequence in enumerate(request.sequences)
        ]

    def _work(self) -> None:
        while not self._closing.is_set():
            idle = not self._batches and not self._queued
            try:
                item = self._inbox.get(block=idle)
                if callable(item):
                    item()
                elif item is not None:
                    self._queued.extend(item)
                continue  # empty the inbox before the next forward
            except queue.Empty:
                pass
            self._drop_ended()
            self._admit()
            for batch in list(self._batches):
                self._run(batch)
            self._batches = [batch for batch in self._batches if batch.busy]
        for sequence in self._sequences():
            sequence.request.fail(SHUTDOWN, 503)

    def _sequences(self) -> list[Sequence]:
        running = [sequence for batch in self._batches for _, sequence in batch.busy]
        return running + [queued.sequence for queued in self._queued]

    def _drop_ended(self) -> None:
        """Fails requests that have exceeded their time limit, and drops all ended ones from the
        queue and the batches."""
        for sequence in self._sequences():
            request = sequence.request
            if request.late and not request.over:
                request.fail(TOO_LATE.format(request.seconds), 504)
        live = [queued for queued in self._queued if not queued.sequence.request.over]
        self._release(len(self._queued) - len(live))
        self._queued = deque(live)
        for batch in self._batches:
            batch.drop_ended()

    def _admit(self) -> None:
        """Gives free slots to queued sequences, oldest first."""
        remaining: deque[QueuedSequence] = deque()
        for queued in self._queued:
            try:
                batch = self._batch_for(queued)
                if batch is None:
                    remaining.append(queued)
                    continue
                batch.add(queued)
            except Exception as error:
                self._fail([queued.sequence], error)
            self._release(1)
        self._queued = remaining

    def _batch_for(self, queued: QueuedSequence) -> Batch | None:
        """Returns a batch with a free slot: an existing one, a new one, or None if all places are
        taken.

        A batch of at most half the size that its queue needs gets no new sequences, so that it
        ends and a larger one replaces it.
        """
        alike = sum(other.kind is queued.kind for other in self._queued)
        for batch in self._batches:
            full = None not in batch.slots
            outgrown = 2 * len(batch.slots) <= min(alike, self.places)
            if batch.kind is queued.kind and not full and (not outgrown or not batch.busy):
                return batch
        free = self.places - sum(len(batch.slots) for batch in self._batches)
        if free < 1:
            return None
        size = 1 << (min(alike, free) - 1).bit_length()
        batch = Batch(self.model, queued.kind, size if size <= free else size // 2)
        self._batches.append(batch)
        return batch

    def _run(self, batch: Batch) -> None:
        if not batch.busy:
            return
        try:
            sequences = batch.forward()
            self.forwards += 1
        except Exception as error:
            self._fail([sequence for _, sequence in batch.busy], error)
            batch.slots = [None] * len(batch.slots)
            return
        for sequence in sequences:
            if sequence.request.error is None:
                sequence.request.changed(sequence)
        batch.drop_ended()

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        _log.error("decoding failed", exc_info=error)
        for request in {sequence.request for sequence in sequences}:
            request.fail("the server failed while it decoded the request")

    def _generate(self, request: Request) -> None:
        """Decodes a request by `lj.generate`, which calls `on_step` after each forward."""
        self._release(len(request.prompts))

        def on_step(view: StepView) -> None:
            if self._closing.is_set():
                request.fail(SHUTDOWN, 503)
            elif request.late:
                request.fail(TOO_LATE.format(request.seconds), 504)
            if request.over:
                raise _RequestOver
            self.forwards += 1
            for sequence in request.sequences:
                if not sequence.finish:
                    stop = sequence.n_prompt + request.sampler.gen_length
                    canvases = view.tokens, view.state, view.confidence, None, view.top
                    forward = Forward.of_row(sequence.index, stop, view.rows, *canvases)
                    sequence.advance(forward, False)
                    request.changed(sequence)

        try:
            options = self._options(request)
            lj.generate(self.model, request.prompts, on_step=on_step, **options)
            for sequence in request.sequences:
                if not sequence.finish:
                    sequence.end()
                    request.changed(sequence)
        except _RequestOver:
            pass
        except Exception as error:
            self._fail(request.sequences, error)


class _RequestOver(Exception):
    """Ends `lj.generate` once its request has failed or been cancelled."""
