"""Runs an experiment in the process of the test, as its command does."""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence

import pytest


def run_experiment(
    main: Callable[[], None], arguments: Sequence[str], output: io.StringIO | None = None
) -> str:
    """What the command prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiment", *arguments])
        with contextlib.redirect_stdout(output or io.StringIO()) as printed:
            main()
    return printed.getvalue()
