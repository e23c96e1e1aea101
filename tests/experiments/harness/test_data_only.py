"""A settings file is data: keys that Hydra would act on are refused before anything runs."""

import re
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
    """Runs a verb with a user's settings file of this text, next to a module `evil`."""
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
OUTSIDE = "../" * 9 + "tmp"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        # Code.
        ("hydra: {callbacks: {mine: {_target_: evil.factory}}}", "hydra.callbacks.mine._target_"),
        ("more: ${oc.env:HOME}\nhydra: {callbacks: '${more}'}", "hydra.callbacks"),
        ("more: {callbacks: 1}\nhydra: ${more}", "hydra"),
        (HANDLER % "(): evil.factory", "hydra.job_logging.handlers.console.()"),
        (HANDLER % "class: evil.factory", "hydra.job_logging.handlers.console.class"),
        (HANDLER % "stream: ext://evil.factory", "hydra.job_logging.handlers.console.stream"),
        ("hydra: {hydra_logging: {formatters: {simple: {(): evil.factory}}}}",
         "hydra.hydra_logging.formatters.simple.()"),
        ("hydra: {launcher: {_target_: evil.factory}}", "hydra.launcher._target_"),
        ("hydra: {launcher: {setup: [touch ran]}}", "hydra.launcher.setup.0"),
        ('hydra: {launcher: {additional_parameters: {"a\\ntouch ran": 1}}}',
         "hydra.launcher.additional_parameters.a\ntouch ran"),
        ("hydra: {sweeper: {_target_: hydra.utils.call}}", "hydra.sweeper._target_"),
        ("hydra: {sweeper: {params: {seed: {_target_: evil.factory}}}}",
         "hydra.sweeper.params.seed._target_"),
        ("hydra: {sweeper: {params: {seed: \"${oc.create:'{_target_: evil.factory}'}\"}}}",
         "hydra.sweeper.params.seed"),
        ("hydra: {sweeper: {params: {hydra.output_subdir: x}}}",
         "hydra.sweeper.params.hydra.output_subdir"),
        ("hydra: {sweeper: {params: {a@hydra.job_logging: x}}}",
         "hydra.sweeper.params.a@hydra.job_logging"),
        ("hydra: {overrides: {hydra: [hydra.output_subdir=x]}}", "hydra.overrides.hydra.0"),
        ("hydra: {searchpath: ['pkg://evil']}", "hydra.searchpath.0"),
        ("hydra: {job: {env_set: {PATH: .}}}", "hydra.job.env_set.PATH"),
        # Files outside the folder of the run.
        (HANDLER % f"class: logging.FileHandler, filename: {OUTSIDE}/x",
         "hydra.job_logging.handlers.console.class"),
        (HANDLER % "filename: x", "hydra.job_logging.handlers.console.filename"),
        ("hydra: {output_subdir: ../../../x}", "hydra.output_subdir"),
        (f"hydra: {{run: {{dir: {OUTSIDE}/x}}}}", "hydra.run.dir"),
        ("hydra: {run: {dir: outputs/../../x}}", "hydra.run.dir"),
        ("hydra: {run: {dir: 'outputs/${more}'}}", "hydra.run.dir"),
        ("hydra: {run: {dir: .config/x}}", "hydra.run.dir"),
        ("hydra: {sweep: {dir: /tmp}}", "hydra.sweep.dir"),
        ("hydra: {sweep: {subdir: ../x}}", "hydra.sweep.subdir"),
        # Ways into the node of Hydra.
        ("# @package hydra.job_logging\nseed: 1", "package"),
        ("# @package _global_.hydra\nseed: 1", "package"),
        ("defaults: [override hydra/job_logging: default]",
         "defaults.0.override hydra/job_logging"),
        ("defaults: [more@hydra.job_logging: bad]", "defaults.0.more@hydra.job_logging"),
        ("defaults: ['/hydra/job_logging/default@foo']", "defaults.0"),
        ("defaults: ['${more}/default']", "defaults.0"),
        ("defaults: [//tmp/other]", "defaults.0"),
        ("defaults: [{/: tmp/other}]", "defaults.0./"),
        ("defaults: [../other]", "defaults.0"),
        ("defaults: [{__pycache__: '.${oc.env:DOT}/x'}]", "defaults.0.__pycache__"),
        ("defaults: [{override hydra/launcher: ../job_logging/default}]",
         "defaults.0.override hydra/launcher"),
    ],
)  # fmt: skip
def test_a_file_that_sets_hydra_is_refused(text, key, config):
    told = re.escape(" ".join(key.split()))
    with pytest.raises(SystemExit, match=rf"conf/mine\.yaml sets {told} to .* may not; allowed"):
        config(text)


GROUPS = {
    "hydra/config": ("job: {chdir: true}", "the file hydra/config.job.chdir"),
    "more/bad": ("# @package _global_\n" + HANDLER % "(): evil.factory", "hydra.job_logging."),
    "hydra/job_logging/mine": ("version: 1", "the file hydra/job_logging/mine.version"),
    "hydra/launcher/mine": ("defaults: [/more/x@_here_]", "defaults.0"),
    "hydra/launcher/basic": ("inner: ${more}", "hydra.launcher.inner"),
    "hydra/sweeper/basic": ("# @package _global_\nx: 1", "package"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_files_that_does(name, config, tmp_path):
    """In a job of a sweep, before the first job starts; or in place of one of Hydra's files."""
    text, key = GROUPS[name]
    file = tmp_path / "conf" / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (file.parent / "plain.yaml").write_text("# @package _global_\nseed: 4")
    chosen = {
        "more/bad": ["+more=plain,bad"],
        "hydra/config": [],
    }.get(name, [name.rpartition("/")[0] + "=" + file.stem])
    sweep = (*chosen, f"hydra.sweep.dir={tmp_path}/run", "-m")
    with pytest.raises(SystemExit, match=rf"{name}\.yaml sets {re.escape(key)}.* may not; allowed"):
        config("seed: 3", *sweep)
    assert not list((tmp_path / "run").glob("*/config.yaml")), "before the first job"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [mine]", "cannot be composed: .*do not include themselves"),
        ("defaults: [more/other]", "cannot be composed: .*do not include themselves"),
        ("a: &a [*a]", r"conf/mine\.yaml is no YAML: line 1 has an alias of what it is in"),
    ],
)
def test_a_file_without_an_end(text, message, config, tmp_path):
    (tmp_path / "conf" / "more").mkdir()
    (tmp_path / "conf" / "more" / "other.yaml").write_text("defaults: [/mine]")
    with pytest.raises(SystemExit, match=message):
        config(text)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("hydra.searchpath=[conf]", r"hydra\.searchpath=\[conf\] is set; allowed: --config-dir"),
        ("--config-name=//tmp/x", r"--config-name is '//tmp/x'; allowed: the name of a file"),
        ("--config-name=a/../x", r"--config-name is 'a/\.\./x'; allowed: the name of a file"),
    ],
)
def test_a_file_around_the_check(argument, message, config):
    with pytest.raises(SystemExit, match=message):
        config("seed: 3", argument)


def test_the_command_line_may_set_hydra(tmp_path):
    (tmp_path / "mine.yaml").write_text("seed: 3")
    named = ["-cd", str(tmp_path), "-cn", "mine", f"hydra.run.dir={tmp_path}/run"]
    handler = "+hydra.job_logging.handlers.more={class: logging.NullHandler}"
    run_experiment(main, [*named, handler, "hydra.output_subdir=../beside"])
    assert "logging.NullHandler" in (tmp_path / "beside" / "hydra.yaml").read_text()


def test_a_pickle_is_refused(config, tmp_path):
    with pytest.raises(SystemExit, match=r"--experimental-rerun is 'a.pickle'; allowed: none"):
        config("seed: 3", "--exp", "a.pickle")


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("seed: 3", "run"),
        ("defaults: [{optional a: b}, {optional c@d.e: '${a}_x'}, _self_]\nseed: 3", "run"),
        ("# @package _global_\nhydra: {verbose: true}", "run"),
        ("hydra: {verbose: [jax], run: {dir: 'outputs/${now:%Y}-x'}}", "run"),
        ("hydra: {mode: MULTIRUN, sweep: {subdir: 'a/${hydra.job.num}'}}", "sweep/a/0"),
        ("hydra: {mode: MULTIRUN, sweeper: {params: {+seed: '1,2'}}}", "sweep/1"),
        ("defaults: [override hydra/launcher: mine, _self_]\nhydra: {mode: MULTIRUN}", "sweep/0"),
    ],
)
def test_allowed_hydra_settings_in_a_file(text, folder, tmp_path):
    (tmp_path / "hydra" / "launcher").mkdir(parents=True)
    (tmp_path / "hydra" / "launcher" / "mine.yaml").write_text("defaults: [basic]")
    (tmp_path / "mine.yaml").write_text(text)
    folders = [f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"]
    run_experiment(main, ["--config-dir", str(tmp_path), "--config-name", "mine", *folders])
    assert (tmp_path / folder / "config.yaml").exists()
