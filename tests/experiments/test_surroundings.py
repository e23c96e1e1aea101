"""The environment of a verb: one line and an exit code if the verb cannot run in it."""

import io
import os
import subprocess
import sys

import jax
import pytest

import llada_jax as lj
from experiments import check_surroundings
from experiments.harness.run import REPOSITORY

SHORT = ["train.steps=1", "train.warmup_steps=0", "train.decay_steps=1"]


def started(script, verb, *arguments, **environment):
    """The exit code and the errors of a verb that a shell starts with `exec "$@"`."""
    command = ["bash", "-c", script, "bash", sys.executable, "-m", f"experiments.{verb}"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ('exec "$@" >&-', "standard output is closed; allowed: an open one"),
        ('ulimit -v 614400; exec "$@"', "the limit of memory (ulimit -v) is 614400 KiB; allowed: "),
        ("exec \"$@\" $'prompt=\\xff'", r"b'prompt=\xff' is not UTF-8; allowed: text in UTF-8"),
    ],
)
def test_it_ends_before_jax_is_imported(script, line, tmp_path):
    (tmp_path / "jax.py").write_text("raise KeyError('jax is imported')")
    code, told = started(script, "generate", PYTHONPATH=str(tmp_path))
    assert (code, told.count("\n")) == (1, 1) and told.startswith(f"error: {line}")


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
@pytest.mark.parametrize(
    ("script", "setting"),
    [
        ('unset GLIBC_TUNABLES; exec "$@"', "glibc.malloc.hugetlb=1"),
        ('GLIBC_TUNABLES=glibc.malloc.perturb=0 exec "$@"', "glibc.malloc.perturb=0"),
    ],
)
def test_it_starts_again_with_huge_pages_unless_glibc_is_set(script, setting, tmp_path):
    told_by_jax = "{os.environ['GLIBC_TUNABLES']} {sys.argv[1:]} {os.getppid()}"
    (tmp_path / "jax.py").write_text(f'import os, sys; sys.exit(f"{told_by_jax}")')
    code, told = started(script, "generate", "prompt=a b", PYTHONPATH=str(tmp_path))
    assert (code, told) == (1, f"{setting} ['prompt=a b'] {os.getpid()}\n")


def test_a_locale_of_ascii_reads_and_writes_all_text(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "argv", ["-m", "prompt=h\udcc3\udca9"])
    check_surroundings()
    print(sys.argv[1], flush=True)
    assert sys.argv[1] == "prompt=h\u00e9" and output.buffer.getvalue() == b"prompt=h\\xe9\n"


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("Unable to initialize")])
def test_a_model_is_not_loaded_without_a_device(error, monkeypatch):
    def devices():
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(
        ValueError, match=r"^JAX_PLATFORMS is .* finds no such device here; allowed"
    ):
        lj.load("tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platforms", "verb", "arguments"),
    [("cuda", "generate", ["model=tiny"]), ("nope", "train", SHORT)],
)
def test_a_missing_device_is_reported(platforms, verb, arguments, tmp_path):
    arguments = (*arguments, f"hydra.run.dir={tmp_path}/run")
    code, told = started('exec "$@"', verb, *arguments, JAX_PLATFORMS=platforms)
    line = f"error: JAX_PLATFORMS is '{platforms}', and JAX finds no such device here; allowed: cpu"
    assert (code, told.count("\n")) == (1, 1) and told.startswith(line)
