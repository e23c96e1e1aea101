"""Shows a canvas while it fills: in place on a terminal, as plain lines in a file or a pipe."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from llada_jax.sampler.record import OnStep, StepView
from llada_jax.sampler.state import MASKED, PAD, PROMPT, VISIBLE

MASK_GLYPH = "░"
SPECIAL_GLYPH = "∎"
FRESH = "black on green"
PLAIN_EVERY = 16
"""Steps between two plain lines."""


@dataclass(frozen=True)
class CanvasPage:
    """The part of the display that all frames share."""

    decode: Callable[[Sequence[int]], str]
    special_ids: frozenset[int] = frozenset()
    """Tokens that are drawn as one glyph, such as the end of the text."""
    prompt: str | None = None
    """Text shown instead of the prompt's tokens, or None to show the tokens."""


@contextmanager
def watching(page: CanvasPage, stream: TextIO, pause: float = 0.0) -> Iterator[OnStep]:
    """Yields a callback that shows a step: a live canvas on a terminal, or a plain line every few
    steps if there is no terminal or NO_COLOR is set."""
    console = Console(file=stream)
    if not console.is_terminal or console.is_dumb_terminal or console.no_color:

        def print_some(view: StepView) -> None:
            if view.step % PLAIN_EVERY == 0 or not (view.state[0] == MASKED).any():
                print(status(view), file=stream, flush=True)

        yield print_some
        return
    with Live(Text("compiling the first step", "dim"), console=console, auto_refresh=False) as live:

        def draw(view: StepView) -> None:
            live.update(frame(view, page, console), refresh=True)
            time.sleep(pause)

        yield draw


def status(view: StepView) -> str:
    """Returns the progress of the batch's first row as one line; steps count from 1."""
    state, forwards = view.state[0], int(view.nfe[0])
    return (
        f"step {view.step + 1}, {(state == MASKED).sum()} masks left, {forwards} forwards, "
        f"{(state >= VISIBLE).sum() / max(1, forwards):.2f} tokens/forward, {view.rows} rows"
    )


def frame(view: StepView, page: CanvasPage, console: Console) -> Text:
    """Draws the part of the first row around its first mask that fits the screen, and the
    status."""
    text = Text.assemble((printable(f"{page.prompt}\n\n") if page.prompt else "", "dim"))
    for part, style in _canvas(view, page):
        text.append(part, style)
    lines = text.wrap(console, console.width)
    last = Text(status(view), "dim").wrap(console, console.width)
    room = max(1, console.height - len(last) - 1)
    focus = next((i for i, line in enumerate(lines) if MASK_GLYPH in line.plain), len(lines))
    first = min(max(0, focus - room // 2), max(0, len(lines) - room))
    return Text("\n").join([*lines[first : first + room], Text(), *last])


def _canvas(view: StepView, page: CanvasPage) -> Iterator[tuple[str, str]]:
    """Yields pieces of the canvas, each with its style."""
    tokens, state, fresh = view.tokens[0], view.state[0], view.fresh[0]
    hidden = (PAD,) if page.prompt is None else (PAD, PROMPT)
    positions = [i for i in range(len(tokens)) if state[i] not in hidden]

    def look(position: int) -> tuple[int, bool, bool]:
        special = int(tokens[position]) in page.special_ids
        return int(state[position]), bool(fresh[position]), special

    # Neighbours are decoded together: one character may take several tokens.
    for (kind, is_fresh, special), group in groupby(positions, look):
        ids = [int(tokens[position]) for position in group]
        if kind == MASKED:
            yield MASK_GLYPH * len(ids), "dim"
            continue
        style = FRESH if is_fresh else "dim" if special or kind == PROMPT else ""
        yield SPECIAL_GLYPH * len(ids) if special else printable(page.decode(ids)), style


def printable(text: str) -> str:
    """Returns the text without what would steer a terminal."""
    return text.expandtabs(1).translate(_CONTROLS)


_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160))}
_CONTROLS |= {ord("\n"): "\n"}
