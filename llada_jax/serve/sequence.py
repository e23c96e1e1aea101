"""The state of a request while it is decoded: its tokens, and the text that may be sent.

A diffusion model commits tokens in any order, and some rules revise them. So `Sequence.advance`
takes the canvas after each forward and finds the longest run of final tokens from the left. Their
text is safe to send once it cannot change: without an incomplete UTF-8 character, or the beginning
of a stop string, at its end.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Float, Int

import llada_jax as lj
from llada_jax.sampler.prompts import end_ids
from llada_jax.sampler.state import VISIBLE, TopTokens
from llada_jax.sampler.stops import before_end, before_stop, final_tokens, settled_text

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Forward:
    """One sequence's canvas after a forward: token ids, `sampler.state` codes, and confidences."""

    tokens: Int[np.ndarray, " L"]
    status: Int[np.ndarray, " L"]
    confidence: Float[np.ndarray, " L"]
    rows: int
    """Rows of the sequence that the forward computed."""
    drafts: Int[np.ndarray, " L"] | None = None
    """Drafted token of each mask, or -1 without one; None if the rule has no drafts."""
    top: TopTokens | None = None
    """As in `DecodeState`."""

    @classmethod
    def of_row(cls, row: int, stop: int, rows: int, *canvases: Any) -> "Forward":
        """Returns a copy of one row, up to position `stop`, of a batch's tokens, status,
        confidence, drafts and top tokens."""
        canvas: Any = jax.tree.map(lambda array: array[row, :stop].copy(), canvases)
        tokens, status, confidence, *others = canvas
        return cls(tokens, status, confidence, rows, *others)


@dataclass(eq=False)
class Request:
    """Prompts to decode, with the result of `lj.generate(model, prompts, sampler, seed=seed)`."""

    model: lj.Model
    prompts: list[list[int]]
    sampler: lj.SamplerConfig
    seed: int
    max_tokens: int
    constraint: lj.Constraint | None = None
    top_logprobs: int = 0
    seconds: float = 300.0
    """Time limit, counted from `created`."""
    changed: "Callable[[Sequence | None], None]" = lambda sequence: None
    """Called by the worker thread with a sequence after each of its forwards, or with None once the
    request has failed."""
    error: str | None = None
    status: int = 500
    """HTTP status of the error."""
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
        """Whether it has failed, been cancelled or finished."""
        failed = self.error is not None or self.cancelled.is_set()
        return failed or all(sequence.finish for sequence in self.sequences)

    def fail(self, error: str, status: int = 500) -> None:
        self.error, self.status = error, status
        self.changed(None)

    def decode(self, tokens: Any) -> str:
        assert self.model.tokenizer is not None
        return self.model.tokenizer.decode(tokens)


@dataclass(eq=False)
class Sequence:
    """The decoding of one prompt. Positions count from the first generated token."""

    request: Request
    index: int
    finish: Finish | None = None
    text: str = ""
    """The final text so far. It only grows, so that it can be streamed."""
    tokens: list[int] = field(default_factory=list)
    """The tokens of `text`."""
    forwards: int = 0
    rows: list[int] = field(default_factory=list)
    """Rows computed by each forward."""
    last: Forward | None = None
    changes: list[int] = field(default_factory=list)
    """Positions whose token, state or draft the last forward changed."""
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
        probabilities = (self._probabilities.get(at, 1.0) for at in range(len(self.tokens)))
        return [float(np.log(max(probability, 1e-30))) for probability in probabilities]

    @property
    def top(self) -> TopTokens | None:
        """Returns the most probable tokens at each position in the forward that committed it; None
        if they were not requested."""
        top = self.last and self.last.top
        return top and TopTokens(*(array[self.n_prompt :] for array in top))

    def advance(self, forward: Forward, done: bool) -> None:
        """Records a forward, and finishes if its canvas is `done` or the text has ended."""
        self._note_commits(forward)
        self.forwards += 1
        self.rows.append(forward.rows)
        if done:
            self.end()
        else:
            self._finish_text(final_tokens(forward.tokens, forward.status), done=False)

    def end(self) -> None:
        """Finishes after the last forward, which makes all tokens final."""
        assert self.last is not None
        self._finish_text(self.last.tokens[self.n_prompt :], done=True)

    def _note_commits(self, forward: Forward) -> None:
        """Records the positions that a forward committed and changed."""
        start, previous = self.n_prompt, self.last
        tokens, status = forward.tokens[start:], forward.status[start:]
        same = stayed = np.zeros(len(tokens), bool)
        if previous is not None:
            same = tokens == previous.tokens[start:]
            stayed = same & (previous.status[start:] >= VISIBLE)
        for at in np.flatnonzero((status >= VISIBLE) & ~stayed).tolist():
            self._steps[at] = self.forwards
            self._probabilities[at] = float(forward.confidence[start + at])
        if previous is not None:
            same = same & (status == previous.status[start:])
            if forward.drafts is not None and previous.drafts is not None:
                same &= forward.drafts[start:] == previous.drafts[start:]
        self.changes = np.flatnonzero(~same).tolist()
        self.last = forward

    def _finish_text(self, final: Int[np.ndarray, " F"], done: bool) -> None:
        """Sets the text from the final tokens, up to an end token, a stop string or
        `max_tokens`, and finishes if it reaches one of them."""
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
            text = settled_text(text, sampler.stop)
        self.text = max(self.text, text, key=len)
        self.tokens = self._tokens_of(tokens, self.text)

    def _tokens_of(self, tokens: list[int], text: str) -> list[int]:
        """Returns the fewest leading tokens whose text covers `text`, which may end within one."""
        count = len(self.tokens)
        while count < len(tokens) and len(self.request.decode(tokens[:count])) < len(text):
            count += 1
        if self.request.decode(tokens) == text:
            count = len(tokens)
        return tokens[:count]
