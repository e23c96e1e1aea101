"""Runs an experiment in the process of the test, as its command does."""

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

_shutdown = logging.shutdown


def _shut_down_but_absls(handlers: Sequence[Any]) -> None:
    """Shuts logging down for Hydra, except absl's handler, which would close pytest's stream."""
    _shutdown([each for each in handlers if not type(each()).__module__.startswith("absl")])


def run_experiment(
    main: Callable[[], None], arguments: Sequence[str], output: io.StringIO | None = None
) -> str:
    """Returns the command's output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiment", *arguments])
        patch.setattr(logging, "shutdown", _shut_down_but_absls)
        with contextlib.redirect_stdout(output or io.StringIO()) as printed:
            main()
    return printed.getvalue()
