"""The live canvas: what a step looks like, and where it is painted."""

import io
import re

import numpy as np
import pytest

from experiments.generate.live_canvas import (
    CanvasPage,
    LiveCanvas,
    PlainLines,
    Style,
    StyledChar,
    frame,
    printable,
    watcher_for,
    wrapped,
)
from llada_jax.sampler.canvas import MASKED, PAD, PROMPT, STABLE
from llada_jax.sampler.loops import StepView

WORDS = ["<end>", "two", " and", " two", " is", " four", "\n", "\x1b[2J"]
END, AND, IS, FOUR = 0, 2, 4, 5

# Two prompt tokens, three settled ones, two committed in this step, one mask, one pad.
VIEW = StepView(
    step=2,
    rows=8,
    tokens=np.array([[1, AND, 3, IS, 9, FOUR, END, END, 9]]),
    state=np.array([[PROMPT, PROMPT, STABLE, STABLE, MASKED, STABLE, STABLE, STABLE, PAD]]),
    confidence=np.ones((1, 9), np.float32),
    fresh=np.array([[False, False, False, False, False, True, True, False, False]]),
    nfe=np.array([3]),
)
PAGE = CanvasPage(lambda ids: "".join(WORDS[i] for i in ids), frozenset({END}))
STATUS = "(step 3, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows)"

MARKS = {Style.DIM.value: "(", Style.FRESH.value: "["}


def readable(lines):
    """Dim text in (), fresh text in []."""
    pattern = re.compile(r"(\x1b\[[0-9;]+m)(.*?)\x1b\[0m")

    def mark(match):
        left = MARKS[match[1]]
        return left + match[2] + {"(": ")", "[": "]"}[left]

    return [pattern.sub(mark, line) for line in lines]


def test_a_frame_shows_prompt_settled_masked_and_fresh_tokens():
    assert readable(frame(VIEW, PAGE, 80, 24)) == [
        "(two and) two is(░)[ four∎](∎)",
        "",
        STATUS,
    ]


def test_a_prompt_of_its_own_replaces_the_prompt_tokens():
    page = CanvasPage(PAGE.decode, PAGE.special_ids, prompt="What is two\nand two?")
    assert readable(frame(VIEW, page, 80, 24)) == [
        "(What is two)",
        "(and two?)",
        "",
        " two is(░)[ four∎](∎)",
        "",
        STATUS,
    ]


def test_a_narrow_terminal_wraps():
    assert readable(frame(VIEW, PAGE, 12, 24)) == [
        "(two and) two",
        "is(░)[ four∎](∎)",
        "",
        "(step 3, 1)",
        "(masks left,)",
        "(3 forwards,)",
        "(1.67)",
        "(tokens/forwa)",
        "(rd, 8 rows)",
    ]


def test_a_low_terminal_shows_where_the_work_goes_on():
    page = CanvasPage(PAGE.decode, PAGE.special_ids, prompt="\n".join("abcdefgh"))
    assert readable(frame(VIEW, page, 80, 5)) == [
        "(h)",
        "",
        " two is(░)[ four∎](∎)",
        "",
        STATUS,
    ]


def test_a_model_cannot_steer_the_terminal():
    view = VIEW._replace(tokens=np.array([[1, 7, 6, 7, 9, 7, 7, 7, 9]]))
    text = "".join(readable(frame(view, PAGE, 80, 24)))
    assert "\x1b" not in text
    assert printable("a\x1b[2Jb\tc\r\n\x9bd") == "a\ufffd[2Jb c\ufffd\n\ufffdd"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("one  two", 4, ["one", "two"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("a\n\nb", 3, ["a", "", "b"]),
        ("数字数字", 4, ["数字", "数字"]),
        ("e\u0301e\u0301e\u0301", 3, ["e\u0301e\u0301e\u0301"]),
        ("ab ░░░░", 5, ["ab ░░", "░░"]),
        ("数", 1, ["数"]),
    ],
)
def test_wrapping(text, width, lines):
    cells = [StyledChar(char, Style.PLAIN) for char in text]
    assert ["".join(cell.char for cell in line) for line in wrapped(cells, width)] == lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_frames_are_drawn_over_each_other_in_one_write_each(monkeypatch):
    monkeypatch.setenv("COLUMNS", "81")
    monkeypatch.setenv("LINES", "25")
    terminal = Terminal()
    with LiveCanvas(PAGE, terminal) as canvas:
        canvas(VIEW)
        canvas(VIEW)
    text = terminal.getvalue()
    assert text.startswith("\x1b[?25l") and text.endswith("\x1b[?25h")
    _, waiting, first, second = text.split("\x1b[?2026h")
    assert "compiling" in waiting
    assert first.startswith("\x1b[1A\r") and second.startswith("\x1b[3A\r")
    assert second.count("\x1b[K\n") == 3 and "\x1b[J\x1b[?2026l" in second


def test_the_cursor_comes_back_after_an_error():
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt), LiveCanvas(PAGE, terminal):
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\x1b[?25h")


@pytest.mark.parametrize(
    ("stream", "environ", "kind"),
    [
        (Terminal(), {"TERM": "xterm"}, LiveCanvas),
        (Terminal(), {"NO_COLOR": ""}, LiveCanvas),
        (Terminal(), {"NO_COLOR": "1"}, PlainLines),
        (Terminal(), {"TERM": "dumb"}, PlainLines),
        (io.StringIO(), {"TERM": "xterm"}, PlainLines),
    ],
)
def test_only_a_terminal_that_wants_it_is_painted_on(stream, environ, kind):
    assert isinstance(watcher_for(PAGE, stream, environ=environ), kind)


def test_plain_lines_come_every_few_steps_and_at_the_end():
    stream = io.StringIO()
    with PlainLines(stream) as lines:
        for step in range(40):
            lines(VIEW._replace(step=step))
        lines(VIEW._replace(step=40, state=np.full((1, 9), STABLE)))
    assert stream.getvalue().splitlines() == [
        "step 1, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows",
        "step 17, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows",
        "step 33, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows",
        "step 41, 0 masks left, 3 forwards, 3.00 tokens/forward, 8 rows",
    ]
