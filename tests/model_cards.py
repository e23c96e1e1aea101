"""The statements of a model's card, read from its text."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from llada_jax.evaluation.tasks import load_task, task_names
from llada_jax.sampler.config import SamplerConfig

SCORE = re.compile(
    r"^\| (?P<task>\w+) \| (?P<items>\d+) \| (?P<name>\w+) \| gen_length (?P<gen_length>\d+), "
    r"block_length (?P<block_length>\d+), cache (?P<cache>\w+), "
    r"(?:(?P<steps>\d+) steps|threshold (?P<threshold>[\d.]+)) "
    r"\| (?P<share>[\d.]+)% \| (?P<low>[\d.]+)% to (?P<high>[\d.]+)% \|$",
    re.MULTILINE,
)


class StatedScore(NamedTuple):
    """The share of a task's test items that a sampler answers right, with its interval."""

    task: str
    name: str
    sampler: SamplerConfig
    seed: int
    items: int
    share: float
    low: float
    high: float

    @property
    def cost(self) -> int:
        """Of an item, compared with others."""
        canvas = 2 * self.sampler.gen_length  # with its question
        rows = self.sampler.block_length if self.sampler.window.cache == "blockwise" else canvas
        return rows * (self.sampler.steps if self.sampler.rule.name == "quota" else 8)


def stated_scores(folder: Path) -> list[StatedScore]:
    card = _card(folder)
    seed = re.search(r"default difficulty, seed (\d+)\) whose generated", card)
    assert seed, f"the card of {folder.name} does not say which items were scored"
    return [_score(match, int(seed[1])) for match in SCORE.finditer(card)]


def _score(match: re.Match[str], seed: int) -> StatedScore:
    length, threshold = int(match["gen_length"]), match["threshold"]
    sampler = SamplerConfig.from_flat(
        gen_length=length,
        block_length=int(match["block_length"]),
        cache=match["cache"],
        steps=int(match["steps"] or length),
        threshold=float(threshold) if threshold else None,
    )
    share, low, high = (float(match[key]) / 100 for key in ("share", "low", "high"))
    items = int(match["items"])
    return StatedScore(match["task"], match["name"], sampler, seed, items, share, low, high)


class StatedTraining(NamedTuple):
    """How a model was trained, or the parent that it went on from.

    Attributes:
      arguments: Of the `experiments.train` that started it, or None if it was another command.
      commit: of the code, and of a bundled parent.
      parent: The model that it was initialized from, or empty.
      outdated: tasks that are gone or have other items now, with the version that was
        trained on.
    """

    arguments: list[str] | None
    commit: str
    parent: str
    outdated: Mapping[str, int]


def stated_trainings(folder: Path) -> list[StatedTraining]:
    """The model's training first, then its parent's."""
    _, *sections = re.split(r"^## Training.*\n", _card(folder), flags=re.MULTILINE)
    assert sections, f"the card of {folder.name} does not say how the model was trained"
    return list(map(_training, sections))


def _training(section: str) -> StatedTraining:
    command = re.search(r"^    python -m experiments\.train(.*)$", section, re.MULTILINE)
    commit = re.search(r"Code and versions: commit (\w+)", section)
    parent = re.search(r"the parameters of `(\S+)` as of the commit", section)
    tasks = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \| [\d.]+ \| .*\|$", section, re.MULTILINE)
    assert tasks, "the card does not say what the model was trained on"
    return StatedTraining(
        shlex.split(command[1]) if command else None,
        commit[1] if commit else "",
        parent[1] if parent else "",
        {name: int(version) for name, version in tasks if not _is_of_today(name, int(version))},
    )


def _is_of_today(task: str, version: int) -> bool:
    return task in task_names() and load_task(task).version == version


def outdated_tasks(folder: Path) -> Mapping[str, int]:
    """Tasks with other items than the model was trained and scored on."""
    return stated_trainings(folder)[0].outdated


def _card(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")
