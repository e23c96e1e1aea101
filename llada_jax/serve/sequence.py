"""A request and its sequences: what their forwards have committed, and the text that is final."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

import llada_jax as lj
from llada_jax.sampler.prompts import end_ids
from llada_jax.sampler.state import VISIBLE
from llada_jax.sampler.stops import before_end, before_stop, final_tokens

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Forward:
    """What a forward left of one sequence: its canvas, and the draft of each mask."""

    tokens: Int[np.ndarray, " L"]
    status: Int[np.ndarray, " L"]
    confidence: Float[np.ndarray, " L"]
    rows: int
    drafts: Int[np.ndarray, " L"] | None = None  # -1 for none


@dataclass(eq=False)
class Request:
    """Prompts that are decoded as `lj.generate(model, prompts, sampler, seed=seed)` decodes them.

    `changed` is called in the worker thread with a sequence whose forward is done, or with None
    once the request has failed.
    """

    model: lj.Model
    prompts: list[list[int]]
    sampler: lj.SamplerConfig
    seed: int
    max_tokens: int
    constraint: lj.Constraint | None = None
    seconds: float = 300.0
    changed: "Callable[[Sequence | None], None]" = lambda sequence: None
    error: str | None = None
    created: float = field(default_factory=time.monotonic)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def sequences(self) -> "list[Sequence]":
        return [Sequence(self, index) for index in range(len(self.prompts))]

    @property
    def late(self) -> bool:
        return time.monotonic() - self.created > self.seconds

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.error is not None or self.cancelled.is_set() or all(
            each.finish for each in self.sequences
        )  # fmt: skip

    def fail(self, error: str) -> None:
        self.error = error
        self.changed(None)

    def decode(self, tokens: Any) -> str:
        assert self.model.tokenizer is not None
        return self.model.tokenizer.decode(tokens)


@dataclass(eq=False)
class Sequence:
    """One prompt of a request. All positions count from the first generated one."""

    request: Request
    index: int
    finish: Finish | None = None
    text: str = ""
    """The final text so far: it only grows."""
    tokens: list[int] = field(default_factory=list)
    """Its tokens."""
    forwards: int = 0
    rows: list[int] = field(default_factory=list)
    """Rows of each forward."""
    last: Forward | None = None
    changes: list[int] = field(default_factory=list)
    """Positions that the last forward changed."""
    _steps: dict[int, int] = field(default_factory=dict)
    _probabilities: dict[int, float] = field(default_factory=dict)

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompts[self.index])

    @property
    def steps(self) -> list[int]:
        """Returns the forward that committed each token, counted from 0."""
        return [self._steps.get(at, self.forwards - 1) for at in range(len(self.tokens))]

    @property
    def logprobs(self) -> list[float]:
        """Returns the log-probability of each token in the forward that committed it."""
        found = (self._probabilities.get(at, 1.0) for at in range(len(self.tokens)))
        return [float(np.log(max(each, 1e-30))) for each in found]

    def advance(self, forward: Forward, done: bool) -> None:
        """Takes in a forward, and finishes if the text has ended."""
        self._note_commits(forward)
        self.forwards += 1
        self.rows.append(forward.rows)
        if done:
            self.end()
        else:
            self._finish_text(final_tokens(forward.tokens, forward.status), done=False)

    def end(self) -> None:
        """Finishes after the last forward: all tokens are final then."""
        assert self.last is not None
        self._finish_text(self.last.tokens[self.n_prompt :], done=True)

    def _note_commits(self, forward: Forward) -> None:
        """Notes which positions a forward committed and changed."""
        begin, before = self.n_prompt, self.last
        tokens, status = forward.tokens[begin:], forward.status[begin:]
        same = stayed = np.zeros(len(tokens), bool)
        if before is not None:
            same = tokens == before.tokens[begin:]
            stayed = same & (before.status[begin:] >= VISIBLE)
        for at in np.flatnonzero((status >= VISIBLE) & ~stayed).tolist():
            self._steps[at] = self.forwards
            self._probabilities[at] = float(forward.confidence[begin + at])
        if before is not None:
            same = same & (status == before.status[begin:])
            if forward.drafts is not None and before.drafts is not None:
                same &= forward.drafts[begin:] == before.drafts[begin:]
        self.changes = np.flatnonzero(~same).tolist()
        self.last = forward

    def _finish_text(self, final: Int[np.ndarray, " F"], done: bool) -> None:
        """Lengthens the text by final tokens, and finishes if it ends."""
        request = self.request
        sampler, limit = request.sampler, request.max_tokens
        generated = final[: sampler.gen_length]
        answer = before_end(generated, end_ids(sampler, request.model.config))
        ended = len(answer) < len(generated)
        tokens = answer[:limit].tolist()
        whole = request.decode(tokens)
        text = before_stop(whole, sampler.stop)
        if text != whole or (ended and len(answer) <= limit):
            self.finish = "stop"
        elif done or len(answer) >= limit:
            self.finish = "length"
        else:
            text = text[: _safe_length(text, sampler.stop)]
        self.text = max(self.text, text, key=len)
        self.tokens = self._tokens_of(tokens, self.text)

    def _tokens_of(self, tokens: list[int], text: str) -> list[int]:
        """Returns the first tokens whose text contains a text that may be cut."""
        count = len(self.tokens)
        while count < len(tokens) and len(self.request.decode(tokens[:count])) < len(text):
            count += 1
        if self.request.decode(tokens) == text:
            count = len(tokens)
        return tokens[:count]


def _safe_length(text: str, stops: tuple[str, ...]) -> int:
    """Returns how much of a text cannot change: without the beginning of a stop string or the rest
    of a character at its end."""
    length = len(text.rstrip("\ufffd"))
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                length = min(length, len(text) - size)
                break
    return length
