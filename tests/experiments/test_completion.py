"""Settings are completed in bash after `python -m experiments.<verb>`."""

import shutil
import subprocess
import sys

import pytest

from tests.pages import ROOT

SCRIPT = """
source experiments/completion.bash
COMP_LINE="$1 -m experiments.view shape=x browser"
words=($COMP_LINE)
COMP_CWORD=$((${#words[@]} - 1))
_llada_jax
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_setting_is_completed():
    command = ["bash", "-c", SCRIPT, "bash", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("browser=", "")
