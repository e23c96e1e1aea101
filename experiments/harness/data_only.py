"""Keeps settings files from running code: a file may set only a short list of Hydra's own settings.

Hydra acts on the node `hydra` before a verb reads its settings: it calls the classes named by
callbacks, loggers and every `_target_`, imports packages of `hydra.searchpath`, sets environment
variables, and writes to `hydra.run.dir` and `hydra.output_subdir`. A settings file from somebody
else could therefore run code. `SettingsFiles` reads every file of `conf/`, `--config-path` and
`--config-dir`, in each process and for each job of a sweep, and refuses a file that sets anything
of this node that is not listed here. The command line may set everything: the user typed it.
"""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from llada_jax.config import require
from llada_jax.config_files import parse_yaml

_ALLOWED = (
    "run.dir and sweep.dir under outputs/, sweep.subdir within it, mode, verbose, sweeper.params, "
    "numbers of a launcher or a sweeper that is installed, names of Slurm's partitions and the "
    "like; on the command line all of hydra"
)
_HYDRA = r"(?<![\w-])hydra(?![\w-])"
_ELSEWHERE = rf"(?!.*{_HYDRA})(?!.*\.\.)"
_NAME = r"\w[\w.-]*(/\w[\w.-]*)*"
_GROUP = rf"{_ELSEWHERE}((optional|override) )*/?{_NAME}(@[\w.]+)?"
_CHOICE = rf"{_ELSEWHERE}({_NAME}|[\w/-]*(\$\{{[\w/@]+\}}[\w/-]*)+)"
_FOLDER = r"(?!\.\.(/|$))([\w.,=@+-]|\$\{(now:[\w%:-]+|hydra\.job\.num)\})+"
_SLURM = "partition|account|qos|constraint|gres|mem_per_cpu|mem_per_gpu"
_RULES = (
    (r"package", rf"{_ELSEWHERE}.*"),
    (r"defaults\.\d+", _GROUP),
    (rf"defaults\.\d+\.{_GROUP}(\.\d+)?", _CHOICE),
    (r"defaults\.\d+\.(override )?/?hydra/(launcher|sweeper)(/\w+)*", r"\w+"),
    (r"hydra\.(run|sweep)\.dir", f"outputs(/{_FOLDER})+"),
    (r"hydra\.sweep\.subdir", f"{_FOLDER}(/{_FOLDER})*"),
    (r"hydra\.mode", r"RUN|MULTIRUN"),
    (r"hydra\.verbose(\.\d+)?", r"[\w.]+"),
    # A leading underscore is Hydra's syntax (`_target_`), and an interpolation may make a mapping.
    (rf"hydra\.sweeper\.params\.{_ELSEWHERE}(?!.*\b_)[\w./@+~-]+", r"[^$]*"),
    (r"hydra\.(launcher|sweeper)(\.[a-z]\w*)+", r"True|False|None|[\d.eE+-]+"),
    (rf"hydra\.launcher\.({_SLURM})", r"[\w.,:+-]+"),
)
"""Patterns of keys and values. Each value in a file has to match one pair."""
_PLUGIN_RULES = (("package", "None"), (r"defaults\.\d+", r"\w+"), *_RULES[4:])
"""The patterns for a file in `hydra/launcher` or `hydra/sweeper`, whose content is that node's."""

_sources: Any = Plugins.instance().discover(ConfigSource)
_Files = next(source for source in _sources if source.scheme() == "file")
_is = partial(re.fullmatch, flags=re.DOTALL)


class SettingsFiles(_Files):
    """Hydra's reader of configuration files, with the check. Raises ValueError if a file sets
    a key or a value that is not allowed."""

    @staticmethod
    def scheme() -> str:
        return "settings"

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(self.path, config_path.removesuffix(".yaml") + ".yaml")
        parse_yaml(file)  # has limits of size; OmegaConf expands every alias
        loaded = super().load_config(config_path)
        content = OmegaConf.to_container(loaded.config, resolve=False)
        content, rules = content if isinstance(content, dict) else {}, _RULES
        checked = {name: content[name] for name in ("defaults", "hydra") if name in content}
        if re.search(_HYDRA, config_path):
            group = re.match(r"(hydra/(launcher|sweeper)(/\w+)*)/\w+$", config_path)
            node = group[1].replace("/", ".") if group else f"the file {config_path}"
            content.pop("defaults", None)
            checked, rules = {**checked, node: content}, _PLUGIN_RULES
        checked["package"] = loaded.header["package"]
        for key, value in _leaves(checked):
            require(
                any(_is(k, key) and _is(v, str(value)) for k, v in rules),
                f"{file} sets {key} to {str(value)[:100]!r}, which a settings file may not; "
                f"allowed in files, of hydra: {_ALLOWED}",
            )
        return loaded


class SettingsPath(SearchPathPlugin):
    """Makes `SettingsFiles` the reader of every settings folder on Hydra's search path."""

    config_dir: str | None = None
    """The folder of `--config-dir`. Hydra appends it later, so this entry is found first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for element in search_path.get_path():
            if element.provider == "main" and "://" not in element.path:
                element.path = f"settings://{element.path}"
        if self.config_dir is not None:
            search_path.append("command-line", f"settings://{os.path.abspath(self.config_dir)}")


def read_settings_as_data(config_dir: str | None) -> None:
    """Registers the reader with Hydra; `config_dir` is the value of `--config-dir`."""
    for plugin in (SettingsFiles, SettingsPath):
        Plugins.instance().register(plugin)
    SettingsPath.config_dir = config_dir


def _leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted key and the value of each leaf, interpolations as text."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for name, value in items:
        inner = f"{key}.{name}".lstrip(".")
        if isinstance(value, (dict, list)):
            yield from _leaves(value, inner)
        else:
            yield inner, value
