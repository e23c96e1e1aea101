"""Continuous batches: a canvas that is done gives its place to the next prompt.

A place is a row of the batch. Nothing of a row depends on its neighbours: its noise is keyed by its
own seed, and it reads no key or value before it has written it. So each prompt decodes as alone.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from llada_jax.programs import kept, own_jit
from llada_jax.sampler.advance import Fault, faults_of, require_scores
from llada_jax.sampler.decoding_run import DecodingRun
from llada_jax.sampler.generate import Ended, Result, result_of
from llada_jax.sampler.loops import Steps
from llada_jax.sampler.observe import require_finite_rule
from llada_jax.sampler.state import DecodeState, choose


@dataclass
class _Occupant:
    """A prompt that has a place, and what its forwards have done so far."""

    prompt: int
    steps: list[Steps] = field(default_factory=list)
    seconds: float = 0.0
    nfe: int = 0
    ended: Ended | None = None


class Places:
    """The places of a batch, which the prompts of a run take one after another."""

    def __init__(self, run: DecodingRun, places: int) -> None:
        self.offered = 0  # forwards so far, each counted once for every place
        self.useful = 0  # those in which the place had a prompt that was not done
        self._run = run
        self._waiting = deque(range(len(run.prompts)))
        self._taken: list[_Occupant | None] = [None] * min(places, len(run.prompts))
        self._faults: list[Fault] = []

    def results(
        self, together: int | Sequence[int] = 1, *, trace: bool = False
    ) -> Iterator[Result]:
        """Yields a result for every `together` prompts, in their order, as soon as it is there;
        of several numbers, each is for one result.

        Raises FloatingPointError as `decode`, once the prompts that have places are done; those
        that wait get none.
        """
        run, state = self._run, None
        found: dict[int, _Occupant] = {}
        sizes, waiting = cycle(np.atleast_1d(together)), iter(range(len(run.prompts)))
        while chosen := list(islice(waiting, next(sizes))):
            while not found.keys() >= {*chosen}:
                require_scores([] if self._busy or self._waiting else self._faults)
                with run.precision():
                    began = perf_counter()
                    state, steps = self._forwards(self._with_the_next(state))
                    self._share(state, steps, perf_counter() - began)
                    found |= self._ended(state)
            ended = [found.pop(prompt) for prompt in chosen]
            rows = Ended(*map(np.concatenate, zip(*(each.ended for each in ended), strict=True)))
            seconds = sum(each.seconds for each in ended)
            steps = _joined([each.steps for each in ended], run.buckets(chosen))
            yield result_of(run, chosen, rows, steps, seconds, trace=trace)

    @property
    def _busy(self) -> list[tuple[int, _Occupant]]:
        return [(row, each) for row, each in enumerate(self._taken) if each is not None]

    def _with_the_next(self, state: DecodeState | None) -> DecodeState:
        """Returns the canvas with the next prompts in free places."""
        begin = [row for row, each in enumerate(self._taken) if each is None][: len(self._waiting)]
        for row in begin:
            self._taken[row] = _Occupant(self._waiting.popleft())
        if state is not None and not begin:
            return state
        new = {row: each.prompt for row, each in self._busy if row in begin}
        places = range(len(self._taken))
        prompts = [new.get(row, new[begin[0]]) for row in places]
        if state is None:
            return self._run.state(prompts)
        begins = np.isin(places, begin)
        return _exchanged(state, self._run.state(prompts, state.cache), begins)

    def _forwards(self, state: DecodeState) -> tuple[DecodeState, Steps]:
        """Runs forwards until an eighth of the places is free, or all where nobody waits."""
        places, busy = len(self._taken), self._busy
        leaving = max(1, places // 8) if self._waiting else places
        until = min(places - len(busy) + leaving, places)
        most = self._run.max_steps - max(each.nfe for _, each in busy)
        return self._run.forwards(state, until, most)

    def _share(self, state: DecodeState, steps: Steps, seconds: float) -> None:
        """Gives each occupant its own part of the forwards, and of their time."""
        nfe = np.asarray(state.nfe)
        part = {row: int(nfe[row]) - each.nfe for row, each in self._busy}
        useful = sum(part.values())
        self.offered += len(steps.rows) * len(self._taken)
        self.useful += useful
        for row, each in self._busy:
            each.steps.append(_of_row(steps, row, part[row]))
            each.seconds += seconds * part[row] / max(1, useful)
            each.nfe = int(nfe[row])

    def _ended(self, state: DecodeState) -> dict[int, _Occupant]:
        """Frees the places whose occupants are done; returns those, by prompt."""
        faults = {fault.canvas: fault for fault in faults_of(state)}
        done = np.asarray(state.done)
        ended = Ended(*(np.asarray(getattr(state, name)) for name in Ended._fields))
        found = {}
        for row, each in self._busy:
            if not done[row] and each.nfe < self._run.max_steps:
                continue
            self._taken[row] = None
            if row in faults:
                self._faults = sorted([*self._faults, faults[row]._replace(canvas=each.prompt)])
                self._waiting.clear()
            else:
                # Copies: the next forwards reuse the canvas's memory.
                each.ended = Ended(*(np.array(array[row : row + 1]) for array in ended))
                found[each.prompt] = each
        if not self._faults:
            require_finite_rule(self._run.config.rule, state)
        return found


def _of_row(steps: Steps, row: int, count: int) -> Steps:
    """Returns a row's first steps; copies, since the others' need not be kept."""
    records = jax.tree.map(lambda leaf: np.array(leaf[:count, row : row + 1]), steps.records)
    return Steps(records, steps.rows[:count], steps.seconds[:count])


def _joined(canvases: Sequence[Sequence[Steps]], buckets: Sequence[int]) -> Steps:
    """Returns the steps of canvases as if they had begun at once, in the buckets that they then
    take. Seconds are NaN: a forward was shared with others."""
    most = max(sum(len(part.rows) for part in parts) for parts in canvases)

    def whole(*parts: np.ndarray) -> np.ndarray:
        array = np.concatenate(parts)
        return np.pad(array, [(0, most - len(array)), *[(0, 0)] * (array.ndim - 1)])

    records = [jax.tree.map(whole, *(part.records for part in parts)) for parts in canvases]
    records = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *records)
    sizes = np.asarray(buckets, np.int32)
    rows = sizes[np.searchsorted(sizes, records.counts.live_rows.max(axis=1))]
    return Steps(records, rows, np.full(most, np.nan))


def _exchanged(state: DecodeState, new: DecodeState, where: Bool[np.ndarray, " B"]) -> DecodeState:
    """Returns the canvas with other rows in some places; consumes both. Keys and values stay: none
    of a new row counts as settled."""
    rows = state._replace(cache=None), new._replace(cache=None)  # pyright: ignore
    exchange = _program(jax.tree.structure(rows[0]), state.tokens.shape)
    return exchange(*rows, jnp.asarray(where))._replace(cache=state.cache)


def _exchange(old: DecodeState, new: DecodeState, where: Bool[Array, " B"]) -> DecodeState:
    return jax.tree.map(partial(choose, where), new, old)


_program = kept(lambda *shape: own_jit(_exchange, donate_argnames="old"))
