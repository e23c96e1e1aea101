"""A failed run ends with one line, an exit code, and the command that resumes it."""

import errno
import os
import shlex
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
from hydra.core.config_store import ConfigStore

from experiments.harness.run import REPOSITORY, entry_point
from llada_jax.io.locked import locked
from tests.experiments.in_process import run_experiment

ConfigStore.instance().store("nothing", {"seed": 0})


@dataclass(frozen=True)
class Settings:
    seed: int = 0

    pass


REASONS = {
    "full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.bin"),
    "broken": OSError(errno.EIO, os.strerror(errno.EIO)),
    "closed": PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a.bin"),
    "wrapped": ValueError("tensor 3: No space left on device"),
    "absent": FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a.bin"),
    "bad": ValueError("seed is 3;\n allowed: 4"),
    "bug": KeyError("seed"),
    "interrupted": KeyboardInterrupt(),
}


@pytest.fixture
def stopped(tmp_path, monkeypatch, capsys):
    """Returns the output and the exit code of a run that raises an exception."""
    monkeypatch.chdir(tmp_path)

    def run(body, *arguments, folder="a run"):
        main = entry_point("nothing", lambda config, run: body(), Settings)
        if folder:
            arguments = (*arguments, f"hydra.run.dir='{folder}'")
        with pytest.raises(SystemExit) as caught:
            run_experiment(main, [*arguments, "seed=3"])
        code = caught.value.code
        return (1, str(code)) if isinstance(code, str) else (code, capsys.readouterr().err)

    return run


def raising(error):
    def body():
        raise error

    return body


COMMAND = ("python", "-m", "experiments.nothing")
GOES_ON = "resume with: " + shlex.join([*COMMAND, "hydra.run.dir='a run'", "seed=3"]) + "\n"


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("full", "error: [Errno 28] No space left on device: 'a.bin'\n"),
        ("broken", "error: [Errno 5] Input/output error\n"),
        ("closed", "error: [Errno 13] Permission denied: 'a.bin'\n"),
        ("wrapped", "error: tensor 3: No space left on device\n"),
    ],
)
def test_a_full_disk_is_reported_with_the_resume_command(reason, line, stopped):
    assert stopped(raising(REASONS[reason])) == (74, line + GOES_ON)


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("absent", "error: [Errno 2] No such file or directory: 'a.bin'"),
        ("bad", "error: seed is 3; allowed: 4"),
    ],
)
def test_bad_input_has_no_resume_command(reason, line, stopped):
    assert stopped(raising(REASONS[reason])) == (1, line)


@pytest.fixture
def interruptible():
    """Handles SIGINT as in a foreground program, since background programs of a shell ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal(number, code, interruptible, stopped, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    found, told = stopped(lambda: signal.raise_signal(number))
    assert found == code, told
    assert told.endswith(f"error: stopped by {number.name}\n{GOES_ON}")
    assert not list((tmp_path / "a run").iterdir()) and signal.getsignal(signal.SIGTERM) is before


def test_a_signal_while_a_verb_is_imported(interruptible, tmp_path):
    (tmp_path / "jax.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "-m", "experiments.generate"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = "error: stopped by SIGINT, before anything began\n"
    assert (done.returncode, done.stderr) == (130, told)


@pytest.mark.slow
def test_a_closed_pipe_ends_the_run_silently():
    verb = [sys.executable, "-m", "experiments.inspect", "--help"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(verb, cwd=REPOSITORY, **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("options", [[], ["--run"]])
def test_the_resume_command_has_the_default_folder(options, stopped):
    code, told = stopped(raising(REASONS["full"]), *options, folder=None)
    goes_on = told.splitlines()[1].split()
    assert code == 74 and goes_on[:5] == ["resume", "with:", *COMMAND]
    assert goes_on[5:-2] == options and goes_on[-1] == "seed=3"
    assert goes_on[-2].startswith("hydra.run.dir=outputs/nothing/20")


def test_the_resume_command_of_a_sweep_has_its_folder(stopped):
    code, told = stopped(raising(REASONS["full"]), "-m", "hydra.sweep.dir=swept", folder=None)
    goes_on = "resume with: python -m experiments.nothing -m hydra.sweep.dir=swept seed=3\n"
    assert code == 74 and told.endswith(goes_on)


def test_a_folder_that_cannot_be_made(stopped, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    code, told = stopped(lambda: None, folder="file/run")
    assert (code, "Not a directory" in told, "Traceback" in told) == (1, True, False)


def test_a_command_line_that_composes_nothing(stopped):
    code, told = stopped(lambda: None, "nothing.more=3")
    assert code == 1 and told.startswith("error: Could not override 'nothing.more'. To append")


def test_a_file_that_is_not_yaml(stopped, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: {b: ]")
    named = ("--config-dir", str(tmp_path), "--config-name", "bad")
    code, told = stopped(lambda: None, *named, folder=None)
    assert code == 1 and "while parsing a flow" in told and "\n" not in told


def test_a_folder_that_another_run_writes_to(stopped, tmp_path):
    with locked(tmp_path / "a run"):
        code, told = stopped(lambda: pytest.fail("it began"))
    assert code == 1 and f"a run is in use by process {os.getpid()} on" in told


def test_a_traceback_on_request(stopped, monkeypatch):
    monkeypatch.setenv("LLADA_JAX_FULL_ERROR", "1")
    code, told = stopped(raising(REASONS["full"]))
    assert code == 74 and told.startswith("Traceback") and told.endswith(GOES_ON)


def test_a_bug_is_shown_whole(tmp_path):
    main = entry_point("nothing", lambda config, run: raising(REASONS["bug"])(), Settings)
    with pytest.raises(KeyError, match="seed"):
        run_experiment(main, [f"hydra.run.dir={tmp_path}/run"])


def test_a_thread_installs_no_signal_handlers(tmp_path):
    main = entry_point("nothing", lambda config, run: run.begin(), Settings)
    thread = threading.Thread(target=run_experiment, args=(main, [f"hydra.run.dir={tmp_path}/run"]))
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "config.yaml").exists()
