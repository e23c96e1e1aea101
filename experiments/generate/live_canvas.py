"""Watching a canvas fill: drawn in place on a terminal, as plain lines anywhere else.

`frame` turns a step into lines of text and does nothing else; `LiveCanvas` puts them on a screen.
"""

import os
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TextIO

from llada_jax.sampler.canvas import MASKED, PAD, PROMPT, VISIBLE
from llada_jax.sampler.loops import StepView

MASK_GLYPH = "░"
SPECIAL_GLYPH = "∎"
PLAIN_EVERY = 16
"""Steps from one plain line to the next."""

RESET = "\x1b[0m"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
BEGIN_FRAME, END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show frames whole
CLEAR_LINE, CLEAR_BELOW = "\x1b[K", "\x1b[J"


class Style(Enum):
    """How a character looks, as its escape sequence."""

    PLAIN = ""
    DIM = "\x1b[2m"
    FRESH = "\x1b[30;42m"


class StyledChar(NamedTuple):
    char: str
    style: Style


@dataclass(frozen=True)
class CanvasPage:
    """What is the same in every frame."""

    decode: Callable[[Sequence[int]], str]
    special_ids: frozenset[int] = frozenset()
    """Tokens that are drawn as one glyph, such as the end of the text."""
    prompt: str | None = None
    """Drawn before the canvas instead of the prompt's tokens; None draws those, where they are."""


class Progress(NamedTuple):
    """The numbers of the status line."""

    step: int
    masks_left: int
    forwards: int
    tokens_per_forward: float
    rows: int

    def __str__(self) -> str:
        return (
            f"step {self.step}, {self.masks_left} masks left, {self.forwards} forwards, "
            f"{self.tokens_per_forward:.2f} tokens/forward, {self.rows} rows"
        )


def progress(view: StepView) -> Progress:
    """Counts what the batch's first row has done; steps count from 1."""
    state, forwards = view.state[0], int(view.nfe[0])
    return Progress(
        step=view.step + 1,
        masks_left=int((state == MASKED).sum()),
        forwards=forwards,
        tokens_per_forward=int((state >= VISIBLE).sum()) / max(1, forwards),
        rows=view.rows,
    )


def frame(view: StepView, page: CanvasPage, width: int, height: int) -> list[str]:
    """Draws the batch's first row and a status line, in at most `height` lines of `width`
    columns."""
    cells = list(_text(page.prompt + "\n\n", Style.DIM)) if page.prompt else []
    cells += _canvas(view, page)
    lines = wrapped(cells, width)
    status = wrapped(_text(str(progress(view)), Style.DIM), width)
    room = max(1, height - len(status) - 1)
    shown = [*_around_first_mask(lines, room), [], *status]
    return [_painted(line) for line in shown[-height:]]


def _canvas(view: StepView, page: CanvasPage) -> Iterator[StyledChar]:
    def look(position: int) -> tuple[int, bool]:
        return int(state[position]), bool(fresh[position])

    tokens, state, fresh = view.tokens[0], view.state[0], view.fresh[0]
    hidden = (PAD,) if page.prompt is None else (PAD, PROMPT)
    positions = [i for i in range(len(tokens)) if state[i] not in hidden]
    # Neighbours are decoded together: one character may take several tokens.
    for (kind, is_fresh), group in groupby(positions, look):
        ids = [int(tokens[position]) for position in group]
        if kind == MASKED:
            yield from _text(MASK_GLYPH * len(ids), Style.DIM)
        else:
            settled = Style.DIM if kind == PROMPT else Style.PLAIN
            yield from _tokens(ids, page, Style.FRESH if is_fresh else settled)


def _tokens(ids: Sequence[int], page: CanvasPage, style: Style) -> Iterator[StyledChar]:
    for special, group in groupby(ids, page.special_ids.__contains__):
        run = list(group)
        if special:
            yield from _text(SPECIAL_GLYPH * len(run), Style.DIM if style is Style.PLAIN else style)
        else:
            yield from _text(page.decode(run), style)


def _text(text: str, style: Style) -> Iterator[StyledChar]:
    return (StyledChar(char, style) for char in printable(text))


def printable(text: str) -> str:
    """Returns the text without what would steer a terminal."""
    return text.expandtabs(1).translate(_CONTROLS)


_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160))}
_CONTROLS |= {ord("\n"): "\n"}


def wrapped(cells: Iterable[StyledChar], width: int) -> list[list[StyledChar]]:
    """Breaks characters into lines of at most `width` columns, broken after spaces and masks where
    possible."""
    lines, line, columns = [], [], 0
    for cell in cells:
        if cell.char == "\n":
            lines.append(_trimmed(line))
            line, columns = [], 0
            continue
        line.append(cell)
        columns += _columns(cell.char)
        # Spaces may hang over the edge: they are trimmed.
        if columns > width and cell.char != " " and len(line) > 1:
            cut = _break(line)
            lines.append(_trimmed(line[:cut]))
            line = line[cut:]
            columns = sum(_columns(rest.char) for rest in line)
    return [*lines, _trimmed(line)]


def _break(line: list[StyledChar]) -> int:
    """Returns where a line that is one character too long is cut."""
    places = [i for i, cell in enumerate(line[:-1], 1) if cell.char in (" ", MASK_GLYPH)]
    return places[-1] if places else len(line) - 1


def _trimmed(line: list[StyledChar]) -> list[StyledChar]:
    length = len("".join(cell.char for cell in line).rstrip(" "))
    return line[:length]


@cache
def _columns(char: str) -> int:
    """Columns that a character takes on a screen."""
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):  # marks on the letter before, joiners
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _around_first_mask(lines: list[list[StyledChar]], room: int) -> list[list[StyledChar]]:
    """Returns as many lines as there is room for, where the work goes on."""
    masked = (i for i, line in enumerate(lines) if any(c.char == MASK_GLYPH for c in line))
    focus = next(masked, len(lines))
    first = min(max(0, focus - room // 2), max(0, len(lines) - room))
    return lines[first : first + room]


def _painted(line: list[StyledChar]) -> str:
    runs = (
        (style, "".join(c.char for c in run)) for style, run in groupby(line, lambda c: c.style)
    )
    return "".join(f"{style.value}{text}{RESET}" if style.value else text for style, text in runs)


class Watcher(AbstractContextManager["Watcher", None], Protocol):
    """Shows a run while it is in the `with` block; called after each step."""

    def __call__(self, view: StepView) -> None: ...


class PlainLines:
    """One short line every few steps."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, view: StepView) -> None:
        now = progress(view)
        if now.step % PLAIN_EVERY == 1 or not now.masks_left:
            print(now, file=self._stream, flush=True)


class LiveCanvas:
    """Frames drawn over each other. Each is one write, so nothing flickers."""

    def __init__(self, page: CanvasPage, stream: TextIO, pause: float = 0.0) -> None:
        self._page, self._stream, self._pause = page, stream, pause
        self._height = 0

    def __enter__(self) -> Self:
        waiting = _painted(list(_text("compiling the first step", Style.DIM)))
        self._stream.write(HIDE_CURSOR)
        self._draw([waiting])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.write(SHOW_CURSOR)
        self._stream.flush()

    def __call__(self, view: StepView) -> None:
        columns, rows = shutil.get_terminal_size()
        # A full last column or row would make the terminal wrap or scroll.
        self._draw(frame(view, self._page, columns - 1, rows - 1))
        time.sleep(self._pause)

    def _draw(self, lines: list[str]) -> None:
        back = f"\x1b[{self._height}A" if self._height else ""
        body = "".join(f"{line}{CLEAR_LINE}\n" for line in lines)
        self._stream.write(f"{BEGIN_FRAME}{back}\r{body}{CLEAR_BELOW}{END_FRAME}")
        self._stream.flush()
        self._height = len(lines)


def watcher_for(
    page: CanvasPage, stream: TextIO, pause: float = 0.0, environ: Mapping[str, str] = os.environ
) -> Watcher:
    """Returns a live canvas on a terminal that may be painted on; else, or with NO_COLOR, plain
    lines."""
    plain = not stream.isatty() or environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
    return PlainLines(stream) if plain else LiveCanvas(page, stream, pause)
