"""Runs an experiment in the process of the test, without Hydra's log files."""

import contextlib
import io
import sys
from collections.abc import Callable, Sequence

import pytest

from experiments.run import REPOSITORY

QUIET = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]


def run_experiment(
    main: Callable[[], None], arguments: Sequence[str], output: io.StringIO | None = None
) -> str:
    """What the command prints."""
    with pytest.MonkeyPatch.context() as patch:
        conf = f"--config-path={REPOSITORY / 'conf'}"
        patch.setattr(sys, "argv", ["experiment", conf, *arguments, *QUIET])
        with contextlib.redirect_stdout(output or io.StringIO()) as printed:
            main()
    return printed.getvalue()
