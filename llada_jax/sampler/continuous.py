"""Continuous batches: a sequence that is done gives its batch slot to the next prompt.

A slot is a row of the batch. Nothing in a row depends on the other rows: its noise is keyed by the
prompt's own seed, and it reads no key or value before it has written it. So each prompt decodes as
it would alone, and the number of slots changes no token.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from llada_jax.programs import kept, own_jit
from llada_jax.sampler.decide import Fault, faults_of, require_scores
from llada_jax.sampler.generate import DecodingRun, FinishedRows, Result, result_of
from llada_jax.sampler.observe import require_finite_rule
from llada_jax.sampler.state import DecodeState, choose
from llada_jax.sampler.steps import Steps, in_one_batch, in_sequence


@dataclass
class _Slot:
    """The prompt that has a slot, and its steps so far."""

    prompt: int
    steps: list[Steps] = field(default_factory=list)
    seconds: float = 0.0
    nfe: int = 0
    done: FinishedRows | None = None


class Slots:
    """The batch slots that the prompts of a run take one after another."""

    def __init__(self, run: DecodingRun, n_slots: int) -> None:
        self.offered = 0  # forwards so far, each counted once for every slot
        self.useful = 0  # those in which the slot had a prompt that was not done
        self._run = run
        self._waiting = deque(range(len(run.prompts)))
        self._slots: list[_Slot | None] = [None] * min(n_slots, len(run.prompts))
        self._faults: list[Fault] = []

    def results(
        self, together: int | Sequence[int] = 1, *, trace: bool = False
    ) -> Iterator[Result]:
        """Yields a result for every `together` prompts, in their order, as soon as all are done.

        Several numbers in `together` apply to the results by turns. Raises FloatingPointError as
        `decode`, once the prompts that have slots are done; waiting prompts are not started.
        """
        run, state = self._run, None
        done: dict[int, _Slot] = {}
        sizes, prompts = cycle(np.atleast_1d(together)), iter(range(len(run.prompts)))
        while chosen := list(islice(prompts, next(sizes))):
            while not done.keys() >= {*chosen}:
                require_scores([] if self._busy or self._waiting else self._faults)
                with run.precision():
                    began = perf_counter()
                    state, steps = self._forwards(self._with_next_prompts(state))
                    self._account(state, steps, perf_counter() - began)
                    done |= self._release(state)
            slots = [done.pop(prompt) for prompt in chosen]
            rows = (slot.done for slot in slots)
            finished: Any = jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
            seconds = sum(slot.seconds for slot in slots)
            steps = in_one_batch([in_sequence(slot.steps) for slot in slots], run.buckets(chosen))
            yield result_of(run, chosen, finished, steps, seconds, trace=trace)

    @property
    def _busy(self) -> list[tuple[int, _Slot]]:
        return [(row, slot) for row, slot in enumerate(self._slots) if slot is not None]

    def _with_next_prompts(self, state: DecodeState | None) -> DecodeState:
        """Returns the state with the next prompts in free slots."""
        free = [row for row, slot in enumerate(self._slots) if slot is None][: len(self._waiting)]
        for row in free:
            self._slots[row] = _Slot(self._waiting.popleft())
        if state is not None and not free:
            return state
        new = {row: slot.prompt for row, slot in self._busy if row in free}
        prompts = [new.get(row, new[free[0]]) for row in range(len(self._slots))]
        if state is None:
            return self._run.state(prompts)
        begins = np.isin(range(len(self._slots)), free)
        return _exchanged(state, self._run.state(prompts, state.cache), begins)

    def _forwards(self, state: DecodeState) -> tuple[DecodeState, Steps]:
        """Runs forwards until an eighth of the slots is free, or all if no prompt waits."""
        n_slots, busy = len(self._slots), self._busy
        leaving = max(1, n_slots // 8) if self._waiting else n_slots
        until = min(n_slots - len(busy) + leaving, n_slots)
        most = self._run.max_steps - max(slot.nfe for _, slot in busy)
        return self._run.forwards(state, until, most)

    def _account(self, state: DecodeState, steps: Steps, seconds: float) -> None:
        """Gives each slot its part of the forwards, and of their time."""
        nfe = np.asarray(state.nfe)
        part = {row: int(nfe[row]) - slot.nfe for row, slot in self._busy}
        useful = sum(part.values())
        self.offered += len(steps.rows) * len(self._slots)
        self.useful += useful
        for row, slot in self._busy:
            slot.steps.append(steps.of(row, part[row]))
            slot.seconds += seconds * part[row] / max(1, useful)
            slot.nfe = int(nfe[row])

    def _release(self, state: DecodeState) -> dict[int, _Slot]:
        """Frees the slots of sequences that are done; returns the ones without a fault, by
        prompt."""
        faults = {fault.canvas: fault for fault in faults_of(state)}
        is_done, arrays = np.asarray(state.done), FinishedRows.of(state)
        released = {}
        for row, slot in self._busy:
            if not is_done[row] and slot.nfe < self._run.max_steps:
                continue
            self._slots[row] = None
            if row in faults:
                self._faults = sorted([*self._faults, faults[row]._replace(canvas=slot.prompt)])
                self._waiting.clear()
            else:
                # Copies: the next forwards reuse the state's memory.
                slot.done = jax.tree.map(partial(np.take, indices=[row], axis=0), arrays)
                released[slot.prompt] = slot
        if not self._faults:
            require_finite_rule(self._run.config.rule, state)
        return released


def _exchanged(state: DecodeState, new: DecodeState, where: Bool[np.ndarray, " B"]) -> DecodeState:
    """Returns the state with some rows of `new`; consumes both. The cache stays: a new row reads
    none of it before it has written it."""
    rows = state._replace(cache=None), new._replace(cache=None)  # pyright: ignore
    exchange = _program(jax.tree.structure(rows[0]), state.tokens.shape)
    return exchange(*rows, jnp.asarray(where))._replace(cache=state.cache)


def _exchange(old: DecodeState, new: DecodeState, where: Bool[Array, " B"]) -> DecodeState:
    return jax.tree.map(partial(choose, where), new, old)


_program = kept(lambda *shape: own_jit(_exchange, donate_argnames="old"))
