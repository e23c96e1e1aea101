"""Configurations are data: what would run code is refused with its file and key, before it is used.

Hydra calls what a file names in `hydra.callbacks`, in factories and classes of its logging settings
and in each `_target_` of its launcher and sweeper, and it imports the packages of
`hydra.searchpath`: all of that before an experiment sees its settings.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from llada_jax.config import require

_PLUGINS = ("hydra_plugins.", "hydra._internal.core_plugins.")
_PLUGIN_KEYS = ("hydra.launcher._target_", "hydra.sweeper._target_")
_CLASSES = tuple(
    f"logging.{name}"
    for name in (
        *("StreamHandler", "FileHandler", "NullHandler", "Formatter"),
        *("handlers.RotatingFileHandler", "handlers.TimedRotatingFileHandler"),
    )
)
_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
# Nothing that is put in behind these becomes `ext://module.name`, which logging imports.
_PATH = re.compile(r"hydra-|\$\{hydra\.runtime\.output_dir\}/")

Found = Iterator[tuple[str, Any, str]]
"""Keys whose values would run code, these values, and what is allowed in their place."""


class DataOnlyLoader(ConfigLoaderImpl):
    """Hydra's loader, which raises ValueError for a file or a composition that names code. Each job
    of a sweep is composed by it as well, before the first one starts."""

    def load_configuration(self, *arguments: Any, **options: Any) -> Any:
        try:
            composed = super().load_configuration(*arguments, **options)
        except TypeError as error:  # Hydra's own, where a group is chosen by a number
            raise ValueError(f"the settings cannot be composed: {error}") from error
        _refuse(_in_tree(OmegaConf.to_container(composed, resolve=False)), _COMMAND_LINE)
        for plugin in ("launcher", "sweeper"):  # Hydra makes all that is in them
            node = OmegaConf.to_container(composed.hydra[plugin], resolve=True)
            _refuse(_in_tree(node, f"hydra.{plugin}"), _COMMAND_LINE)
        return composed

    def _load_single_config(self, default: Any, repo: Any) -> Any:
        loaded = super()._load_single_config(default, repo)
        tree = OmegaConf.to_container(loaded.config, resolve=False)
        _refuse(_in_tree(tree), f"{loaded.path}/{default.config_path}.yaml")
        return loaded

    def _process_config_searchpath(
        self, config_name: Any, parsed_overrides: Any, repo: Any
    ) -> None:
        loaded = repo.load_config(config_path=config_name) if config_name else None
        if loaded is not None and OmegaConf.is_dict(loaded.config):
            paths = OmegaConf.select(loaded.config, "hydra.searchpath")
            _refuse(_packages(paths), f"{loaded.path}/{config_name}.yaml")
        for override in parsed_overrides:
            if override.get_key_element() == "hydra.searchpath":
                _refuse(_packages(override.value()), _COMMAND_LINE)
        super()._process_config_searchpath(config_name, parsed_overrides, repo)


_COMMAND_LINE = "the command line, with what it composes,"


def _refuse(found: Found, where: str) -> None:
    for key, value, allowed in found:
        shown = repr(value)[:100]
        require(False, f"{where} sets {key} to {shown}, which would run code; allowed: {allowed}")


def _packages(paths: Any) -> Found:
    for path in paths or ():
        if "://" in str(path) and not str(path).startswith("file://"):
            yield "hydra.searchpath", path, "folders"


def _in_tree(node: Any, key: str = "") -> Found:
    """Looks through a tree as it was written: an interpolation is text."""
    if key == "hydra.callbacks":
        if node:
            yield key, node, "none"
    elif key == "hydra.job.env_set":  # PATH, LD_PRELOAD: programs that are started run them
        if node and not (isinstance(node, dict) and node.items() <= os.environ.items()):
            yield key, node, "what the shell has set"
    elif key == "hydra.launcher.setup":  # commands that submitit puts before a job's own
        if node:
            yield key, node, "none; jobs have what the shell that submits them has loaded"
    elif key in ("hydra.job_logging", "hydra.hydra_logging"):
        yield from _in_logging(node, key)
    elif key.rpartition(".")[2] == "_target_":
        if key not in _PLUGIN_KEYS or not str(node).startswith(_PLUGINS):
            yield key, node, "a plugin of Hydra as its launcher or sweeper, and none elsewhere"
    else:
        for name, inner in _inside(node):
            yield from _in_tree(inner, f"{key}.{name}".lstrip("."))


def _in_logging(node: Any, key: str) -> Found:
    name = key.rpartition(".")[2]
    if name == "()":
        yield key, node, "classes of logging, under 'class'"
    elif name == "class":
        if node not in _CLASSES:
            yield key, node, ", ".join(_CLASSES)
    elif isinstance(node, str):
        if "://" in node and node not in _STREAMS:
            yield key, node, ", ".join(_STREAMS)
        elif "${" in node and not _PATH.match(node):
            yield key, node, "text, and interpolations behind ${hydra.runtime.output_dir}/"
    else:
        for inner_name, inner in _inside(node):
            yield from _in_logging(inner, f"{key}.{inner_name}")


def _inside(node: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(node, dict):
        yield from node.items()
    elif isinstance(node, list):
        yield from enumerate(node)
