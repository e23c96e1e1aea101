"""Samplers that `experiments.thresholds` chose on validation items, for a suite to score."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from experiments.harness.run import read_config
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.stored import stored_in_format

CHOSEN = "chosen.json"
FORMAT = 1
_KEYS = {"samplers": dict, "fingerprint": str, "scored_seed": int, "scored_items": int}


class ChosenSamplers(NamedTuple):
    """The samplers that were chosen for a model, and which items had no part in it."""

    samplers: Mapping[str, SamplerConfig]
    """By the name of the sweep."""
    fingerprint: str
    """Of the model."""
    scored_seed: int
    """Whose first `scored_items` items, of each task, were left out."""
    scored_items: int

    @classmethod
    def load(cls, folder: Path) -> "ChosenSamplers":
        """Reads what a run of `experiments.thresholds` chose. Raises FileNotFoundError where there
        is nothing, and ValueError where the file is damaged or of another format."""
        path = folder / CHOSEN
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} has no {CHOSEN}; allowed: the folder of a run of experiments.thresholds"
            )
        stored = stored_in_format(path, FORMAT, _KEYS)
        try:
            samplers = {
                name: read_config(SamplerConfig, DictConfig(settings))
                for name, settings in stored["samplers"].items()
            }
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}; allowed: samplers of this version") from error
        return cls(**{**{key: stored[key] for key in _KEYS}, "samplers": samplers})

    def as_json(self) -> str:
        """Returns the content of its file; of the samplers what is not the default."""
        default = SamplerConfig().as_dict()
        samplers = {
            name: {key: value for key, value in each.as_dict().items() if value != default[key]}
            for name, each in self.samplers.items()
        }
        content = {"format": FORMAT, **self._asdict(), "samplers": samplers}
        return json.dumps(content, indent=2) + "\n"

    def require_for(self, fingerprint: str, seed: int, items: int) -> None:
        """Raises ValueError where another model was swept, or items that are to be scored."""
        require(
            fingerprint == self.fingerprint,
            f"the model's fingerprint is {fingerprint}; allowed: {self.fingerprint}, the model "
            "whose thresholds were chosen",
        )
        require(
            seed == self.scored_seed and items <= self.scored_items,
            f"task.seed is {seed} and task.items {items}; allowed: seed {self.scored_seed} and up "
            f"to {self.scored_items} items, which the thresholds were not chosen on",
        )
