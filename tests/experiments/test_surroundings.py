"""What a verb finds where it is started: one line and a code for what it cannot run with."""

import io
import os
import resource
import subprocess
import sys

import pytest

from experiments import check_surroundings
from experiments.harness.run import REPOSITORY

LITTLE = 600 << 20
SHORT = ["train.steps=1", "train.warmup_steps=0", "train.decay_steps=1"]


def started(verb, *arguments, **options):
    command = [sys.executable, "-m", f"experiments.{verb}", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.PIPE, check=False, **options)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"preexec_fn": lambda: os.close(1)}, "standard output is closed; allowed: an open one"),
        (
            {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (LITTLE, LITTLE))},
            "the limit of memory (ulimit -v) is 614400 KiB; allowed: 1",
        ),
        ({"prompt": b"prompt=\xff"}, r"b'prompt=\xff' is no UTF-8; allowed: text in UTF-8"),
    ],
)
def test_it_ends_before_jax_is_imported(options, line, tmp_path):
    (tmp_path / "jax.py").write_text("raise KeyError('jax is imported')")
    prompt = options.pop("prompt", "prompt=Hello")
    options["env"] = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code, told = started("generate", prompt, **options)
    assert (code, told.count("\n")) == (1, 1) and told.startswith(f"error: {line}")


def test_a_locale_of_ascii_reads_and_writes_all_text(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "argv", ["-m", "prompt=h\udcc3\udca9"])
    check_surroundings()
    print(sys.argv[1], flush=True)
    assert sys.argv[1] == "prompt=h\u00e9" and output.buffer.getvalue() == b"prompt=h\\xe9\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platforms", "verb", "arguments"),
    [("cuda", "generate", ["model=tiny"]), ("nope", "train", SHORT)],
)
def test_no_such_device(platforms, verb, arguments, tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": platforms}
    code, told = started(verb, *arguments, f"hydra.run.dir={tmp_path}/run", env=environment)
    line = f"error: JAX_PLATFORMS is '{platforms}', and JAX finds no such device here; allowed: cpu"
    assert (code, told.count("\n")) == (1, 1) and told.startswith(line)
