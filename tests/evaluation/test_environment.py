"""A run's record of its machine, its packages and its commit."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from llada_jax.evaluation import environment as module
from llada_jax.evaluation.environment import environment


@pytest.fixture(autouse=True)
def a_process_that_has_not_asked():
    environment.cache_clear()
    yield
    environment.cache_clear()


def test_the_environment_names_versions_and_the_commit():
    told = environment()
    assert told["packages"]["jax"] and told["python"] and "CPU cores" in told["machine"]
    assert told["git_sha"] is None or len(told["git_sha"]) == 40
    assert json.loads(json.dumps(told)) == told


def test_the_commit_is_read_once_per_process(monkeypatch):
    before = environment()
    monkeypatch.setattr(module, "_git", lambda *_: "a later commit")
    assert environment() == before


def test_versions_of_installed_extras_are_recorded(monkeypatch):
    monkeypatch.setattr(module, "PACKAGES", ("pytest", "no-such-package"))
    packages = environment()["packages"]
    assert packages["pytest"] == pytest.__version__ and "no-such-package" not in packages


def test_versions_of_the_backends_extras_are_recorded():
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    stated = extras["project"]["optional-dependencies"]
    backends = [re.split("[<>=]", each)[0] for name in ("npu", "qnn") for each in stated[name]]
    assert {each for each in backends if "[" not in each} <= set(module.PACKAGES)


def test_the_environment_works_without_git(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    assert (environment()["git_sha"], environment()["git_dirty"]) == (None, None)
    environment.cache_clear()

    def no_program(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_program)
    assert environment()["git_sha"] is None


def test_a_surrounding_foreign_checkout_is_ignored(monkeypatch, tmp_path):
    for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q",
                                     "--allow-empty", "-m", "theirs"]):  # fmt: skip
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    assert environment()["git_sha"] is None
