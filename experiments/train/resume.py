"""Ensures that a resumed training continues the stored one: same settings, same task versions.

`training.json` in the run folder has both, with the commands that trained the model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.config import require
from llada_jax.evaluation.stored import first_difference, stored_in_format
from llada_jax.training.loop import CHECKPOINT_FOLDER

TRAINING = "training.json"
FORMAT = 1
FREE = (
    *("steps", "decay_steps", "log_every", "checkpoint_every", "keep_checkpoints"),
    "evaluate_every",
)
"""Settings of `train` that may change: a run may be prolonged, and evaluated differently."""


class Training(NamedTuple):
    """The origin of a model: all settings that affect it, and the commands in their order."""

    settings: Mapping[str, Any]
    commands: Sequence[str]

    @classmethod
    def of(cls, config: Mapping[str, Any], command: str) -> "Training":
        """Returns a new training from the sections of a configuration, as plain values."""
        fixed = {name: part for name, part in config.items() if name not in ("score", "mesh")}
        fixed["train"] = {key: v for key, v in fixed["train"].items() if key not in FREE}
        return cls(json.loads(json.dumps(fixed)), [command])

    def resumed(self, folder: Path) -> "Training":
        """Returns this training as the continuation of the one in a folder, if there is one. Raises
        ValueError if that file is missing or damaged, or has other settings; the message names the
        first of these."""
        path = folder / TRAINING
        if not path.exists():
            require(
                not (folder / CHECKPOINT_FOLDER).exists(),
                f"{folder} has {CHECKPOINT_FOLDER} without {TRAINING}; allowed: both or neither",
            )
            return self
        earlier = stored_in_format(path, FORMAT, {"settings": dict, "commands": list})
        difference = first_difference(earlier["settings"], self.settings)
        require(
            difference is None,
            f"{folder} holds a training with other settings: {difference}; allowed: another folder "
            f"(hydra.run.dir), the same settings, or a change of score or of {', '.join(FREE)}",
        )
        return Training(self.settings, list(dict.fromkeys([*earlier["commands"], *self.commands])))

    def as_json(self) -> str:
        """Returns the content of `training.json`."""
        return json.dumps({"format": FORMAT, **self._asdict()}, indent=2) + "\n"
