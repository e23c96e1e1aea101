"""Runs an experiment in the process of the test, as its command does."""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence

import pytest

from experiments.harness.run import REPOSITORY


def run_experiment(
    main: Callable[[], None], arguments: Sequence[str], output: io.StringIO | None = None
) -> str:
    """What the command prints."""
    with pytest.MonkeyPatch.context() as patch:
        conf = f"--config-path={REPOSITORY / 'conf'}"
        patch.setattr(sys, "argv", ["experiment", conf, *arguments])
        with contextlib.redirect_stdout(output or io.StringIO()) as printed:
            main()
    return printed.getvalue()
