"""A run of an experiment: from Hydra's configuration to a folder that says what happened.

    @hydra.main(version_base="1.3", config_path="../conf", config_name="generate")
    def main(config: DictConfig) -> None:
        launch(generate, GenerateConfig, config)

The folder gets `config.yaml` (resolved), `env.json`, `metrics.jsonl` and `results.json`. The last
one is there exactly when the run finished.
"""

import json
import logging
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.harness.results import ResultRow, table
from experiments.harness.schema import read_config
from llada_jax import atomic
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.stored import stored_text
from llada_jax.model.architecture import ARCHITECTURES

CONFIG = "config.yaml"
REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")
OF_EXTRAS = (
    *("litert-converter", "ai-edge-litert", "flatbuffers"),
    *("onnxruntime-qnn", "onnx", "ai-edge-quantizer"),
)
"""What the backends are made of; named where it is installed."""

# `sampler=default`: every setting, so that each can be overridden, and a file in conf/sampler/ has
# to say only what differs.
_SAMPLER = {**SamplerConfig().as_dict(), "steps": None}  # which follow gen_length
ConfigStore.instance().store("default", _SAMPLER, group="sampler")

# The shapes that come with the package are Hydra's group `architecture`.
for _shape in ARCHITECTURES.glob("*.yaml"):
    ConfigStore.instance().store(_shape.stem, OmegaConf.load(_shape), group="architecture")


def _without_files(hydra: HydraConf) -> HydraConf:
    """Hydra's own settings, but that it writes nothing into the folder of a run, which is `Run`'s:
    a copy of the settings and a log would be there, or be overwritten, before input is checked.

    Of a sweep, Hydra's sweeper writes `multirun.yaml` whatever is set: not into the folder of a run
    but into the one above (`hydra.sweep.dir`), which is the sweep's."""
    defaults = [
        {"job_logging": "stdout"} if isinstance(each, dict) and "job_logging" in each else each
        for each in hydra.defaults
    ]
    return replace(hydra, defaults=defaults, output_subdir=None)


ConfigStore.instance().store("config", _without_files(HydraConf()), group="hydra")

T = TypeVar("T")


def launch(experiment: Callable[[T, "Run"], None], schema: type[T], config: DictConfig) -> None:
    """Run an experiment in the folder that Hydra made for it.

    Bad input (ValueError, FileNotFoundError, a broken interpolation) and an extra that is not
    installed (ImportError) end in one line and exit code 1; with HYDRA_FULL_ERROR=1, as in Hydra
    itself, in a traceback.
    """
    for name in ("jax", "absl"):  # they report absent devices, and each file of a checkpoint
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        settings = read_config(schema, config)
        run = Run(Path(HydraConfig.get().runtime.output_dir), config)
        run.require_own_folder()
        experiment(settings, run)
    except (ValueError, FileNotFoundError, ImportError, OmegaConfBaseException) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise SystemExit(f"error: {' '.join(str(error).split())}") from error


class Run:
    """The folder of one run. It stays empty until `begin`, so that bad input leaves no files."""

    def __init__(self, folder: Path, config: DictConfig) -> None:
        self.folder = folder
        self._config = config
        self._recorded = 0

    def require_own_folder(self) -> None:
        """Raises ValueError where the folder holds a run of another experiment, which shows in
        its settings: `begin` and `record` would take away what that run found."""
        path = self.folder / CONFIG
        if not path.exists():
            return
        stored = stored_settings(path)
        foreign = sorted(map(str, stored.keys() - self._config.keys()))
        require(
            not foreign,
            f"{self.folder} holds a run of another experiment, or of another version of this one: "
            f"its settings {', '.join(foreign)} are none of {', '.join(map(str, self._config))}; "
            "allowed: another folder (hydra.run.dir)",
        )

    def begin(self) -> None:
        """Writes `config.yaml` and `env.json`; takes away the results of an earlier run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "results.json").unlink(missing_ok=True)
        self.write(CONFIG, OmegaConf.to_yaml(self._config, resolve=True))
        self.write("env.json", _json(environment(), indent=2))

    def record(self, row: Mapping[str, Any]) -> None:
        """Adds a line to `metrics.jsonl`; the first one replaces those of an earlier run."""
        mode = "a" if self._recorded else "w"
        with (self.folder / "metrics.jsonl").open(mode, encoding="utf-8") as file:
            file.write(_json(row))
        self._recorded += 1

    def finish(self, results: Sequence[ResultRow], shown: str | None = None) -> None:
        """Writes `results.json`, whole or not at all, and prints it as a table, or as `shown`."""
        self.write("results.json", _json([row.as_dict() for row in results], indent=2))
        print(table(results) if shown is None else shown)

    def write(self, name: str, text: str) -> None:
        """A file of the folder, which never holds half a text."""
        atomic.write_text(self.folder / name, text)


def stored_settings(path: Path) -> DictConfig:
    """The settings that a run stored. Raises ValueError where the file is damaged."""
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


@cache
def environment() -> dict[str, Any]:
    """Versions, the machine, and the commit of the code, as a process finds them first: what is
    committed while it goes on is not what it runs."""
    status = _git("status", "--porcelain")
    return {
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "processor": _processor(),
        "packages": {name: version(name) for name in PACKAGES} | _versions_of_extras(),
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else status != "",
    }


def _versions_of_extras() -> dict[str, str]:
    versions = {}
    for name in OF_EXTRAS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _processor() -> str:
    """The CPU's name, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _git(*arguments: str) -> str | None:
    """What git prints, or None where there is no git or no repository."""
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
