"""A training that is resumed is the one that was begun: same settings, same versions of its tasks.
`training.json` of the run folder has both, with the commands that it was trained by."""

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
"""Of `train`: a run may be prolonged, and watched otherwise. So may `score`."""


class Training(NamedTuple):
    """What made a model: settings of all that went into it, and the commands in their order."""

    settings: Mapping[str, Any]
    commands: Sequence[str]

    @classmethod
    def of(cls, config: Mapping[str, Any], command: str) -> "Training":
        """Begins a training with a configuration's sections of plain values."""
        fixed = {name: each for name, each in config.items() if name not in ("score", "mesh")}
        fixed["train"] = {key: each for key, each in fixed["train"].items() if key not in FREE}
        return cls(json.loads(json.dumps(fixed)), [command])

    def resumed(self, folder: Path) -> "Training":
        """Returns this training as what goes on with the one in a folder, if there is one. Raises
        ValueError where that is damaged, of another format or unknown, or has other settings, the
        first of which is named."""
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
        """Returns the content of its file."""
        return json.dumps({"format": FORMAT, **self._asdict()}, indent=2) + "\n"
