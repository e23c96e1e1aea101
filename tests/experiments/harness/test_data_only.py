"""A configuration names no code: it is refused with its file and key, and nothing has run."""

import sys
from dataclasses import dataclass

import pytest

from experiments.harness.run import entry_point
from tests.experiments.in_process import run_experiment

CODE = """
from pathlib import Path
Path({place!r}, "ran").touch()
def factory(*args, **settings):
    return None
"""


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    more: str | None = None


def nothing(config, run):
    run.begin()


main = entry_point("nothing", nothing, Settings)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Runs a verb with a file of this text in a folder of one's own, beside a module `evil`."""
    folder = tmp_path / "conf"
    folder.mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text(CODE.format(place=str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)

    def run(text, *arguments):
        sys.modules.pop("evil", None)
        (folder / "mine.yaml").write_text(text)
        named = ["--config-dir", str(folder), "--config-name", "mine"]
        run_experiment(main, [*named, f"hydra.run.dir={tmp_path}/run", *arguments])

    yield run
    assert not (tmp_path / "ran").exists() and "evil" not in sys.modules
    assert not (tmp_path / "run" / "config.yaml").exists()


HANDLER = "hydra: {job_logging: {handlers: {console: {%s}}}}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("hydra: {callbacks: {mine: {_target_: evil.factory}}}", r"hydra\.callbacks"),
        ("more: ${oc.env:HOME}\nhydra: {callbacks: '${more}'}", r"hydra\.callbacks"),
        (HANDLER % "(): evil.factory", r"hydra\.job_logging\.handlers\.console\.\(\)"),
        (HANDLER % "class: evil.factory", r"hydra\.job_logging\.handlers\.console\.class"),
        (HANDLER % "class: logging.config.fileConfig", r"handlers\.console\.class"),
        ("more: evil.factory\n" + HANDLER % "class: '${more}'", r"handlers\.console\.class"),
        (HANDLER % "stream: ext://evil.factory", r"handlers\.console\.stream"),
        (
            "more: ext://evil.factory\n" + HANDLER % "stream: '${more}'",
            r"handlers\.console\.stream",
        ),
        ("hydra: {hydra_logging: {formatters: {simple: {(): evil.factory}}}}", r"simple\.\(\)"),
        ("hydra: {launcher: {_target_: evil.factory}}", r"hydra\.launcher\._target_"),
        ("hydra: {sweeper: {_target_: hydra.utils.call}}", r"hydra\.sweeper\._target_"),
        (
            "hydra: {sweeper: {params: {seed: {_target_: evil.factory}}}}",
            r"hydra\.sweeper\.params\.seed\._target_",
        ),
        ("hydra: {searchpath: ['pkg://evil']}", r"hydra\.searchpath"),
        ("hydra: {job: {env_set: {PATH: .}}}", r"hydra\.job\.env_set"),
        ("more: {_target_: evil.factory}", r"more\._target_"),
        ("more: [{deep: {_target_: evil.factory}}]", r"more\.0\.deep\._target_"),
    ],
)
def test_a_file_that_names_code(text, key, config):
    with pytest.raises(SystemExit, match=rf"conf/mine\.yaml sets .*{key} to .*would run code"):
        config(text)


@pytest.mark.parametrize("plugin", ["launcher", "sweeper"])
def test_what_interpolations_make_of_a_plugin(plugin, config, tmp_path):
    group = tmp_path / "conf" / "hydra" / plugin
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text("_target_: hydra_plugins.mine\ninner: ${more}")
    text = "more: \"${oc.create:'{_target_: evil.factory}'}\"\n"
    with pytest.raises(SystemExit, match=rf"hydra\.{plugin}\.inner\._target_ to 'evil.factory'"):
        config(text + f"defaults: [override hydra/{plugin}: mine]", "-m")


@pytest.mark.parametrize(
    "override",
    [
        "+hydra.callbacks.mine._target_=evil.factory",
        "hydra.launcher._target_=evil.factory",
        "hydra.job_logging.handlers.console.class=evil.factory",
        "hydra.searchpath=['pkg://evil']",
        "+more._target_=evil.factory",
    ],
)
def test_a_command_line_that_names_code(override, config):
    with pytest.raises(SystemExit, match=r"the command line, .*would run code; allowed: "):
        config("seed: 3", override)


def test_a_job_of_a_sweep_that_names_code(config, tmp_path):
    group = tmp_path / "conf" / "more"
    group.mkdir()
    (group / "plain.yaml").write_text("# @package _global_\nseed: 4")
    (group / "bad.yaml").write_text("# @package _global_\n" + HANDLER % "(): evil.factory")
    sweep = ("+more=plain,bad", f"hydra.sweep.dir={tmp_path}/run", "-m")
    with pytest.raises(SystemExit, match=r"more/bad\.yaml sets hydra\.job_logging\.handlers"):
        config("seed: 3", *sweep)
    assert not list((tmp_path / "run").glob("*/config.yaml")), "before the first job"


def test_a_pickle_is_no_configuration(config, tmp_path):
    with pytest.raises(SystemExit, match=r"--experimental-rerun is 'a.pickle'; allowed: none"):
        config("seed: 3", "--exp", "a.pickle")


@pytest.mark.parametrize(
    "text",
    [
        "seed: 3",
        "seed: 3\nhydra: {verbose: true}",
        "defaults: [override hydra/job_logging: default]",
    ],
)
def test_what_names_none_runs(text, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    run_experiment(
        main,
        ["--config-dir", str(tmp_path), "--config-name", "mine", f"hydra.run.dir={tmp_path}/run"],
    )
    assert (tmp_path / "run" / "config.yaml").exists()
