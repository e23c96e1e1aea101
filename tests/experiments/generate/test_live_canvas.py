"""The live canvas: the frame of a step, and the terminals that it is painted on."""

import io

import numpy as np
import pytest
from rich.console import Console

from experiments.generate.live_canvas import CanvasPage, frame, printable, watching
from llada_jax.sampler.record import StepView
from llada_jax.sampler.state import MASKED, PAD, PROMPT, STABLE

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
STATUS = "step 3, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drawn(view=VIEW, page=PAGE, width=80, height=24):
    return frame(view, page, Console(file=Terminal(), width=width, height=height))


def test_a_frame_shows_prompt_settled_masked_and_fresh_tokens():
    text = drawn()
    assert text.plain == f"two and two is░ four∎∎\n\n{STATUS}"
    styles = [(text.plain[span.start : span.end], span.style) for span in text.spans if span.style]
    assert styles[:-1] == [
        *(("two and", "dim"), ("░", "dim"), (" four", "black on green")),
        *(("∎", "black on green"), ("∎", "dim")),
    ]
    assert styles[-1] == (STATUS, "dim")


def test_a_prompt_text_replaces_the_prompt_tokens():
    page = CanvasPage(PAGE.decode, PAGE.special_ids, prompt="What is two\nand two?")
    text = drawn(page=page).plain
    assert text == f"What is two\nand two?\n\n two is░ four∎∎\n\n{STATUS}"


def test_a_narrow_terminal_wraps():
    lines = drawn(width=12).plain.splitlines()
    assert [line.rstrip() for line in lines[:3]] == ["two and two", "is░ four∎∎", ""]
    assert max(map(len, lines)) <= 12 and "".join(lines[3:]) == STATUS


def test_a_low_terminal_shows_the_first_mask():
    page = CanvasPage(PAGE.decode, PAGE.special_ids, prompt="\n".join("abcdefgh"))
    assert drawn(page=page, height=5).plain == f"h\n\n two is░ four∎∎\n\n{STATUS}"


def test_a_model_cannot_steer_the_terminal():
    view = VIEW._replace(tokens=np.array([[1, 7, 6, 7, 9, 7, 7, 7, 9]]))
    assert "\x1b" not in drawn(view).plain
    assert printable("a\x1b[2Jb\tc\r\n\x9bd") == "a\ufffd[2Jb c\ufffd\n\ufffdd"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_cursor_is_hidden_while_frames_are_drawn_and_always_comes_back(error, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    try:
        with watching(PAGE, terminal) as show:
            show(VIEW)
            if error:
                raise error
    except KeyboardInterrupt:
        assert error
    text = terminal.getvalue()
    assert text.startswith("\x1b[?25l") and text.endswith("\x1b[?25h")
    assert text.index("compiling") < text.index("step 3")


@pytest.mark.parametrize(
    ("stream", "environment", "painted"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_only_capable_terminals_are_painted_on(stream, environment, painted, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with watching(PAGE, stream):
        pass
    assert ("\x1b" in stream.getvalue()) == painted


def test_plain_lines_come_every_few_steps_and_at_the_end():
    stream = io.StringIO()
    with watching(PAGE, stream) as show:
        for step in range(40):
            show(VIEW._replace(step=step))
        show(VIEW._replace(step=40, state=np.full((1, 9), STABLE)))
    assert stream.getvalue().splitlines() == [
        "step 1, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows",
        "step 17, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows",
        "step 33, 1 masks left, 3 forwards, 1.67 tokens/forward, 8 rows",
        "step 41, 0 masks left, 3 forwards, 3.00 tokens/forward, 8 rows",
    ]
