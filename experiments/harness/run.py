"""The frame of every verb: a command with Hydra's settings, and a folder for its results.

    main = entry_point("generate", generate, GenerateConfig)

`entry_point` turns a function of checked settings and a `Run` into a command. The run's folder gets
`config.yaml` (resolved settings), `env.json` (commit, versions, machine), `metrics.jsonl` (a line
for each step or item) and `results.json`, which exists exactly if the run finished.
"""

import argparse
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
from hydra.conf import HydraConf, RunDir, SweepDir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import llada_jax as lj
from experiments.harness.data_only import read_settings_as_data
from experiments.harness.failures import one_line_errors, terminable
from experiments.harness.results import ResultRow, table
from experiments.harness.workers import lock_run_folder
from llada_jax.backend.compilation_cache import enable_compilation_cache
from llada_jax.config import require
from llada_jax.config_files import checked_dataclass, parse_yaml, read_yaml
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import ALONE, Worker
from llada_jax.evaluation.stored import stored_text
from llada_jax.io import atomic
from llada_jax.model.architecture import ARCHITECTURES
from llada_jax.sampler.config import PRESETS, SamplerConfig

CONFIG, RESULTS = "config.yaml", "results.json"
NO_RESULTS = ("report", "view")
"""Verbs that show the results of other runs."""
SWEEP_PAGE = "experiments.report.sweep.SweepPage"
"""The callback at the end of a sweep, as text: the harness imports no verb, Hydra does."""
REPOSITORY = Path(__file__).resolve().parents[2]
CONF = REPOSITORY / "conf"

# `sampler=default` and each preset list every setting, because Hydra overrides only existing keys.
_SAMPLER = {**SamplerConfig().as_dict(), "steps": None}  # steps follow gen_length
for _name, _changes in {"default": {}, **PRESETS}.items():
    ConfigStore.instance().store(_name, {**_SAMPLER, **_changes}, group="sampler")

# The shapes that come with the package are Hydra's group `architecture`.
for _shape in ARCHITECTURES.glob("*.yaml"):
    ConfigStore.instance().store(_shape.stem, dict(read_yaml(_shape)), group="architecture")

T = TypeVar("T")


def entry_point(
    verb: str, experiment: Callable[[T, "Run"], None], schema: type[T]
) -> Callable[[], None]:
    """Returns the command of a verb, and calls it if the experiment's module is the program.

    Settings come from `conf/<verb>.yaml` and the command line, runs go to
    `outputs/<verb>/<date>/<time>`. Settings files cannot run code (`data_only`). Expected failures
    are one line and an exit code (`failures`). A folder that another run writes to is refused. A
    sweep (`-m`) ends with a report of its jobs.

    Args:
      verb: name of the command and of its settings file.
      experiment: checks its input, calls `Run.begin`, works, and calls `Run.finish`.
      schema: dataclass of the settings, whose `__post_init__` checks them.
    """
    resume = partial(resume_command, verb)
    began: list[str] = []  # not empty as soon as a job has started

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=verb)
    def command(config: DictConfig) -> None:
        began.append(verb)
        for name in ("jax", "absl"):  # they log absent devices and each checkpoint file
            logging.getLogger(name).setLevel(logging.WARNING)
        with one_line_errors(resume):
            settings = read_config(schema, config)
            worker: Worker = getattr(settings, "worker", ALONE)
            run = Run(Path(HydraConfig.get().runtime.output_dir), config, worker)
            with lock_run_folder(run.folder, worker, HydraConfig.get().overrides.hydra):
                run.require_same_experiment()
                experiment(settings, run)
            if verb not in NO_RESULTS and (run.folder / RESULTS).exists():
                print(f"\nlook at it: {_show_command(run.folder)}")

    def main() -> None:
        about = str(sys.modules[experiment.__module__].__doc__).replace("$", "$$")
        ConfigStore.instance().store("config", _hydra_settings(verb, about), group="hydra")
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
        with one_line_errors(resume), terminable():
            began.clear()
            enable_compilation_cache()
            read_settings_as_data(_config_dir(sys.argv[1:]))
            try:
                command()
            except (RecursionError, TypeError) as error:
                if began:  # an error of the experiment, not of its settings
                    raise
                raise ValueError(
                    f"the settings cannot be composed: {error}; allowed: groups by their names, "
                    "and files that do not include themselves by `defaults`"
                ) from error

    if experiment.__module__ == "__main__":
        main()
    return main


def _config_dir(arguments: Sequence[str]) -> str | None:
    """Returns the folder of `--config-dir`, and registers the sampler files of the command line.
    Raises ValueError for arguments that would bypass the check of settings files."""
    parser = argparse.ArgumentParser(add_help=False)
    for names in ("-c --cfg", "-cn --config-name", "-cp --config-path", "-cd --config-dir"):
        parser.add_argument(*names.split())  # all of Hydra's, so that abbreviations mean the same
    parser.add_argument("--experimental-rerun")
    options, others = parser.parse_known_args(arguments)
    pickled, name = options.experimental_rerun, options.config_name or ""
    require(
        pickled is None,
        f"--experimental-rerun is {pickled!r}; allowed: none, since a pickle runs code",
    )
    inside = not name.startswith("/") and ".." not in name
    require(inside, f"--config-name is {name!r}; allowed: the name of a file of --config-dir")
    for override in others:
        searched = "hydra.searchpath" in override.partition("=")[0]
        require(not searched, f"{override} is set; allowed: --config-dir=<folder>")
        offer_preset_file(override)
    return options.config_dir


def offer_preset_file(override: str) -> None:
    """Registers the files of `sampler=best.json`, or of a sweep over files, as Hydra choices.
    Raises ValueError for a file that is missing or damaged."""
    group, _, chosen = override.partition("=")
    if group.partition("@")[0] != "sampler":
        return
    for path in filter(lambda name: name.endswith(".json"), chosen.split(",")):
        settings = SamplerConfig.preset(path).as_dict()
        folder, _, name = path.rpartition("/")
        where = "/".join(filter(None, ["sampler", folder.strip("/")]))
        ConfigStore.instance().store(name, {**settings, "steps": None}, group=where)


def resume_command(verb: str) -> str:
    """Returns the command line with the folder of the current run or sweep, to resume it."""
    arguments = sys.argv[1:]
    if HydraConfig.initialized():
        hydra = HydraConfig.get()
        is_sweep = hydra.mode == RunMode.MULTIRUN
        key = "hydra.sweep.dir" if is_sweep else "hydra.run.dir"
        folder = os.path.relpath(hydra.sweep.dir if is_sweep else hydra.runtime.output_dir)
        if not any(argument.startswith(f"{key}=") for argument in arguments):
            settings = [i for i, text in enumerate(arguments) if re.match(r"[^-]\S*=", text)]
            arguments.insert(min(settings, default=len(arguments)), f"{key}={_quoted(folder)}")
    return shlex.join(["python", "-m", f"experiments.{verb}", *arguments])


def _show_command(folder: Path) -> str:
    """Returns the command that shows a run: `view` if it kept a trace, else `report`."""
    path = _quoted(os.path.relpath(folder))
    has_trace = (folder / "trace.npz").exists()
    verb, shown = ("view", f"run={path}") if has_trace else ("report", f"runs=[{path}]")
    return shlex.join(["python", "-m", f"experiments.{verb}", shown])


def _quoted(folder: str) -> str:
    """Returns a folder as a Hydra value, in quotes if a space or a comma would end it."""
    plain = not re.search(r"[^\w./-]", folder)
    return folder if plain else QuotedString(folder, Quote.single).with_quotes()


def _hydra_settings(verb: str, about: str) -> HydraConf:
    """Returns Hydra's own settings for a verb. Hydra must not write a copy of the settings or a log
    into a run's folder, because it would do so before the input is checked. Its sweeper always
    writes `multirun.yaml`, into `hydra.sweep.dir`."""
    folder = f"outputs/{verb}/${{now:%Y-%m-%d}}/${{now:%H-%M-%S}}"
    hydra = HydraConf()
    pages = {} if verb in NO_RESULTS else {"sweep_page": {"_target_": SWEEP_PAGE}}
    return replace(
        hydra,
        callbacks=pages,
        defaults=[
            {"job_logging": "stdout"} if isinstance(item, dict) and "job_logging" in item else item
            for item in hydra.defaults
        ],
        output_subdir=None,
        run=RunDir(folder),
        sweep=SweepDir(folder, "${hydra.job.num}"),
        help=replace(hydra.help, app_name=f"experiments.{verb}", header=about),
    )


def read_config(schema: type[T], config: DictConfig) -> T:
    """Returns `config` with interpolations resolved, as frozen dataclasses. OmegaConf's structured
    configs cannot be used, since they do not support `Literal`."""
    return checked_dataclass(schema, OmegaConf.to_container(config, resolve=True))


class Run:
    """The folder of one run. It stays empty until `begin`, so that bad input leaves no files."""

    def __init__(self, folder: Path, config: DictConfig, worker: Worker = ALONE) -> None:
        self.folder, self.worker = folder, worker
        self._config = config
        self._recorded = 0
        self.fingerprint: str | None = None
        """Hash of the model, which `results.json` then has in each row."""

    def of(self, model: lj.Model) -> lj.Model:
        """Records that the results are about `model`, and returns it."""
        self.fingerprint = model.fingerprint
        return model

    def require_same_experiment(self) -> None:
        """Raises ValueError if the folder has a run of another verb, recognised by its settings:
        `begin` and `record` would delete the results of that run."""
        path = self.folder / CONFIG
        if not path.exists():
            return
        stored = stored_settings(path)
        unknown = sorted(map(str, stored.keys() - self._config.keys()))
        require(
            not unknown,
            f"{self.folder} holds a run of another experiment, or of another version of this one: "
            f"its settings {', '.join(unknown)} are none of {', '.join(map(str, self._config))}; "
            "allowed: another folder (hydra.run.dir)",
        )

    def begin(self) -> None:
        """Writes `config.yaml` and `env.json`, and deletes results and temporary files of an
        earlier run. A worker only deletes results, because others write into the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / RESULTS).unlink(missing_ok=True)
        if not self.worker.is_alone:
            return
        atomic.remove_temporaries(self.folder)
        self.write(CONFIG, OmegaConf.to_yaml(self._config, resolve=True))
        self.write("env.json", _json(environment(), indent=2))

    def record(self, row: Mapping[str, Any]) -> None:
        """Appends a line to `metrics.jsonl`; the first call replaces an earlier run's file."""
        add = atomic.append_text if self._recorded else atomic.write_text
        add(self.folder / "metrics.jsonl", _json(row))
        self._recorded += 1

    def recorded(self, rows: Iterable[ResultRow]) -> list[ResultRow]:
        """Returns the rows as a list, and records each as soon as it is computed."""
        results = []
        for row in rows:
            self.record(row.as_dict())
            results.append(row)
        return results

    def finish(self, results: Sequence[ResultRow], shown: str | None = None) -> None:
        """Writes `results.json`, whole or not at all, and prints it as a table, or as `shown`."""
        rows = [replace(row, fingerprint=row.fingerprint or self.fingerprint) for row in results]
        self.write(RESULTS, _json([row.as_dict() for row in rows], indent=2))
        print(table(results) if shown is None else shown)

    def write(self, name: str, text: str) -> None:
        """Writes a file of the folder, whole or not at all."""
        atomic.write_text(self.folder / name, text)


def stored_settings(path: Path) -> DictConfig:
    """Returns the settings that a run stored. Raises ValueError if the file is damaged."""
    parse_yaml(path)  # limits aliases and refuses tags, which OmegaConf does not
    try:
        stored = OmegaConf.create(stored_text(path))
    except (YAMLError, OmegaConfBaseException) as error:
        raise ValueError(
            f"{path} is damaged: {error}; allowed: the file as it was written"
        ) from error
    require(isinstance(stored, DictConfig), f"{path} is damaged: {stored}; allowed: settings")
    return cast(DictConfig, stored)


def _json(content: Any, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, allow_nan=False) + "\n"
